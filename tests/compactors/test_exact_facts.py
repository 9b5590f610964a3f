# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from random import Random

import pytest
from haystack.dataclasses import ChatMessage, ToolCall
from hypothesis import given
from hypothesis import strategies as st
from samples import ScriptedChatGenerator, step

from haystack_compaction import EstimateTokenCounter, HybridCompactor, SummarizationCompactor
from haystack_compaction.compactors.exact_facts import exact_facts
from haystack_compaction.conversation.notes import is_summary, summary_note, told_by
from haystack_compaction.pass_context import PassContext, entered

COUNTER = EstimateTokenCounter()


def facts_of(messages, summary="Things were talked about.", *, told=None, budget=400):
    told = range(len(messages)) if told is None else told
    return exact_facts(messages, told, summary, budget_tokens=budget, count_text=COUNTER.count_text)


def user(*texts):
    return [ChatMessage.from_user(text) for text in texts]


def note(text):
    return summary_note(text, strategy="summarization", removed_messages=4, kept_messages=2, scope="history")


# What counts as exact, and as told


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("The ledger lies in /srv/prod/ledger.db, untouched.", "/srv/prod/ledger.db"),
        (r"The ledger lies in C:\books\ledger.db, untouched.", r"C:\books\ledger.db"),
        ("Docs are at https://docs.example/v2?page=7#top these days.", "https://docs.example/v2?page=7#top"),
        ("Write to ops@kestrel.example about it.", "ops@kestrel.example"),
        ("Order ORD-4471-B is the one that counts.", "ORD-4471-B"),
        ("The commit is 9fceb02d, on the branch of Ilka.", "9fceb02d"),
        ("We pay €4,250.75 and nothing more.", "€4,250.75"),
        ("Delivery is on 2026-11-30 in the morning.", "2026-11-30"),
        ("They meet at 09:45 in the hall.", "09:45"),
        ("Stay with version 3.14.2 of the parser.", "3.14.2"),
        ("The database listens on port 40321 there.", "40321"),
        ("Give up after 12 seconds of silence.", "12 seconds"),
        ("Keep 8 GB free on each disk.", "8 GB"),
        ("At most 5% of them may fail.", "5%"),
        ("Call parse_ledger before anything else.", "parse_ledger"),
        ("Nie mehr als 30 Tage aufbewahren.", "30 Tage"),
        ("数据库的端口是40321，不要改动。", "40321"),
        ("日志最多保留30天。", "30天"),
    ],
)
def test_a_value_that_the_summary_lost_is_listed_with_the_words_around_it(said, value):
    facts = facts_of(user(said, "What a day."))
    assert facts == f"# Exact facts\n## User said\n- {said}"
    assert value in facts
    assert facts_of(user(said, "What a day."), f"It was said: {value}.") == ""


@pytest.mark.parametrize(
    "said", ["What a day.", "There are 3 of them.", "OK, the API returns JSON.", "40321", "e.g. this"]
)
def test_what_names_nothing_is_not_listed(said):
    assert facts_of(user(said, "And on it goes.")) == ""


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        ("The order is 4471, as agreed.", "The order is 44715, as agreed."),
        ("The order is 4471, as agreed.", "The order is ORD-4471-C, as agreed."),
        ("The order is 4471, as agreed.", "The order is 4,471.50, as agreed."),
        ("It lies in /srv/a of old.", "It lies in /srv/a/b of old."),
        ("Stay with v1.2.3 of it.", "Stay with v1.2.31 of it."),
    ],
)
def test_a_part_of_another_value_is_not_the_value(said, summary):
    assert said in facts_of(user(said, "What a day."), summary)


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        ("The order is ORD-4471-b, as agreed.", "Order: ord-4471-B"),
        ("The gateway takes 3s at most.", "Gateway: 3 s"),
        ("The gateway takes 3 s at most.", "Gateway: 3s"),
    ],
)
def test_how_a_value_is_written_does_not_matter(said, summary):
    assert facts_of(user(said, "What a day."), summary) == ""


def test_only_what_the_summary_takes_the_place_of_is_listed():
    messages = user("The order is 4471, as agreed.", "The invoice is 8812, I think.")
    assert "8812" not in facts_of(messages, told=[0])
    assert "4471" in facts_of(messages, told=[0])


# Who said it


def test_facts_stand_under_who_gave_them():
    messages = [
        ChatMessage.from_user("Back up host krill-404, please."),
        *step("backup", "stored as snap-88f2c1d9 on the vault"),
        ChatMessage.from_assistant("Done, until 2026-11-30 nothing else is due."),
    ]
    assert facts_of(messages) == (
        "# Exact facts\n## User said\n- Back up host krill-404, please.\n"
        "## Assistant said\n- Done, until 2026-11-30 nothing else is due.\n"
        "## Tools returned\n- stored as snap-88f2c1d9 on the vault"
    )


