# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Rules that pin messages hold for every compactor, in the hook, in chains, and for the last resort."""

import pytest
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction import SlidingWindowCompactor as HaystackWindow
from samples import ScriptedChatGenerator, chat, run_of, step

from haystack_compaction import (
    CompactingChatGenerator,
    CompactionHook,
    ContextWindowError,
    HybridCompactor,
    ImportanceScoringCompactor,
    PinRules,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    pin,
)
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.pairing import pairs_are_intact

STRATEGIES = [
    SlidingWindowCompactor,
    SummarizationCompactor,
    SelectivePruningCompactor,
    ToolResultPruningCompactor,
    ImportanceScoringCompactor,
    TruncationCompactor,
    HybridCompactor,
]


def is_long_and_from_the_user(message: ChatMessage) -> bool:
    return message.is_from("user") and len(message.text) > 900


#: Each rule with a message that it pins, and one that it does not.
RULES = {
    "text": (
        PinRules(texts=[r"(?i)\bnever\b"]),
        [ChatMessage.from_user("NEVER restart a service. " * 40)],
        [ChatMessage.from_user("nevertheless " * 40)],
    ),
    "tool": (PinRules(tools=["read_policy"]), step("read_policy", "closed on Fridays " * 40), step("read", "x " * 99)),
    "meta": (
        PinRules(meta_keys=["legal_hold"]),
        [ChatMessage.from_user("The contract. " * 50, meta={"legal_hold": True})],
        [ChatMessage.from_user("The contract. " * 50, meta={"legal_hold": False})],
    ),
    "function": (
        PinRules(predicate=is_long_and_from_the_user),
        [ChatMessage.from_user("word " * 190)],
        [ChatMessage.from_user("word " * 20)],
    ),
}


def conversation_with(messages):
    return [*chat(3)[:-1], *messages, ChatMessage.from_assistant("Noted."), *chat(3)[1:], *run_of(6)[2:]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.strategy)
def test_what_a_rule_holds_for_survives_every_strategy_as_it_is(strategy, rule):
    rules, pinned, _ = RULES[rule]
    messages = conversation_with(pinned)
    compacted = strategy(pinned=rules).run(messages=messages, target_tokens=150)["messages"]
    identities = list(map(id, compacted))
    assert [id(message) for message in pinned if id(message) in identities] == list(map(id, pinned))
    assert pairs_are_intact(compacted)
    assert all("pinned" not in message.meta for message in compacted)


@pytest.mark.parametrize("rule", RULES)
def test_and_what_it_does_not_hold_for_goes(rule):
    rules, _, free = RULES[rule]
    compacted = SlidingWindowCompactor(pinned=rules).run(messages=conversation_with(free), target_tokens=150)[
        "messages"
    ]
    assert not {id(message) for message in free} & {id(message) for message in compacted}


@pytest.mark.parametrize("where", ["hook", "compactor", "generator"])
@pytest.mark.parametrize("compactor", [SlidingWindowCompactor, HybridCompactor, HaystackWindow])
def test_rules_hold_in_the_fronts_and_for_the_last_resort(where, compactor):
    if compactor is HaystackWindow and where == "compactor":
        pytest.skip("Haystack's compactor knows no rules")
    rules, pinned, _ = RULES["tool"]
    made = compactor(pinned=rules) if where == "compactor" else compactor()
    pins = None if where == "compactor" else rules
    # The newest result alone is larger than the window, so that only the last resort helps.
    messages = [*conversation_with(pinned), *step("read_log", "checks passed " * 3_000)]
    if where == "generator":
        inner = ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant("Done."))
        CompactingChatGenerator(inner, made, context_window=1_200, pinned=pins).run(messages=messages)
        sent = inner.requests[-1]
    else:
        state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": list(messages)})
        CompactionHook(made, context_window=1_200, pinned=pins).run(state)
        sent = state.data["messages"]
    assert len(sent) < len(messages)
    assert [message for message in sent if message in pinned] == pinned


def test_pins_that_exceed_the_window_are_named_with_the_excess():
    rules = PinRules(tools=["read_policy"])
    messages = [*run_of(3)[:2], *step("read_policy", "closed on Fridays " * 1_000)]
    state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": messages})
    with pytest.raises(ContextWindowError, match=r"pinned messages alone take \d+ tokens, \d+ more than the window"):
        CompactionHook(SlidingWindowCompactor(pinned=rules), context_window=1_000).run(state)


def test_what_compaction_wrote_is_never_pinned_by_a_rule():
    rules = PinRules(predicate=lambda message: message.is_from("user") and "summary" in (message.text or "").lower())
    compactor = SummarizationCompactor(pinned=rules)
    messages = chat(12)
    for _ in range(4):
        messages = compactor.run(messages=[*messages, *chat(6)[1:]], target_tokens=500)["messages"]
        assert sum(map(is_note, messages)) <= 2


def test_a_function_that_fails_pins_nothing(caplog):
    rules = PinRules(predicate=lambda message: message.text.startswith("Never"))
    messages = conversation_with(step("read_log", "fine " * 100))
    compacted = SlidingWindowCompactor(pinned=rules).run(messages=messages, target_tokens=150)["messages"]
    assert len(compacted) < len(messages)
    assert "pins nothing" in caplog.text


def test_rules_and_marks_survive_storage(monkeypatch):
    monkeypatch.setenv("HAYSTACK_DESERIALIZATION_ALLOWLIST", __name__)
    rules = PinRules(texts=["a+"], tools=["t"], meta_keys=["k"], predicate=is_long_and_from_the_user)
    assert PinRules.from_dict(rules.to_dict()) == rules
    hook = CompactionHook(SlidingWindowCompactor(pinned=rules), context_window=100, pinned=rules)
    loaded = CompactionHook.from_dict(hook.to_dict())
    assert loaded.pinned == loaded.compactor.pinned == rules
    marked = pin(ChatMessage.from_user("Never."))
    assert ChatMessage.from_dict(marked.to_dict()).meta["pinned"] is True
    # OpenAI's format has no place for the mark; a rule finds the message all the same.
    stored = ChatMessage.from_openai_dict_format(marked.to_openai_dict_format())
    assert PinRules(texts=["Never"]).hold_for(stored)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"texts": "never"}, "`texts` must be a list of strings, got 'never'"),
        ({"texts": ["("]}, r"`texts` must hold regular expressions, got '\('"),
        ({"tools": [1]}, "`tools` must be a list of strings"),
        ({"predicate": "never"}, "`predicate` must be a function"),
    ],
)
def test_bad_rules_are_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        PinRules(**options)


@pytest.mark.parametrize(
    "make",
    [
        lambda pinned: SlidingWindowCompactor(pinned=pinned),
        lambda pinned: CompactionHook(SlidingWindowCompactor(), context_window=9, pinned=pinned),
        lambda pinned: CompactingChatGenerator(None, context_window=9, pinned=pinned),
    ],
)
def test_what_are_no_rules_is_refused(make):
    with pytest.raises(ValueError, match=r"`pinned` must be `PinRules\(...\)`, got \['never'\]"):
        make(["never"])
