# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, around any chat generator; and what to do when the provider finds a request too long even so."""

import inspect
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Any

from haystack import component
from haystack.components.generators.chat.types import ChatGenerator
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, StreamingCallbackT
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType
from haystack.utils.callable_serialization import deserialize_callable, serialize_callable
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction import lifecycle, overflow
from haystack_compaction.archive.protocol import Archive
from haystack_compaction.archive.writer import ArchiveWriter, OnFailure, require_archiving
from haystack_compaction.checks import given, require_at_least, require_functions, require_messages, require_method
from haystack_compaction.compaction_pass import Step, run_passes, run_passes_async
from haystack_compaction.compactors.hybrid import HybridCompactor
from haystack_compaction.conversation.pins import PinRules, require_pin_rules
from haystack_compaction.events import OnCompaction
from haystack_compaction.exchange import Exchange, Replies, Request
from haystack_compaction.known_conversations import KnownConversations
from haystack_compaction.models import window_size
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.window import Window, preferred_target
from haystack_compaction.window_guard import WindowGuard

_KNOWN_CONVERSATIONS = 64


@component
class CompactingChatGenerator:
    """
    A chat generator that keeps every request to another one inside the model's context window.

    It stands wherever the other one would, in a pipeline, in an Agent, inside another component, and takes and returns
    the same. Before a request it compacts the conversation when that is due, as `CompactionHook` does. A caller who
    comes back with the same messages and some more goes on from what they were compacted to. When the provider
    answers that the request is too long for the model, the conversation is compacted harder, down to the size that the
    error names where it names one, and sent again. Every other error passes through.

    A reply for which something was done says so in `meta["context_compaction_report"]`: the fields of
    `CompactionReport`, and `retries`, how often the provider refused.

    ### Usage example

    ```python
    from haystack.components.generators.chat import MockChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.chat_generator import CompactingChatGenerator

    generator = CompactingChatGenerator(MockChatGenerator("Half past noon."), context_window=500)
    messages = [ChatMessage.from_user("When is high tide? " * 50), ChatMessage.from_assistant("At noon. " * 100)]
    reply = generator.run(messages=[*messages, ChatMessage.from_user("And tomorrow?")])["replies"][0]
    report = reply.meta["context_compaction_report"]
    assert report["tokens_after"] < report["tokens_before"]
    ```

    :param chat_generator: The chat generator that is called.
    :param compactor: What rewrites the conversation: a compactor of this package, of Haystack or your own. None for
        `HybridCompactor` without a model.
    :param context_window: The model's context window in tokens, at least 1; or, with the extra `models`, the model's
        name.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0. None for what suits the
        compactor, see `Compactor.compact_to`; 0.4 with those of others.
    :param token_counter: What measures messages; None for `EstimateTokenCounter`.
    :param reserve_tokens: The tokens of the window kept free for the reply, at least 0; None for 5 % of the window.
    :param last_resort: Whether the largest contents are shortened, or the oldest messages removed where that is not
        enough, when a request would not fit even after a compaction.
    :param repair: Whether tool calls and results are put in order before each request, and blank texts filled.
    :param merge_notes: Whether a note goes into the user message beside it instead of standing alone, for chat
        templates that demand that user and assistant alternate, such as those of Mistral and Gemma.
    :param pinned: Rules by which messages are pinned, besides those marked with `pin` and the compactor's own rules.
    :param archive: Where messages go before they are dropped; None to keep them nowhere. See `conversation_id` of
        `run`.
    :param on_archive_failure: What to do when the archive can't take them. "keep": do without the compaction while the
        conversation fits the window, and afterwards as "drop"; "drop": compact, keep them in memory, and archive them
        with the next compaction; "raise": raise an `ArchiveError`.
    :param on_compaction: Called with the report of each compaction that was tried, a function or a coroutine function.
        When it fails, that is logged.
    :param max_retries: How often a refused request is compacted harder and sent again, at least 0.
    :param is_context_overflow: What tells from an error whether the request was too long; None for
        `haystack_compaction.overflow.is_context_overflow`, which knows the common providers.
    :raises ValueError: If a setting is out of its range, or no model of that name is known.
    :raises ImportError: If a model's name is given without the extra `models`.
    """

    def __init__(
        self,
        chat_generator: ChatGenerator,
        compactor: CompactorProtocol | None = None,
        *,
        context_window: int | str,
        compact_at: float = 0.7,
        compact_to: float | None = None,
        token_counter: TokenCounter | None = None,
        reserve_tokens: int | None = None,
        last_resort: bool = True,
        repair: bool = True,
        merge_notes: bool = False,
        pinned: PinRules | None = None,
        archive: Archive | None = None,
        on_archive_failure: OnFailure = "keep",
        on_compaction: OnCompaction | None = None,
        max_retries: int = 2,
        is_context_overflow: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self.compactor = HybridCompactor() if compactor is None else compactor
        size = window_size(context_window)
        self.window = Window(
            context_window=size,
            compact_at=compact_at,
            compact_to=preferred_target(self.compactor, size) if compact_to is None else compact_to,
            reserve_tokens=reserve_tokens,
            last_resort=last_resort,
            repair=repair,
            merge_notes=merge_notes,
        )
        require_at_least(0, max_retries=max_retries)
        require_pin_rules(pinned=pinned)
        require_archiving(archive, on_archive_failure)
        require_method("run", chat_generator=chat_generator)
        require_method("compact", **given(compactor=compactor))
        require_functions(**given(is_context_overflow=is_context_overflow))
        require_method("count", **given(token_counter=token_counter))
        require_functions(**given(on_compaction=on_compaction))
        self.pinned = pinned
        self.archive = archive
        self.on_archive_failure = on_archive_failure
        self.on_compaction = on_compaction
        self.chat_generator = chat_generator
        self.token_counter = EstimateTokenCounter() if token_counter is None else token_counter
        self.max_retries = max_retries
        self.is_context_overflow = is_context_overflow
        self._ledger = TokenLedger(self.token_counter)
        self._known = KnownConversations(_KNOWN_CONVERSATIONS)
        self._offer_further_inputs()

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        conversation_id: str | None = None,
        **further: Any,
    ) -> dict[str, list[ChatMessage]]:
        """
        Call the chat generator with a conversation that fits the model's context window.

        :param messages: The conversation, oldest to newest, or the text of a user message. It is left as it is.
        :param streaming_callback: Called with each chunk of the reply. Once it was, a request is not sent again.
        :param generation_kwargs: Passed on where given.
        :param tools: Passed on where given; their schemas take room in the window, too.
        :param conversation_id: What the archive holds the conversation under. Give one where several users share the
            generator. Without it, what begins with the same messages is the same conversation, and its id stands in
            the report in the reply's `meta`.
        :param further: Whatever else the chat generator takes; passed on.
        :returns: A dictionary with `replies`, what the chat generator replied.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        """
        inputs = {"generation_kwargs": generation_kwargs, "tools": tools, **further}
        return run_passes(self._exchange(messages, streaming_callback, conversation_id, **inputs))

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        conversation_id: str | None = None,
        **further: Any,
    ) -> dict[str, list[ChatMessage]]:
        """
        Do what `run` does, without blocking the event loop. A chat generator without `run_async` runs in a thread.

        :param messages: The conversation, oldest to newest, or the text of a user message. It is left as it is.
        :param streaming_callback: Called with each chunk of the reply. Once it was, a request is not sent again.
        :param generation_kwargs: Passed on where given.
        :param tools: Passed on where given; their schemas take room in the window, too.
        :param conversation_id: What the archive holds the conversation under. Give one where several users share the
            generator. Without it, what begins with the same messages is the same conversation, and its id stands in
            the report in the reply's `meta`.
        :param further: Whatever else the chat generator takes; passed on.
        :returns: A dictionary with `replies`, what the chat generator replied.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        """
        inputs = {"generation_kwargs": generation_kwargs, "tools": tools, **further}
        return await run_passes_async(self._exchange(messages, streaming_callback, conversation_id, **inputs))

    def warm_up(self) -> None:
        """Warm up the chat generator, the compactor, the token counter and the archive."""
        lifecycle.warm_up(self._resources())

    async def warm_up_async(self) -> None:
        """Warm up the chat generator, the compactor, the token counter and the archive on the serving event loop."""
        await lifecycle.warm_up_async(self._resources())

    def close(self) -> None:
        """Release the resources of the chat generator, the compactor, the token counter and the archive."""
        lifecycle.close(self._resources())

    async def close_async(self) -> None:
        """Release the resources of all four, those of the event loop included."""
        await lifecycle.close_async(self._resources())

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the chat generator with the one it calls, its compactor, its token counter and all else it was given.

        :returns: A dictionary that `from_dict` takes.
        """
        callables = {"is_context_overflow": self.is_context_overflow, "on_compaction": self.on_compaction}
        return default_to_dict(
            self,
            chat_generator=component_to_dict(obj=self.chat_generator, name="chat_generator"),
            compactor=component_to_dict(obj=self.compactor, name="compactor"),
            token_counter=component_to_dict(obj=self.token_counter, name="token_counter"),
            pinned=None if self.pinned is None else self.pinned.to_dict(),
            archive=None if self.archive is None else component_to_dict(obj=self.archive, name="archive"),
            on_archive_failure=self.on_archive_failure,
            max_retries=self.max_retries,
            **{
                name: None if function is None else serialize_callable(function) for name, function in callables.items()
            },
            **asdict(self.window),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactingChatGenerator":
        """
        Deserialize the chat generator with all that it was given.

        :param data: What `to_dict` returned.
        :returns: The chat generator.
        """
        options = data.get("init_parameters", {})
        for key in ("chat_generator", "compactor", "token_counter", "pinned", "archive"):
            if options.get(key) is not None:
                deserialize_component_inplace(options, key=key)
        for key in ("is_context_overflow", "on_compaction"):
            if options.get(key) is not None:
                options[key] = deserialize_callable(options[key])
        generator: CompactingChatGenerator = default_from_dict(cls, data)
        return generator

    def _offer_further_inputs(self) -> None:
        """Let a pipeline connect what the wrapped chat generator takes beyond the usual."""
        usual = inspect.signature(self.run).parameters
        for name, parameter in inspect.signature(self.chat_generator.run).parameters.items():
            if name not in usual and parameter.default is not parameter.empty:
                component.set_input_type(self, name, Any, parameter.default)

    def _resources(self) -> list[object]:
        return [self.chat_generator, self.compactor, self.token_counter, self.archive]

    def _exchange(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None,
        conversation_id: str | None,
        **inputs: Any,
    ) -> Generator[Step, Any, Replies]:
        messages = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
        require_messages(messages)
        writer = None
        if self.archive is not None:
            writer = ArchiveWriter(self.archive, conversation_id, on_failure=self.on_archive_failure)
        exchange = Exchange(
            Request(self.chat_generator, streaming_callback, **inputs),
            messages,
            WindowGuard(self.window, self.compactor, RequestMeter(self._ledger), pinned=self.pinned, writer=writer),
            self._known,
            self.max_retries,
            self.is_context_overflow or overflow.is_context_overflow,
            conversation_id,
            self.on_compaction,
        )
        return exchange.steps()
