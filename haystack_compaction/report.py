# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What one pass did, in numbers."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from haystack_compaction.usage import added_usage


@dataclass(frozen=True)
class CompactionReport:
    """
    What one compaction did. Holds numbers and names, never a message's content, so it is safe to log.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import SlidingWindowCompactor

    result = SlidingWindowCompactor().run(messages=[ChatMessage.from_user("Hello")])
    assert not result["report"].compacted
    print(result["report"].reason)
    ```

    :param strategy: The name of the strategy that ran.
    :param compacted: Whether the conversation was replaced by a smaller one.
    :param tokens_before: The size before, in tokens, of all that is sent: messages and tool schemas.
    :param tokens_after: The size after, in the same tokens; equal to `tokens_before` when nothing changed.
    :param target_tokens: The size that was aimed for, in the same tokens.
    :param messages_before: The number of messages before.
    :param messages_after: The number of messages after.
    :param removed_messages: How many messages this pass removed.
    :param rewritten_messages: How many messages this pass replaced by a shorter version of themselves.
    :param reached_target: Whether `tokens_after` is at most `target_tokens`.
    :param repaired_messages: How many messages were put in, taken out, moved or changed before the pass, because
        providers would have rejected the history.
    :param stages: What each stage of a composed strategy did, in order; its tokens are those that the stage counted,
        without tool schemas and not yet corrected by what a provider reported.
    :param llm_calls: How often a model was called.
    :param llm_usage: The usage that these calls reported, summed up by key, as nested as they are.
    :param duration_seconds: How long the pass took.
    :param reason: Why nothing was compacted, or why the target was missed; None when all went well.
    :param conversation_id: The conversation under which an archive holds what was taken out; None without an archive.
    """

    strategy: str
    compacted: bool
    tokens_before: int
    tokens_after: int
    target_tokens: int
    messages_before: int
    messages_after: int
    removed_messages: int = 0
    rewritten_messages: int = 0
    repaired_messages: int = 0
    reached_target: bool = True
    stages: list[dict[str, Any]] = field(default_factory=list)
    llm_calls: int = 0
    llm_usage: dict[str, Any] = field(default_factory=dict)
    duration_seconds: float = 0.0
    reason: str | None = None
    conversation_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the report.

        :returns: A dictionary of plain values.
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactionReport":
        """
        Deserialize the report.

        :param data: What `to_dict` returned.
        :returns: The report.
        """
        return cls(**data)


def combined(first: CompactionReport | None, second: CompactionReport) -> CompactionReport:
    """
    Make one report of two compactions of the same conversation.

    :param first: The report of the first, if there was one.
    :param second: The report of the one that went on from there.
    :returns: What both came to; each of them is a stage.
    """
    if first is None:
        return second
    stages: list[dict[str, Any]] = [*(first.stages or [first.to_dict()]), second.to_dict()]
    reached_target = second.tokens_after <= first.target_tokens
    # What a token is may have been learned anew in between.
    scale = second.tokens_before / max(first.tokens_after, 1)
    return replace(
        first,
        compacted=first.compacted or second.compacted,
        tokens_before=round(first.tokens_before * scale),
        tokens_after=second.tokens_after,
        messages_after=second.messages_after,
        removed_messages=first.removed_messages + second.removed_messages,
        rewritten_messages=first.rewritten_messages + second.rewritten_messages,
        repaired_messages=first.repaired_messages + second.repaired_messages,
        reached_target=reached_target,
        stages=stages,
        llm_calls=first.llm_calls + second.llm_calls,
        llm_usage=added_usage(first.llm_usage, second.llm_usage),
        duration_seconds=first.duration_seconds + second.duration_seconds,
        reason=None if reached_target else first.reason,
    )
