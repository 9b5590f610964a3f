# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage, ToolCall

from haystack_compaction.compactors.summary_checks import fault_of_reply, summary_text
from haystack_compaction.compactors.summary_prompt import DEFAULT_SUMMARY_INSTRUCTION, SummaryRequest, rendered

CALL = ToolCall("read_file", {"path": "/etc/tides.conf"}, id="c1")
MESSAGES = [
    ChatMessage.from_user("Why is the checkout slow? Never restart the database. Ticket SHOP-1207."),
    ChatMessage.from_assistant("Let me read the configuration.", tool_calls=[CALL]),
    ChatMessage.from_tool("pool.max_size = 4\nlisten = 10.0.0.7:5432\nbuild 20240312-4471", origin=CALL),
    ChatMessage.from_assistant("The pool is too small: 4 instead of 40."),
]
REQUEST = SummaryRequest(
    DEFAULT_SUMMARY_INSTRUCTION, "transcript", "".join(map(rendered, MESSAGES)), previous="", limit=200
)

GOOD = {
    "sections": "## Goal\n- Find out why the checkout is slow.\n\n## Rules\n- Never restart the database.",
    "prose": "The user asks why checkout is slow; the pool has 4 connections instead of 40.",
    "short": "Pool too small (4, not 40).",
    "empty sections": "## Goal\nFix the checkout.\n\n## Decisions\n(none)\n\n## Open points\n- None",
    "regret inside": "- The assistant said: I'm sorry, I cannot restart the database.",
    "own words": "## Goal\n- Make paying fast again without touching the database.",
    "table": "| what | value |\n| --- | --- |\n| pool.max_size | 4 |\n| ticket | SHOP-1207 |",
    "identifiers": "SHOP-1207, /etc/tides.conf, 10.0.0.7:5432, 20240312-4471, max_size",
    "list": "\n".join(f"- checkout step {number}: pool read, nothing to see" for number in range(30)),
}
BAD = {
    "empty": ("", "empty"),
    "blank": (" \n\t", "empty"),
    "only thinking": ("<think>The checkout is slow because of the pool.</think>", "empty"),
    "thinking cut off": ("<think>The checkout is slow because of", "empty"),
    "refusal": ("I'm sorry, but I can't assist with that request.", "refused"),
    "refusal in chinese": ("抱歉，我无法总结这段对话的内容。", "refused"),
    "refusal in german": ("Es tut mir leid, dabei kann ich nicht helfen.", "refused"),
    "refusal under a heading": ("**I cannot help with this conversation.**", "refused"),
    "headings": ("## Goal\n\n## Decisions\n\n## Open points", "next to nothing"),
    "nones": ("## Goal\n(none)\n## Decisions\n- None.\n## Work done\nN/A\n", "next to nothing"),
    "nones in chinese": ("## 目标\n（无）\n## 决定\n- 无\n", "next to nothing"),
    "preamble": ("Sure! Here is the summary:", "next to nothing"),
    "loop": ("The pool is too small. " * 60, "repeats itself"),
    "instruction": (DEFAULT_SUMMARY_INSTRUCTION, "copies"),
    "piece of the instruction": (
        "## Goal\nWhat the user wants, in the end and right now.\n\n## Decisions\n"
        "What was decided, and why; what was rejected, and why.",
        "copies",
    ),
    "transcript": (REQUEST.record, "copies"),
    "about something else": (
        "The weather in Lisbon remained pleasant during spring. " + "Swallows came back early to its roofs. " * 5,
        "nothing in common",
    ),
    "says that it summarizes": ("This is a summary of the earlier conversation.", "nothing in common"),
    "made up": ("The pool was fixed in /opt/app/main.py, build 99887766, ticket OPS_99, host db77_main", "nothing"),
}


def fault(text, **meta):
    return fault_of_reply(ChatMessage.from_assistant(text, meta=meta), REQUEST)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_good_summaries_pass(text):
    assert fault(text, finish_reason="stop") is None
    assert fault(text) is None


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_bad_summaries_do_not(text, reason):
    assert reason in (fault(text) or "")


@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [("length", "cut off"), ("MAX_TOKENS", "cut off"), ("content_filter", "filter"), ("SAFETY", "filter")],
)
def test_the_finish_reason_counts(finish_reason, reason):
    assert reason in fault(GOOD["prose"], finish_reason=finish_reason)


def test_a_failed_call():
    assert "ValueError('no such model')" in fault_of_reply(ValueError("no such model"), REQUEST)


def test_a_reply_that_only_calls_tools():
    assert fault_of_reply(ChatMessage.from_assistant(tool_calls=[CALL]), REQUEST) == "it was empty"


@pytest.mark.parametrize(
    ("user", "summary"),
    [
        ("今天的潮汐什么时候到最高点？", "用户询问潮汐的最高点，答案是中午。"),
        ("満潮は何時ですか。", "ユーザーは満潮の時刻を尋ねた。"),
        ("Когда сегодня прилив?", "- Пользователь спросил, когда прилив."),
        ("متى يكون المد اليوم؟", "- سأل المستخدم متى يكون المد اليوم."),
        ("น้ำขึ้นเวลา 12:30 ใช่ไหม", "- ผู้ใช้ถามเรื่องน้ำขึ้นเวลา 12:30"),
        ("오늘 만조는 몇 시인가요?", "- 사용자가 오늘 만조 시간을 물었다."),
    ],
)
def test_every_language_passes(user, summary):
    request = SummaryRequest("Summarize.", "transcript", rendered(ChatMessage.from_user(user)), previous="", limit=200)
    assert fault_of_reply(ChatMessage.from_assistant(summary), request) is None


def test_what_an_earlier_summary_says_counts_as_known():
    record = rendered(ChatMessage.from_user("Go on."))
    request = SummaryRequest("Summarize.", "transcript", record, previous="| Harbour of Brest\n", limit=200)
    assert fault_of_reply(ChatMessage.from_assistant("- It is about the Harbour."), request) is None


def test_what_models_put_around_a_summary_goes():
    assert summary_text(ChatMessage.from_assistant("<think>Hm.</think>\n\nPool: 4.")) == "Pool: 4."
    assert summary_text(ChatMessage.from_assistant("```markdown\n## Goal\n- Pool\n```")) == "## Goal\n- Pool"
    assert summary_text(ChatMessage.from_assistant("Run\n```\nls\n```\nand go.")) == "Run\n```\nls\n```\nand go."


def test_a_short_summary_in_another_language_is_taken():
    record = rendered(ChatMessage.from_user("Wie hoch war die Flut?")) + rendered(ChatMessage.from_assistant("3,5 m."))
    request = SummaryRequest("Summarize in English.", "transcript", record, "", 200)
    assert fault_of_reply(ChatMessage.from_assistant("They wanted to know the tide: 3.5 m."), request) is None


def test_a_reply_that_repeats_the_mark_of_the_prompt_is_an_echo():
    record = rendered(ChatMessage.from_user("Load the data of the tool shop, please."))
    request = SummaryRequest("Summarize.", "transcript", record, "", 200)
    echo = f"The record is {request.boundary}, a summary of the record, in at most 200 tokens."
    assert "copies what it was given" in fault_of_reply(ChatMessage.from_assistant(echo), request)
