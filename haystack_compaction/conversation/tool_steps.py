# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The steps in which tools were called, and what may be rewritten of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from haystack.dataclasses import ChatMessage, ChatRole, ReasoningContent, ToolCall, ToolCallResult

from haystack_compaction.conversation.notes import RECALL_TOOL_NAME
from haystack_compaction.conversation.structure import Conversation

# What integrations send again instead of, or beside, the content of an assistant message: Anthropic's blocks with
# server tools, Gemini's signatures. It is about the content as it was.
_REPLAY_META_KEYS = frozenset({"raw_content_for_server_tools", "thought_signatures"})


class ToolStep(NamedTuple):
    """
    An assistant message with tool calls that have been answered.

    :param assistant: The index of the assistant message.
    :param results: The indexes of the messages that answer its calls.
    :param in_current_task: Whether it belongs to the current task, whose tool loop may still be running.
    """

    assistant: int
    results: range
    in_current_task: bool


def tool_steps(conversation: Conversation) -> list[ToolStep]:
    """
    The tool-calling steps of the whole conversation, oldest first.

    :param conversation: The conversation.
    :returns: The steps, without the one whose calls have no results yet.
    """
    messages = conversation.messages
    task_index = len(messages) if conversation.task_index is None else conversation.task_index
    tool = ChatRole.TOOL
    steps: list[ToolStep] = []
    end = 0
    for index in [index for index, message in enumerate(messages) if message._role is tool]:
        if index >= end:
            end = index + 1
            while end < len(messages) and messages[end]._role is tool:
                end += 1
            steps.append(ToolStep(index - 1, range(index, end), index - 1 > task_index))
    return steps


def older_tool_steps(
    conversation: Conversation, steps: Sequence[ToolStep], *, min_keep_steps: int, preserve_recent_turns: int
) -> list[ToolStep]:
    """
    Those of the steps that a strategy may change.

    :param conversation: The conversation.
    :param steps: Its tool-calling steps, see `tool_steps`.
    :param min_keep_steps: How many of the newest tool-calling steps stay as they are, in the whole conversation.
    :param preserve_recent_turns: How many of the newest turns before the current task stay as they are.
    :returns: The steps; none that is pinned.
    """
    turns = conversation.turns[max(len(conversation.turns) - preserve_recent_turns, 0) :]
    preserved = range(turns[0].start, turns[-1].stop) if turns else range(0)
    older = [step for step in steps[: max(len(steps) - min_keep_steps, 0)] if step.assistant not in preserved]
    protected = conversation.protected
    return [step for step in older if protected.isdisjoint((step.assistant, *step.results))] if protected else older


def loop_openers(conversation: Conversation) -> set[int]:
    """
    The assistant messages that must stay for the running tool loop to begin with its signed thinking block.

    Anthropic answers 400 when it does not, see
    https://docs.claude.com/en/docs/build-with-claude/extended-thinking. Whether a nudge begins a new loop depends on
    what stands before it, so both the step that follows one and, where that has no reasoning, the step before it count.

    :param conversation: The conversation.
    :returns: The indexes of the messages; empty where the current task has no reasoning.
    """
    openers: set[int] = set()
    messages = conversation.messages
    first = conversation.steps[0].start if conversation.steps else len(messages)
    if not any(type(part) is ReasoningContent for message in messages[first:] for part in message._content):
        return openers
    previous: int | None = None
    reasons = False
    for step in conversation.steps:
        index = next(index for index in step if messages[index]._role is ChatRole.ASSISTANT)
        has_reasoning = any(isinstance(part, ReasoningContent) for part in messages[index]._content)
        reasons = reasons or has_reasoning
        follows_nudge = any(messages[before]._role is ChatRole.USER for before in range(step.start, index))
        if reasons and (previous is None or follows_nudge):
            openers.add(index if has_reasoning or previous is None else previous)
        previous = index
    return openers


def result_of(message: ChatMessage) -> ToolCallResult:
    """The result that a message holds. Where pairs are intact it is the only thing in it."""
    result = message._content[0]
    assert isinstance(result, ToolCallResult)
    return result


def is_recalled(part: object) -> bool:
    """Whether a part of a message is what the archive told: it is still there, and goes before anything else."""
    return isinstance(part, ToolCallResult) and part.origin.tool_name == RECALL_TOOL_NAME


def has_replay_data(message: ChatMessage) -> bool:
    """Whether the message's `meta` holds what a provider wants back as it was."""
    return not _REPLAY_META_KEYS.isdisjoint(message.meta)


def calls_need_reasoning(message: ChatMessage) -> bool:
    """Whether its calls are refused without its reasoning, as OpenAI's Responses API does with those it numbered."""
    return bool(message.reasonings) and any(call.extra for call in message.tool_calls)


def with_calls(
    message: ChatMessage, calls: Sequence[ToolCall], marks: Mapping[str, Any] | None = None
) -> ChatMessage | None:
    """
    Give an assistant message other calls. Reasoning and replay data go, they belonged to the calls it had.

    :param message: The assistant message. It is left as it is.
    :param calls: The calls that stand in the place of its own.
    :param marks: What is added to its `meta`.
    :returns: The new message, or None when nothing would be left of it.
    """
    rest = [part for part in message._content if not isinstance(part, (ReasoningContent, ToolCall))]
    content = [*rest, *calls]
    if not content:
        return None
    meta = {**without_replay_data(message), **marks} if marks else without_replay_data(message)
    return ChatMessage(message._role, content, message._name, meta)


def without_replay_data(message: ChatMessage) -> dict[str, Any]:
    """The message's `meta` without what a provider would be sent instead of its content."""
    if not message._meta:
        return {}
    return {key: value for key, value in message.meta.items() if key not in _REPLAY_META_KEYS}