def test_errors_are_kept_with_their_text_until_they_are_solved():
    call = ToolCall("read_table", {"name": "orders"}, id="0")
    failed = [
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_tool("permission denied for relation", origin=call, error=True),
    ]
    messages = [*user("Read the orders."), *failed, *user("And?")]
    expected = "# Exact facts\n## Open problems\n- read_table failed: permission denied for relation"
    assert facts_of(messages, told=[0, 1, 2]) == expected
    assert facts_of(messages, "read_table failed: permission denied for relation.", told=[0, 1, 2]) == ""
    assert "denied" not in facts_of([*messages, *step("read_table", "no rows")], told=[0, 1, 2])


def test_what_a_note_told_keeps_its_heading():
    first = facts_of([*user("The order is 4471, as agreed."), *step("find", "it lies in /srv/orders/4471.json today")])
    again = [note(f"## Goal\n- Things, for 99812 euros.\n\n{first}"), *user("And now?")]
    second = facts_of(again, told=[0])
    assert second == f"{first}\n## Summarized earlier\n- Things, for 99812 euros."
    third = facts_of([note(f"Nothing much.\n\n{second}"), *user("And now?")], told=[0])
    assert third == second


# Which of them


def test_the_budget_is_never_exceeded_and_the_worthiest_come_first():
    messages = [
        *user("Never ever write to /srv/prod/ledger.db, because the auditors read it."),
        *step("list", "\n".join(f"{number} files in /tmp/cache/part{number:03}" for number in range(100, 160))),
        *user("So what about the ledger of the auditors?"),
    ]
    enough = COUNTER.count_text(f"# Exact facts\n## User said\n- {messages[0].text}\n")
    for budget in [*range(0, 200, 7), enough]:
        facts = facts_of(messages, told=[0, 1, 2], budget=budget)
        assert COUNTER.count_text(facts) <= budget
        assert ("ledger.db" in facts) == (budget >= enough)


@given(st.lists(st.text(alphabet="ab 1/.-_:#\n年é\ud800", max_size=60), max_size=12), st.integers(0, 120))
def test_any_text(texts, budget):
    facts = facts_of([*user(*texts), *step("read", " ".join(texts))], budget=budget)
    assert COUNTER.count_text(facts) <= budget
    assert all(line.startswith(("# ", "## ", "- ")) for line in facts.splitlines())


def test_a_value_that_was_put_right_goes():
    messages = user("The staging database listens on port 40321.", "Noted, it seems.", "Which port, I wonder?")
    newer = user("Correction: the staging database listens on port 51877 now.")
    assert "40321" in facts_of(messages)
    assert "40321" not in facts_of([*messages, *newer], told=range(3))
    both = facts_of([*messages, *newer])
    assert "51877" in both
    assert "40321" not in both
    listed = [note(f"Things were said.\n\n{facts_of(messages)}"), *user("Hm."), *newer]
    assert "40321" not in facts_of(listed, told=[0])
    assert "51877" in facts_of(listed)


def test_nothing_is_listed_twice():
    line = "The order is 4471, as agreed."
    facts = facts_of([note(f"Things.\n\n{facts_of(user(line))}"), *user(line, "Order 4471 it is, then?")])
    assert facts.count("4471") == 1


def test_lines_that_differ_in_their_values_only_do_not_fill_the_list():
    messages = step("log", "\n".join(f"worker {n} took request {n:04}f{n % 7}c for {n} ms" for n in range(10, 60)))
    assert facts_of(messages, budget=2000).count(" took request ") <= 3 + 3


def test_many_messages_that_differ_in_digits_only_are_not_read():
    messages = user(
        *(f"Ping {number} of host 10.0.0.{number}" for number in range(100, 160)), "The order is 4471, then."
    )
    facts = facts_of(messages)
    assert "4471" in facts
    assert facts.count("Ping") <= 1


# Over many passes

PLANTED = {
    "Never write to /srv/prod/ledger.db, the auditors read it.": "/srv/prod/ledger.db",
    "Invoices go to billing@kestrel.example.": "billing@kestrel.example",
    "The deadline is 2026-11-30, and the budget is €4,250.75.": "€4,250.75",
    "Keep the logs for 30 days at most.": "30 days",
    "We stay with version 3.14.2 of the parser.": "3.14.2",
}
RETURNED = {
    "Backup of host krill-404 is stored at https://vault.example/backups/88f2c1d9": "https://vault.example/backups/88f2c1d9",
    "The slowest of all requests took 4127 ms at 09:45": "4127 ms",
}


def traffic(random, turns, number):
    """Turns of an agent that reads logs: plenty of values, none of which matters."""
    messages = []
    for turn in range(turns):
        lines = [
            f"{random.randrange(10, 23)}:{random.randrange(10, 59)} worker {random.randrange(99)} handled request "
            f"{random.randrange(16**8):08x} in {random.randrange(900)} ms"
            for _ in range(8)
        ]
        messages += [
            *user(f"Please look at service {random.choice(['alpha', 'beta', 'gamma'])}{random.randrange(999)} again."),
            *step("read_log", "\n".join(lines), call_id=f"{number}-{turn}"),
            ChatMessage.from_assistant(f"It is fine, its slowest request took {random.randrange(900)} ms."),
        ]
    return messages


