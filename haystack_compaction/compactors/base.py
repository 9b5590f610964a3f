# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What every compactor promises, as a pipeline node and wherever else it runs."""

import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from haystack import component, logging
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction import lifecycle
from haystack_compaction.archive.protocol import Archive
from haystack_compaction.archive.writer import OnFailure, require_archiving
from haystack_compaction.checks import given, require_at_least, require_flags, require_messages, require_method
from haystack_compaction.compaction_pass import Step, run_passes, run_passes_async
from haystack_compaction.compactors.model_calls import ModelCaller, Rewriting, drive, drive_async
from haystack_compaction.compactors.pipeline_run import PipelineRun
from haystack_compaction.conversation.marks import MarkedMessages
from haystack_compaction.conversation.pins import PinRules, require_pin_rules
from haystack_compaction.conversation.repair import is_valid, repaired
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.ledger import TokenLedger

logger = logging.getLogger(__name__)


# What a pipeline node compacts down to, as a share of what it compacts at.
_DEFAULT_TARGET = 0.8

# What `@component` gives to an instance of the class that it decorates.
_SOCKETS = ("__haystack_input__", "__haystack_output__")


class CompactorOptions(TypedDict, total=False):
    """The options that every compactor takes; `Compactor` describes them."""

    preserve_recent_turns: int
    preserve_system_prompt: bool
    pinned: PinRules | None
    trigger_threshold_tokens: int
    target_tokens: int | None
    token_counter: TokenCounter | None
    repair: bool
    merge_notes: bool
    archive: Archive | None
    on_archive_failure: OnFailure


