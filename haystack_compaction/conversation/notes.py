# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Writing and recognising the messages that compaction leaves behind, and the pins that it must respect."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from haystack.dataclasses import ChatMessage, ChatRole, TextContent

# The key and its first three fields are Haystack's own, so each side recognises the other's notes.
COMPACTION_META_KEY = "context_compaction"

# Beside the compaction key and not below it: Haystack takes that key's mere presence as "written by compaction".
PINNED_META_KEY = "pinned"

#: The tool with which a model reads what was archived.
RECALL_TOOL_NAME = "recall"

# Set for the length of one pass on the message that a run was started with, see `CompactionHook`.
CURRENT_TASK_META_KEY = "current_task"

# What Haystack's summarizer counts instead of `removed_messages`.
_HAYSTACK_SUMMARIZED = "summarized_messages"

_NUM_REMOVED = "{num_removed}"

# A number of removed messages that no conversation can have had.
_ABSURD = 10**9

# How much of the summaries that no longer fit lives on in an omission note, and how much of what a note of another
# strategy quotes of the assistant.
_CARRIED_CHARACTERS = 400

# How much of what the assistant said lives on in the notes of the strategy that cannot leave it where it was. It took
# the same room there.
_SAID_CHARACTERS = 20_000

SummaryScope = Literal["history", "task"]

# The tags that Haystack's own summaries stand in.
_SUMMARY_OPENING, _SUMMARY_CLOSING = "<conversation_summary>", "</conversation_summary>"
_SUMMARY_OF: dict[SummaryScope, str] = {
    "history": "Summary of the conversation up to here",
    "task": "Summary of the work on this task up to here",
}
_REFERENCE = f"[What was removed can be read with the tool `{RECALL_TOOL_NAME}`: reference {{}}, or a query.]"
_REFERENCES = re.compile(rf"\n?\[What was removed can be read with the tool `{RECALL_TOOL_NAME}`: [^\n\]]*\]")
_SUMMARY_TITLE = re.compile(r"\[Summary of [a-z ]+, in place of \d+ messages\. [^\n]*\]\n")


def pin(message: ChatMessage) -> ChatMessage:
    """
    Mark a message as one that no compactor may remove or rewrite.

    The mark is `meta["pinned"] = True`, so it survives `to_dict`/`from_dict` and pipeline serialization.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import pin

    rule = pin(ChatMessage.from_user("Never deploy on a Friday."))
    assert rule.meta["pinned"] is True
    ```

    :param message: The message to mark. It is left as it is.
    :returns: A copy of the message with the mark.
    """
    return replace(message, _meta={**message.meta, PINNED_META_KEY: True})


def is_pinned(message: ChatMessage) -> bool:
    """Whether the message carries the mark that `pin` sets."""
    return bool(message.meta) and message.meta.get(PINNED_META_KEY) is True


def is_note(message: ChatMessage) -> bool:
    """
    Whether compaction itself wrote the message: an omission note, a summary or a digest, of ours or of Haystack's.

    A pruned tool result carries the same meta key but still is the result of its call, hence the look at the role.
    """
    in_words = message.role in (ChatRole.USER, ChatRole.SYSTEM)
    return in_words and bool(message.meta) and COMPACTION_META_KEY in message.meta


def is_omission_note(message: ChatMessage) -> bool:
    """Whether the message is a note that only says how much was removed, and so may be folded into a newer one."""
    if not is_note(message):
        return False
    marker = _marker(message)
    return marker.get("kind") == "omission" or ("kind" not in marker and marker.get("strategy") == "sliding_window")


def is_summary(message: ChatMessage) -> bool:
    """Whether the message is a note that carries content, a summary or a digest, and so must not be lost."""
    return is_note(message) and not is_omission_note(message)


def written_by(message: ChatMessage) -> str | None:
    """The strategy that wrote a summary or a digest; None for any other message."""
    return str(_marker(message).get("strategy")) if is_summary(message) else None


def carries_content(message: ChatMessage) -> bool:
    """Whether the message is a note in which the content of earlier notes can live on."""
    return is_summary(message) or (is_omission_note(message) and bool(_carried_text(message)))


def omission_note(
    template: str,
    *,
    strategy: str,
    removed_messages: int,
    kept_messages: int,
    removed_calls: Mapping[str, int] | None = None,
    said: Sequence[str] = (),
    folded: Sequence[ChatMessage] = (),
) -> ChatMessage:
    """
    Write the note that stands where messages were removed.

    It comes from the user, since not every provider takes a system message inside a conversation.

    :param template: The text; `{num_removed}` is replaced, any other brace is left alone.
    :param strategy: The name of the strategy that removed the messages.
    :param removed_messages: How many messages this pass removed, without the folded notes.
    :param kept_messages: How many messages the compacted conversation has, without the note.
    :param removed_calls: How many calls of each tool are to be named as removed, by the name of the tool.
    :param said: What the assistant said that is not to be lost with its message; it lives on in the text.
    :param folded: Earlier notes that give way to this one. What they stand for is added to the numbers, and the
        beginning of a summary among them lives on in the text.
    :returns: The note, marked in its `meta`.
    """
    markers = [_marker(note) for note in folded]
    total = removed_messages + sum(map(_removed_messages, markers))
    calls = Counter(removed_calls or {}) + _removed_calls(markers)
    quoted = _quoted(said, [marker for marker in markers if "said" in marker], strategy)
    carried = "\n".join(filter(None, map(_carried_text, folded)))[:_CARRIED_CHARACTERS]
    # `replace` and not `format`: a user's template may hold braces of its own, such as a piece of JSON.
    lines = [template.replace(_NUM_REMOVED, str(total)), _call_line(calls), _said_line(quoted), carried]
    text = "\n".join(filter(None, lines))
    marker = {"strategy": strategy, "removed_messages": total, "kept_messages": kept_messages, "kind": "omission"}
    if calls:
        marker["removed_calls"] = dict(calls)
    if quoted:
        marker["said"] = quoted
    if carried:
        marker["carried"] = carried
    return ChatMessage.from_user(text, meta={COMPACTION_META_KEY: marker})


