# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What stands where in a conversation: head, turns, steps, current task, notes, pins."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from haystack.dataclasses import ChatMessage, ChatRole, ReasoningContent, TextContent, ToolCall

from haystack_compaction.conversation.notes import (
    COMPACTION_META_KEY,
    CURRENT_TASK_META_KEY,
    PINNED_META_KEY,
    is_note,
    is_omission_note,
    is_pinned,
)


class Conversation:
    """
    A conversation taken apart into the units that compaction may keep or remove, each by its message indexes.

    - **head**: the system messages it opens with.
    - **turns**: the history between head and current task. A turn is a user message and everything up to the next
      one. What an assistant says before any user message counts as a turn of its own, the oldest.
    - **current task**: the last real user message and everything after it. A message in the user's name that comes
      while a tool loop is running (an explanation, a reminder that a hook slips in) is a *nudge*: it belongs to the
      task and does not replace it.
    - **steps**: the current task's assistant messages, each with the results of its calls and the nudges before it.
    - **notes**: what compaction wrote earlier. Part of no unit.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.conversation.structure import Conversation

    conversation = Conversation([
        ChatMessage.from_system("Be brief."),
        ChatMessage.from_user("Hello"),
        ChatMessage.from_assistant("Hi"),
        ChatMessage.from_user("What is a tide?"),
        ChatMessage.from_assistant("The sea rising and falling."),
    ])
    assert conversation.turns == [range(1, 3)]
    assert conversation.task_index == 3
    assert conversation.steps == [range(4, 5)]
    ```

    :param messages: The messages, oldest to newest, with intact tool pairs (see `repair_tool_pairs`).
    """

    messages: Sequence[ChatMessage]
    head_end: int
    task_index: int | None
    turns: list[range]
    steps: list[range]
    notes: list[int]
    #: Indexes of messages that no strategy may touch: pins with what they need around them, system messages after the
    #: head, the newest nudge, and whatever waits for an answer at the end.
    protected: set[int]

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.messages = messages
        self.head_end = _head_end(messages)
        self.notes = []
        self.protected = {index for index in range(self.head_end) if is_pinned(messages[index])}
        pinned: list[int] = []
        turn_starts: list[int] = []
        marked_task: int | None = None
        system, user, assistant, tool = ChatRole.SYSTEM, ChatRole.USER, ChatRole.ASSISTANT, ChatRole.TOOL
        in_tool_loop = False
        follows_user = False
        # Haystack's own fields rather than its properties: this is the one walk over the whole conversation, and its
        # cost is most of what a strategy costs beyond counting.
        for index in range(self.head_end, len(messages)):
            message = messages[index]
            role, meta = message._role, message._meta
            if meta:
                if meta.get(PINNED_META_KEY) is True:
                    pinned.append(index)
                if COMPACTION_META_KEY in meta and is_note(message):
                    self.notes.append(index)
                    # A note right behind a user message stands where the first steps of its tool loop were.
                    in_tool_loop = in_tool_loop or follows_user
                    continue
                if role is user and meta.get(CURRENT_TASK_META_KEY) is True:
                    marked_task = index
                    turn_starts.append(index)
                    follows_user = True
                    continue
            if role is assistant:
                in_tool_loop = not _is_final_reply(message)
            elif role is tool:
                in_tool_loop = True
            elif role is user:
                if not in_tool_loop or not turn_starts:
                    turn_starts.append(index)
            elif role is system:
                self.protected.add(index)
            follows_user = role is user
        self.task_index = marked_task if marked_task is not None else (turn_starts[-1] if turn_starts else None)
        self.turns = self._turns(turn_starts)
        self.steps = self._steps()
        self.protected.update(self._with_context(pinned))

    @property
    def head(self) -> range:
        """The indexes of the system messages that the conversation opens with."""
        return range(self.head_end)

    def removable(self, units: Iterable[range]) -> list[list[int]]:
        """
        What may go of the given units: everything but notes and protected messages.

        :param units: Ranges of message indexes.
        :returns: For each unit the indexes of the messages that may be removed, never empty.
        """
        kept = self.protected.union(self.notes)
        if not kept:
            return [list(unit) for unit in units if unit]
        removable = ([index for index in unit if index not in kept] for unit in units)
        return [unit for unit in removable if unit]

    def removable_turns(self, *, preserve_recent_turns: int) -> list[list[int]]:
        """
        What may go of the history, oldest turn first.

        :param preserve_recent_turns: How many of the newest turns stay whatever the target.
        :returns: For each turn the indexes of the messages that may be removed, never empty.
        """
        return self.removable(self.turns[: max(len(self.turns) - preserve_recent_turns, 0)])

    def removable_steps(self, *, min_keep_steps: int) -> list[list[int]]:
        """
        What may go of the current task, in the order in which it may go.

        That is oldest step first, with one exception: a step that opens a tool loop with reasoning goes after the steps
        that follow without any, since Anthropic wants the running loop to begin with its signed thinking block.

        :param min_keep_steps: How many of the newest completed steps stay whatever the target.
        :returns: For each step the indexes of the messages that may be removed, never empty.
        """
        completed = self.steps[:-1] if self._last_step_is_pending() else self.steps
        removable = completed[: max(len(completed) - min_keep_steps, 0)]
        ordered: list[range] = []
        opener: range | None = None
        for step in removable:
            if self._opens_with_reasoning(step):
                ordered.extend([opener] if opener is not None else [])
                opener = step
            elif opener is not None and self._begins_new_loop(step):
                ordered.extend([opener, step])
                opener = None
            else:
                ordered.append(step)
        if opener is not None and not self._needs_opener(self.steps[len(removable) :]):
            ordered.append(opener)
        return self.removable(ordered)

    def foldable_notes(self, *, omission_notes: bool) -> list[int]:
        """
        The notes that a newer one may take the place of, unless they are pinned.

        :param omission_notes: Whether to return the notes that only count what was removed, or the others, summaries.
        :returns: Their indexes, oldest first.
        """
        unpinned = [index for index in self.notes if index not in self.protected]
        return [index for index in unpinned if is_omission_note(self.messages[index]) is omission_notes]

    def _turns(self, turn_starts: list[int]) -> list[range]:
        if self.task_index is None:
            return []
        starts = [start for start in turn_starts if start <= self.task_index]
        before = range(self.head_end, starts[0])
        if any(self.messages[index].role in (ChatRole.ASSISTANT, ChatRole.TOOL) for index in before):
            starts.insert(0, self.head_end)
        return [range(start, end) for start, end in pairwise(starts)]

    def _steps(self) -> list[range]:
        """The steps of the current task. Protects its newest nudge, and the nudges that nothing has answered yet."""
        messages, notes = self.messages, set(self.notes)
        steps: list[range] = []
        nudges: list[int] = []
        start = index = self.head_end if self.task_index is None else self.task_index + 1
        while index < len(messages):
            role = messages[index]._role
            if role is ChatRole.USER and index not in notes:
                nudges.append(index)
            index += 1
            if role is ChatRole.ASSISTANT:
                while index < len(messages) and messages[index]._role is ChatRole.TOOL:
                    index += 1
                steps.append(range(start, index))
                start = index
        self.protected.update(nudges[-1:], (nudge for nudge in nudges if nudge >= start))
        return steps

    def _with_context(self, pinned: list[int]) -> set[int]:
        """Pinned messages, the steps of pinned calls and results, and the user messages such steps answer."""
        kept = set(pinned)
        for index in pinned:
            if self.messages[index].role not in (ChatRole.ASSISTANT, ChatRole.TOOL):
                continue
            start = index
            while start > self.head_end and self.messages[start].role is ChatRole.TOOL:
                start -= 1
            kept.add(start)
            end = start + 1
            while end < len(self.messages) and self.messages[end].role is ChatRole.TOOL:
                kept.add(end)
                end += 1
            while start > self.head_end and not self._is_user(start):
                start -= 1
            if self._is_user(start):
                kept.add(start)
        return kept

    def _is_user(self, index: int) -> bool:
        return self.messages[index].role is ChatRole.USER and index not in self.notes

    def _last_step_is_pending(self) -> bool:
        return bool(self.messages) and bool(self.messages[-1].tool_calls)

    def _opens_with_reasoning(self, step: range) -> bool:
        return any(isinstance(part, ReasoningContent) for index in step for part in self.messages[index]._content)

    def _begins_new_loop(self, step: range) -> bool:
        return any(self.messages[index].role is ChatRole.USER for index in step)

    def _needs_opener(self, kept_steps: list[range]) -> bool:
        """Whether the first of the kept steps continues a tool loop that an earlier step opened with reasoning."""
        first = kept_steps[:1]
        return any(not self._opens_with_reasoning(step) and not self._begins_new_loop(step) for step in first)


def _head_end(messages: Sequence[ChatMessage]) -> int:
    for index, message in enumerate(messages):
        if message.role is not ChatRole.SYSTEM or is_note(message):
            return index
    return len(messages)


def _is_final_reply(message: ChatMessage) -> bool:
    """Whether an assistant message ends a tool loop: it says something and calls nothing."""
    if message._meta and COMPACTION_META_KEY in message._meta:
        # It called tools before compaction took the calls.
        return False
    says_something = False
    for part in message._content:
        if isinstance(part, ToolCall):
            return False
        if isinstance(part, TextContent) and part.text and not part.text.isspace():
            says_something = True
    return says_something