class Compactor:
    """
    Base class of all compactors. A strategy is a subclass with one method, `rewrite`, and the `@component` decorator.

    The base class keeps the promises that do not depend on the strategy: a conversation that fits is left alone, a
    broken one is repaired before the strategy sees it, a result that is no smaller is discarded, the caller's list is
    never changed. It also is the pipeline node (`run`) and writes and reads the YAML.

    ### Usage example

    ```python
    from haystack import component
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import Compactor
    from haystack_compaction.conversation.structure import Conversation
    from haystack_compaction.tokens.ledger import TokenLedger

    @component
    class LastTurnCompactor(Compactor):
        '''Keeps the head and the current task, nothing else.'''

        strategy = "last_turn"

        def rewrite(
            self, conversation: Conversation, target_tokens: int, ledger: TokenLedger
        ) -> list[ChatMessage] | None:
            gone = {index for turn in conversation.removable_turns(preserve_recent_turns=0) for index in turn}
            return [message for index, message in enumerate(conversation.messages) if index not in gone]

    compactor = LastTurnCompactor(trigger_threshold_tokens=20, target_tokens=10)
    messages = [ChatMessage.from_user("What is a tide? " * 10), ChatMessage.from_assistant("Water, moving. " * 10)]
    result = compactor.run(messages=[*messages, ChatMessage.from_user("Thanks!")])
    assert [message.text for message in result["messages"]] == ["Thanks!"]
    ```

    :param preserve_recent_turns: How many of the newest complete turns before the current task stay whatever the
        target, at least 0.
    :param preserve_system_prompt: Whether the system messages that open the conversation always stay.
    :param pinned: Rules by which messages are pinned, besides those that are marked with `pin`.
    :param trigger_threshold_tokens: For the pipeline node: the size in tokens, tool schemas included, from which on
        it compacts. At least 1.
    :param target_tokens: For the pipeline node: the size in tokens, tool schemas included, that it compacts down to.
        At least 1 and at most `trigger_threshold_tokens`; None for 80 % of that.
    :param token_counter: For the pipeline node: what measures the conversation; None for `EstimateTokenCounter`.
        Inside an Agent the hook's counter is used.
    :param repair: For the pipeline node: whether tool calls and results are put in order and blank texts filled, also
        when nothing is compacted. Calls at the very end that have no results yet are left alone.
    :param merge_notes: For the pipeline node: whether a note goes into the user message beside it instead of standing
        alone, for chat templates that demand that user and assistant alternate.
    :param archive: For the pipeline node: where messages go before they are dropped; None to keep them nowhere.
    :param on_archive_failure: For the pipeline node: what to do when the archive can't take them. "keep": hand the
        conversation through as it is; "drop": compact all the same; "raise": raise an `ArchiveError`.
    :raises ValueError: If an option is out of its range.
    """

    #: The name of the strategy, as `CompactionConfig` knows it and as reports and notes carry it.
    strategy: ClassVar[str] = "custom"

    #: The share of a model's window that a hook or chat generator compacts down to with this compactor, unless told. In
    #: windows of less than 30,000 tokens it is more, up to 0.4, so that 6,000 tokens are left.
    compact_to: float = 0.4

    def __init__(
        self,
        *,
        preserve_recent_turns: int = 0,
        preserve_system_prompt: bool = True,
        pinned: PinRules | None = None,
        trigger_threshold_tokens: int = 100_000,
        target_tokens: int | None = None,
        token_counter: TokenCounter | None = None,
        repair: bool = True,
        merge_notes: bool = False,
        archive: Archive | None = None,
        on_archive_failure: OnFailure = "keep",
    ) -> None:
        require_at_least(0, preserve_recent_turns=preserve_recent_turns)
        require_at_least(1, trigger_threshold_tokens=trigger_threshold_tokens)
        if target_tokens is None:
            target_tokens = max(int(trigger_threshold_tokens * _DEFAULT_TARGET), 1)
        require_at_least(1, target_tokens=target_tokens)
        if target_tokens > trigger_threshold_tokens:
            raise ValueError(
                f"`target_tokens` must be at most `trigger_threshold_tokens`, got target_tokens={target_tokens} and "
                f"trigger_threshold_tokens={trigger_threshold_tokens}. Lower the one or raise the other."
            )
        require_flags(preserve_system_prompt=preserve_system_prompt, repair=repair, merge_notes=merge_notes)
        require_method("count", **given(token_counter=token_counter))
        require_pin_rules(pinned=pinned)
        require_archiving(archive, on_archive_failure)
        self.preserve_recent_turns = preserve_recent_turns
        self.preserve_system_prompt = preserve_system_prompt
        self.pinned = pinned
        self.trigger_threshold_tokens = trigger_threshold_tokens
        self.target_tokens = target_tokens
        self.token_counter = token_counter
        self.repair = repair
        self.merge_notes = merge_notes
        self.archive = archive
        self.on_archive_failure = on_archive_failure
        self._ledger = TokenLedger(token_counter)
        self._callers_ledger: TokenLedger | None = None
        #: Set by strategies that call a model.
        self._model: ModelCaller | None = None

    if not TYPE_CHECKING:
        # Of a class without `@component` a pipeline would say no more than that it lacks an attribute nobody knows.
        def __getattr__(self, name: str) -> Any:
            known = f"'{type(self).__name__}' object has no attribute '{name}'"
            told = f"`{type(self).__name__}` is no component of a pipeline. Decorate the class with `@component`."
            raise AttributeError(told if name in _SOCKETS else known)

    def rewrite(
        self, conversation: Conversation, target_tokens: int, ledger: TokenLedger
    ) -> list[ChatMessage] | Rewriting | None:
        """
        Return a shorter conversation. This is what a strategy is.

        :param conversation: The conversation, valid and taken apart. Larger than the target.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, kept ones as the same objects and in the same order, or None when there is
            nothing to gain. A strategy that calls a model returns a generator instead, see `Rewriting`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `rewrite`.")

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Return a shorter conversation, or None when it fits already or nothing may go.

        This is the method that Haystack's `CompactionHook` and ours call.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: The size to come under, in tokens. A goal: what may not be removed stays even so.
        :param token_counter: What measures the messages.
        :returns: A new list that is smaller by the counter, or None.
        """
        return drive(self._compaction(messages, target_tokens, token_counter), self._model)

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Do what `compact` does, without blocking the event loop.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: The size to come under, in tokens.
        :param token_counter: What measures the messages.
        :returns: A new list that is smaller by the counter, or None.
        """
        return await drive_async(self._compaction(messages, target_tokens, token_counter), self._model)

    @component.output_types(messages=list[ChatMessage], report=CompactionReport)
    def run(
        self,
        messages: list[ChatMessage],
        target_tokens: int | None = None,
        tools: ToolsType | None = None,
        conversation_id: str | None = None,
    ) -> dict[str, Any]:
        """
        Compact a conversation that has reached the trigger, and hand any other through.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: Compact to this many tokens now, whatever the trigger. At least 1.
        :param tools: The tools whose schemas will be sent along, and so take room too.
        :param conversation_id: What the archive holds the conversation under; None to make an id, which stands in the
            report.
        :returns: A dictionary with `messages`, the conversation to go on with, and `report`, a `CompactionReport`.
        :raises ValueError: If `messages` is no list of messages, or `target_tokens` is less than 1.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        """
        return run_passes(self._passes(messages, target_tokens, tools, conversation_id))

    @component.output_types(messages=list[ChatMessage], report=CompactionReport)
    async def run_async(
        self,
        messages: list[ChatMessage],
        target_tokens: int | None = None,
        tools: ToolsType | None = None,
        conversation_id: str | None = None,
    ) -> dict[str, Any]:
        """
        Do what `run` does, without blocking the event loop.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: Compact to this many tokens now, whatever the trigger. At least 1.
        :param tools: The tools whose schemas will be sent along, and so take room too.
        :param conversation_id: What the archive holds the conversation under; None to make an id, which stands in the
            report.
        :returns: A dictionary with `messages`, the conversation to go on with, and `report`, a `CompactionReport`.
        :raises ValueError: If `messages` is no list of messages, or `target_tokens` is less than 1.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        """
        return await run_passes_async(self._passes(messages, target_tokens, tools, conversation_id))

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the compactor with all options of its constructor, nested components included.

        :returns: A dictionary that `from_dict` takes.
        """
        names = [*inspect.signature(type(self).__init__).parameters, *CompactorOptions.__annotations__]
        options = {name: getattr(self, name) for name in dict.fromkeys(names) if name not in ("self", "options")}
        return default_to_dict(self, **{name: _serialized(name, value) for name, value in options.items()})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Compactor":
        """
        Deserialize the compactor.

        :param data: What `to_dict` returned.
        :returns: The compactor.
        """
        options = data.get("init_parameters", {})
        for name, value in options.items():
            options[name] = _deserialized(value)
        compactor: Compactor = default_from_dict(cls, data)
        return compactor

    def resources(self) -> list[object]:
        """
        Return what has to be warmed up and closed: token counter, chat generator, archive.

        :returns: The resources; None among them is passed over.
        """
        return [self.token_counter, getattr(self, "chat_generator", None), self.archive]

    def warm_up(self) -> None:
        """Warm up the token counter and the chat generator, which may load a vocabulary or open a client."""
        lifecycle.warm_up(self.resources())

    async def warm_up_async(self) -> None:
        """Warm up the token counter and the chat generator on the serving event loop."""
        await lifecycle.warm_up_async(self.resources())

    def close(self) -> None:
        """Release the resources of the token counter and the chat generator."""
        lifecycle.close(self.resources())

    async def close_async(self) -> None:
        """Release the resources of the token counter and the chat generator, those of the event loop included."""
        await lifecycle.close_async(self.resources())

    def _compaction(self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter) -> Rewriting:
        ledger = self._ledger_for(token_counter).calibrated(messages)
        if not ledger.exceeds(messages, target_tokens):
            return None
        marks = MarkedMessages(messages, pins=[self.pinned] if self.pinned else ())
        marked = marks.messages
        valid = marked if is_valid(marked) else repaired(marked)
        compacted: list[ChatMessage] | Rewriting | None = valid
        if valid is marked or ledger.exceeds(valid, target_tokens):
            compacted = self.rewrite(Conversation(valid), target_tokens, ledger)
        if isinstance(compacted, Generator):
            compacted = yield from compacted
        if compacted is None:
            return None
        compacted = marks.unmarked(compacted)
        return compacted if ledger.is_smaller(compacted, messages) else None

    def _passes(
        self,
        messages: list[ChatMessage],
        target_tokens: int | None,
        tools: ToolsType | None,
        conversation_id: str | None,
    ) -> Generator[Step, Any, dict[str, Any]]:
        require_messages(messages)
        if target_tokens is not None:
            require_at_least(1, target_tokens=target_tokens)
        return PipelineRun(self, self._ledger, messages, target_tokens, tools, conversation_id).passes()

    def _ledger_for(self, token_counter: TokenCounter) -> TokenLedger:
        if isinstance(token_counter, TokenLedger):
            return token_counter
        # Remembered, because a hook that is not ours comes back with the same counter and mostly the same messages.
        if self._callers_ledger is None or self._callers_ledger.token_counter is not token_counter:
            self._callers_ledger = TokenLedger(token_counter)
        return self._callers_ledger


def _serialized(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_serialized(name, item) for item in value]
    return component_to_dict(obj=value, name=name) if hasattr(value, "to_dict") else value


def _deserialized(value: Any) -> Any:
    if isinstance(value, list):
        return [_deserialized(item) for item in value]
    if isinstance(value, dict) and "type" in value and "init_parameters" in value:
        holder = {"component": value}
        deserialize_component_inplace(holder, key="component")
        return holder["component"]
    return value