def forgetful():
    """A model whose summaries name nothing."""
    summary = "The user and the assistant look after services together. Some were checked, and all is well with them."
    return ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(summary))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "build",
    [SummarizationCompactor, lambda model: HybridCompactor([SummarizationCompactor(model)])],
    ids=["summarization", "hybrid"],
)
def test_values_survive_ten_passes_of_a_model_that_forgets_them_all(build, seed):
    random, model, target = Random(seed), forgetful(), 1200
    compactor = build(model)
    messages = [ChatMessage.from_system("You look after services.")]
    for text in PLANTED:
        messages += [*user(text), ChatMessage.from_assistant("Noted.")]
    for text in RETURNED:
        messages += [*user("And what does that say?"), *step("status", text), ChatMessage.from_assistant("I see.")]
    for number in range(10):
        messages += [*traffic(random, 8, number), *user("And now?")]
        messages = compactor.compact(messages, target, COUNTER)
        assert COUNTER.count(messages) <= target
        (summary,) = [told_by(message) for message in messages if is_summary(message)]
        assert summary.startswith("The user and the assistant look after services together.")
        assert [value for value in (*PLANTED.values(), *RETURNED.values()) if value not in summary] == []
        facts = summary[summary.index("# Exact facts") :]
        assert COUNTER.count_text(facts) <= 512
    assert len(model.requests) == 10


def test_a_correction_reaches_the_list_in_a_later_pass():
    compactor, messages = SummarizationCompactor(forgetful()), [ChatMessage.from_system("You look after services.")]
    random = Random(1)
    said = [
        "The staging database listens on port 40321.",
        "Correction: the staging database listens on port 51877 now.",
    ]
    for number in range(4):
        messages += [*user(said[number // 2]), ChatMessage.from_assistant("Noted."), *traffic(random, 8, number)]
        messages = compactor.compact([*messages, *user("And now?")], 1200, COUNTER)
        (summary,) = [told_by(message) for message in messages if is_summary(message)]
        assert ("40321" in summary, "51877" in summary) == ((True, False) if number < 2 else (False, True))


def test_what_an_earlier_stage_removed_is_listed_too():
    said = [ChatMessage.from_system("You look after services."), *user(*PLANTED), *traffic(Random(1), 20, 0)]
    pruned = step("status", next(iter(RETURNED)))
    original = [*said[:3], *pruned, *said[3:], *user("And now?")]
    with entered(PassContext(original=original)):
        result = SummarizationCompactor(forgetful()).compact([*said, original[-1]], 1200, COUNTER)
    (summary,) = [told_by(message) for message in result if is_summary(message)]
    assert "krill-404" in summary[summary.index("# Exact facts") :]


def test_two_summaries_do_not_list_the_same():
    random = Random(3)
    messages = [ChatMessage.from_system("You look after services."), *user("The order is ORD-4471-B, as agreed.")]
    messages += [
        *traffic(random, 10, 0),
        *user("Find it."),
        *step("find", "ORD-4471-B is in row 88 of the table", call_id="f"),
    ]
    for number in range(20):
        messages += step(
            "read_log", f"{random.randrange(16**8):08x} handled, all checks passed " * 10, call_id=f"t{number}"
        )
    compactor = SummarizationCompactor(forgetful())
    for _ in range(2):
        messages = compactor.compact(messages, 900, COUNTER)
        told = [told_by(message) for message in messages if is_summary(message)]
        assert len(told) == 2
        assert "".join(told).count("ORD-4471-B") == 1
        messages = [*messages, *traffic(random, 10, 1)[1:3] * 12]


def test_the_list_can_be_left_out():
    random = Random(1)
    messages = [ChatMessage.from_system("You look after services."), *user(*PLANTED), *traffic(random, 20, 0)]
    compactor = SummarizationCompactor(forgetful(), exact_facts_tokens=0)
    result = compactor.compact([*messages, *user("And now?")], 1200, COUNTER)
    (summary,) = [told_by(message) for message in result if is_summary(message)]
    assert "# Exact facts" not in summary


def test_a_list_is_read_when_a_digest_stands_in_later():
    random = Random(2)
    replies = [ChatMessage.from_assistant("The user and the assistant look after services, and all is well.")]
    model = ScriptedChatGenerator(lambda number, messages: replies[number])
    messages = [ChatMessage.from_system("You look after services."), *user(*PLANTED), *traffic(random, 20, 0)]
    compactor = SummarizationCompactor(model)
    messages = compactor.compact([*messages, *user("And now?")], 1200, COUNTER)
    messages = compactor.compact([*messages, *traffic(random, 20, 1), *user("And now?")], 1200, COUNTER)
    (summary,) = [told_by(message) for message in messages if is_summary(message)]
    assert "# Exact facts" not in summary
    assert all(value in summary for value in PLANTED.values())