def _marker(note: ChatMessage) -> Mapping[str, Any]:
    """What a note says about itself. Third parties write what they like there."""
    marker = note.meta[COMPACTION_META_KEY]
    return marker if isinstance(marker, Mapping) else {}


def _carried_text(note: ChatMessage) -> str:
    """What of a folded note lives on: the text of a summary, or what an omission note carries already."""
    return str(_marker(note).get("carried", "")) if is_omission_note(note) else told_by(note)


def _removed_messages(marker: Mapping[str, Any]) -> int:
    return _number(marker.get("removed_messages", marker.get(_HAYSTACK_SUMMARIZED)))


def _removed_calls(markers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    calls: Counter[str] = Counter()
    for earlier in (marker.get("removed_calls") for marker in markers):
        if isinstance(earlier, Mapping):
            calls.update({tool: _number(number) for tool, number in earlier.items()})
    return calls


def _call_line(calls: Mapping[str, int]) -> str:
    names = ", ".join(f"{tool} x{number}" for tool, number in calls.items())
    return f"Tool calls among them: {names}." if calls else ""


def _quoted(said: Sequence[str], markers: Sequence[Mapping[str, Any]], strategy: str) -> str:
    """What earlier notes quote and what is new. Of too much the oldest goes; other strategies make room."""
    own = [str(marker["said"]) for marker in markers if marker.get("strategy") == strategy]
    others = [str(marker["said"])[-_CARRIED_CHARACTERS:] for marker in markers if marker.get("strategy") != strategy]
    return "\n".join([*others, *own, *said])[-_SAID_CHARACTERS:]


def _said_line(quoted: str) -> str:
    return f"The assistant said between them:\n{quoted}" if quoted else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < _ABSURD else 0


def summary_note(
    text: str,
    *,
    strategy: str,
    removed_messages: int,
    kept_messages: int,
    scope: SummaryScope,
    folded: Sequence[ChatMessage] = (),
) -> ChatMessage:
    """
    Write the note that tells what the messages said that it takes the place of.

    It comes from the user like an omission note, and stands in the tags that Haystack's own summaries stand in.

    :param text: The summary.
    :param strategy: The name of the strategy as it is to stand in the marker.
    :param removed_messages: How many messages this pass removed, without the folded notes.
    :param kept_messages: How many messages the compacted conversation has, without the notes of this pass.
    :param scope: "history" for what came before the current task, "task" for the steps of the current task.
    :param folded: Earlier notes that give way to this one. What they counted is added to the numbers; what they tell is
        left to whoever writes the text, see `told_by`.
    :returns: The note, marked in its `meta`.
    """
    markers = [_marker(note) for note in folded]
    total = removed_messages + sum(map(_removed_messages, markers))
    marker = {
        "strategy": strategy,
        "removed_messages": total,
        "kept_messages": kept_messages,
        "kind": "summary",
        "scope": scope,
    }
    if calls := _removed_calls(markers):
        marker["removed_calls"] = dict(calls)
    title = f"[{_SUMMARY_OF[scope]}, in place of {total} messages. It is a record and no new request.]"
    return ChatMessage.from_user(
        f"{_SUMMARY_OPENING}\n{title}\n{_without_tags(text)}\n{_SUMMARY_CLOSING}", meta={COMPACTION_META_KEY: marker}
    )


def told_by(note: ChatMessage) -> str:
    """
    Return what a note tells beyond its numbers, without the frame around it.

    :param note: A note of ours, of Haystack's or of anybody's.
    :returns: The text of a summary; of an omission note the calls it names, and what it carries of summaries and of
        what the assistant said.
    """
    if is_omission_note(note):
        calls, quoted = _removed_calls([_marker(note)]), str(_marker(note).get("said", ""))
        return "\n".join(filter(None, [_call_line(calls), _said_line(quoted), _carried_text(note)]))
    text = _REFERENCES.sub("", _without_tags(note.text or ""))
    return _SUMMARY_TITLE.sub("", text, count=1).strip()


def with_reference(note: ChatMessage, reference: str) -> ChatMessage:
    """
    Tell in a note how the model can read what is no longer there.

    :param note: The note. It is left as it is.
    :param reference: What the tool that reads the archive is to be called with.
    :returns: A copy of the note with a line about that at its end.
    """
    text = _REFERENCES.sub("", note.text or "")
    return replace(note, _content=[TextContent(f"{text}\n{_REFERENCE.format(reference)}")])


def _without_tags(text: str) -> str:
    return text.replace(_SUMMARY_OPENING, "").replace(_SUMMARY_CLOSING, "").strip()
