# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The conversation as it would be without any compaction."""

import asyncio
from collections.abc import Sequence
from typing import Any

from haystack import logging
from haystack.components.agents.state.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction.archive.conversation_id import conversation_id_in
from haystack_compaction.archive.positions import TranscriptPositions
from haystack_compaction.archive.protocol import Archive
from haystack_compaction.conversation.merging import NoteMerger

logger = logging.getLogger(__name__)


def full_transcript(archive: Archive, conversation_id: str, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """
    Put a conversation together again from what was archived and what is left.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_compaction import SlidingWindowCompactor
    from haystack_compaction.archive import ArchiveWriter, DocumentStoreArchive, full_transcript

    archive = DocumentStoreArchive(InMemoryDocumentStore())
    original = [ChatMessage.from_user("Hi. " * 99), ChatMessage.from_assistant("Hey"), ChatMessage.from_user("Tides?")]
    result = SlidingWindowCompactor(preserve_recent_turns=0).run(messages=original, target_tokens=50)
    ArchiveWriter(archive, "tides").write(original, result["messages"], result["report"])
    assert full_transcript(archive, "tides", result["messages"]) == original
    ```

    :param archive: The archive.
    :param conversation_id: The conversation.
    :param messages: The conversation as it is now, such as the `messages` of an Agent's result. They may have been
        stored and loaded since.
    :returns: Every message that was ever in the conversation once, in the order in which they came. What compaction
        wrote is left out. Messages that are still there as they were are the same objects.
    """
    messages = NoteMerger().split(messages)
    positions = TranscriptPositions.resumed(archive.outline(conversation_id), messages).seen(messages)
    originals = {placed.position: placed.message for placed in positions.live if placed.position is not None}
    originals.update({archived.position: archived.message for archived in archive.read_range(conversation_id)})
    return [originals[position] for position in sorted(originals)]


class TranscriptHook:
    """
    Puts the full transcript of an Agent's run on its result.

    ### Usage example

    ```python
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.archive import SQLiteArchive, TranscriptHook

    agent = Agent(
        chat_generator=OpenAIChatGenerator(),
        hooks={"after_run": [TranscriptHook(SQLiteArchive("conversations.sqlite"))]},
        state_schema={"transcript": {"type": list[ChatMessage]}},
    )
    result = agent.run(messages=[ChatMessage.from_user("Hi")], hook_context={"conversation_id": "conversation-7"})
    assert result["transcript"] == result["messages"]
    ```

    :param archive: The archive that the passes of the run are written to.
    :param key: The key of the Agent's `state_schema` to put it under; its type is `list[ChatMessage]`.
    """

    #: Read by the Agent, which refuses the hook anywhere else.
    allowed_hook_points = ("after_run",)

    def __init__(self, archive: Archive, *, key: str = "transcript") -> None:
        self.archive = archive
        self.key = key

    def run(self, state: State) -> None:
        """
        Put the transcript into the state. An archive that fails is logged; then the messages stand there as they are.

        :param state: The Agent's live state.
        """
        messages = state.data.get("messages") or []
        conversation_id = conversation_id_in(state)
        try:
            if conversation_id is not None:
                messages = full_transcript(self.archive, conversation_id, messages)
        except Exception:
            logger.exception("The archive could not be read; the transcript is what is left of the conversation.")
        if self.key not in state.schema:
            # The work is done by now, and worth more than its transcript.
            logger.error(
                "`key='{key}'` is no key of the Agent's `state_schema`, so there is no transcript on its result. Add "
                "it there, with the type `list[ChatMessage]`.",
                key=self.key,
            )
            return
        state.set(self.key, list(messages), handler_override=replace_values)

    async def run_async(self, state: State) -> None:
        """
        Do what `run` does, without blocking the event loop.

        :param state: The Agent's live state.
        """
        await asyncio.to_thread(self.run, state)

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the hook with its archive.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(self, archive=component_to_dict(obj=self.archive, name="archive"), key=self.key)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TranscriptHook":
        """
        Deserialize the hook with its archive.

        :param data: What `to_dict` returned.
        :returns: The hook.
        """
        deserialize_component_inplace(data["init_parameters"], key="archive")
        hook: TranscriptHook = default_from_dict(cls, data)
        return hook
