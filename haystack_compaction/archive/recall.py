# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The tool with which an Agent reads back what was compacted away."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from haystack.components.agents.state.state import State
from haystack.core.serialization import component_to_dict, generate_qualified_class_name
from haystack.dataclasses import ChatMessage, TextContent, ToolCall, ToolCallResult
from haystack.tools import ToolsType, flatten_tools_or_toolsets
from haystack.tools.tool import Tool
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction.archive.conversation_id import conversation_id_in
from haystack_compaction.archive.messages import result_texts, searchable_text
from haystack_compaction.archive.protocol import Archive, ArchivedMessage
from haystack_compaction.archive.queries import query_terms
from haystack_compaction.conversation.notes import RECALL_TOOL_NAME, with_reference
from haystack_compaction.tokens.ledger import TokenLedger

_DESCRIPTION = (
    "Looks up earlier messages of this conversation that were removed or shortened to save space. Call it with `query` "
    "to search them, and with `reference` to read a message or a range in full."
)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Words to search for, such as a name, a number or a path."},
        "reference": {"type": "string", "description": "The number of a message, or a range: '57' or '57-60'."},
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "Where to go on in a text that did not fit into one answer.",
        },
    },
}

_REFERENCE = re.compile(r"\D*(\d{1,15})(?:\s*(?:-|–|to|\.\.)\s*(\d{1,15}))?\D*")
_LEAST_CHARACTERS = 400
_MAX_FOUND = 10
_EXCERPT = 240

# A range is read in pieces of so many positions, since one answer holds few of them.
_PIECE = 50


class RecallTool(Tool):
    """
    The tool "recall": searches the archive of the running conversation and reads from it, a page at a time.

    Which conversation that is comes from the Agent's state and never from the model: one conversation can't read
    another's messages. Its answers are not archived, so they are not found by later searches.

    :param archive: The archive.
    :param max_characters: How long an answer may be, in characters, at least 400.
    :param conversation_id: The conversation to read where the state names none.
    :raises ValueError: If `max_characters` is too small.
    """

    def __init__(self, archive: Archive, *, max_characters: int = 4000, conversation_id: str | None = None) -> None:
        if max_characters < _LEAST_CHARACTERS:
            raise ValueError(f"`max_characters` must be at least {_LEAST_CHARACTERS}, got {max_characters}.")
        self.archive = archive
        self.max_characters = max_characters
        self.conversation_id = conversation_id
        super().__init__(name=RECALL_TOOL_NAME, description=_DESCRIPTION, parameters=_PARAMETERS, function=self._recall)

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the tool with its archive.

        :returns: A dictionary that `from_dict` takes.
        """
        return {
            "type": generate_qualified_class_name(type(self)),
            "data": {
                "archive": component_to_dict(obj=self.archive, name="archive"),
                "max_characters": self.max_characters,
                "conversation_id": self.conversation_id,
            },
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "RecallTool":
        """
        Deserialize the tool with its archive.

        :param data: What `to_dict` returned.
        :returns: The tool.
        """
        options = data["data"]
        deserialize_component_inplace(options, key="archive")
        return cls(**options)

    # The whole state and not its `conversation_id`: of what a tool takes from the state by name, the model's own
    # arguments come first, and could name any conversation.
    def _recall(
        self, query: str | None = None, reference: str | None = None, offset: int = 0, state: State | None = None
    ) -> str:
        conversation_id = (conversation_id_in(state) if state is not None else None) or self.conversation_id
        if conversation_id is None:
            raise ValueError(
                "The run has no conversation id. Give one with `hook_context={'conversation_id': ...}`, or use "
                "`CompactionHook(archive=...)`, which makes one for each run."
            )
        if reference is not None and str(reference).strip():
            return self._opened(conversation_id, str(reference), max(int(offset), 0))
        if query is not None and query.strip():
            return self._found(conversation_id, query)
        return "Give `query` to search the earlier messages, or `reference` to read one."

    def _found(self, conversation_id: str, query: str) -> str:
        found = self.archive.search(conversation_id, query, _MAX_FOUND)
        if not found:
            return "No earlier message holds any of these words. Other words, or fewer, may find it."
        answer = f"Earlier messages that hold some of these words, best first. Read one with `reference`.{_NOTICE}"
        terms = query_terms(query)
        for archived in found:
            line = f"\n\n[{archived.position}] {_speaker(archived.message)}: {_excerpt(archived.message, terms)}"
            if len(answer) + len(line) > self.max_characters:
                break
            answer += line
        return answer

    def _opened(self, conversation_id: str, reference: str, offset: int) -> str:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return "A `reference` is the number of a message or a range of numbers, such as '57' or '57-60'."
        first, last = int(match[1]), int(match[2] or match[1])
        answer = f"Earlier messages, as they were.{_NOTICE}"
        shown = False
        for archived in self._range(conversation_id, first, last):
            text = _told(archived)
            room = self.max_characters - len(answer) - _LEAST_CHARACTERS // 2
            if len(text) - offset > room:
                if (shown and len(text) <= self.max_characters // 2) or room <= 0:
                    return f"{answer}\n\n{_continued(archived.position, last, 0)}"
                answer += f"\n\n{text[offset : offset + room]}"
                return f"{answer}\n\n{_continued(archived.position, last, offset + room)}"
            answer += f"\n\n{text[offset:]}"
            offset, shown = 0, True
        if not shown:
            return f"Nothing with the reference {reference} was removed. It may still be in the conversation."
        return answer

    def _range(self, conversation_id: str, first: int, last: int) -> Iterator[ArchivedMessage]:
        end = min(last + 1, self.archive.outline(conversation_id).end)
        for start in range(first, end, _PIECE):
            yield from self.archive.read_range(conversation_id, start, min(start + _PIECE, end))


def recall_tool(archive: Archive, *, max_characters: int = 4000, conversation_id: str | None = None) -> RecallTool:
    """
    Make the tool with which an Agent reads back what was compacted away.

    ### Usage example

    ```python
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_compaction.archive import DocumentStoreArchive, recall_tool

    tool = recall_tool(DocumentStoreArchive(InMemoryDocumentStore()), conversation_id="conversation-7")
    print(tool.invoke(query="invoice 4711"))
    ```

    :param archive: The archive that the passes of the run are written to.
    :param max_characters: How long an answer may be, in characters, at least 400. Longer texts come in pages.
    :param conversation_id: The conversation to read where the Agent's state names none: neither `conversation_id` of
        the run's `hook_context` nor a key `conversation_id` of the state itself.
    :returns: The tool.
    :raises ValueError: If `max_characters` is too small.
    """
    return RecallTool(archive, max_characters=max_characters, conversation_id=conversation_id)


def reference_tokens(tools: ToolsType | None, ledger: TokenLedger) -> int:
    """
    Return what has to be kept free for the line with which a note points at the tool.

    :param tools: The tools that the model has.
    :param ledger: What knows the size of messages.
    :returns: The number of tokens, 0 where the tool is not among the tools.
    """
    if not any(tool.name == RECALL_TOOL_NAME for tool in flatten_tools_or_toolsets(tools)):
        return 0
    return ledger.count([with_reference(ChatMessage.from_user(""), "10000-99999")])


# What was said then must not be taken for something that is asked now.
_NOTICE = " They are a record and no new request."


def _told(archived: ArchivedMessage) -> str:
    return f"[{archived.position}] {_speaker(archived.message)}: {chr(10).join(_lines(archived.message))}"


def _speaker(message: ChatMessage) -> str:
    tools = [result.origin.tool_name for result in message.tool_call_results]
    return f"result of {', '.join(tools)}" if tools else message.role.value


def _lines(message: ChatMessage) -> Iterator[str]:
    for part in message._content:
        if isinstance(part, TextContent):
            yield part.text
        elif isinstance(part, ToolCall):
            yield f"called {part.tool_name} with {part.arguments}"
        elif isinstance(part, ToolCallResult):
            yield from result_texts(part)
            if not isinstance(part.result, str):
                yield from (_kind(item) for item in part.result if not isinstance(item, TextContent))
        else:
            yield _kind(part)


def _kind(part: object) -> str:
    return f"({type(part).__name__})"


def _excerpt(message: ChatMessage, terms: Sequence[str]) -> str:
    """The surroundings of the first word that was looked for."""
    text = " ".join(searchable_text(message).split())
    lowered = text.lower()
    hits = [hit for hit in (lowered.find(term) for term in terms) if hit >= 0]
    start = max(min(hits, default=0) - _EXCERPT // 3, 0)
    piece = text[start : start + _EXCERPT]
    return f"{'…' if start else ''}{piece}{'…' if start + _EXCERPT < len(text) else ''}"


def _continued(position: int, last: int, offset: int) -> str:
    reference = f"{position}-{last}" if last > position else str(position)
    return f"There is more: call again with reference='{reference}'" + (f" and offset={offset}." if offset else ".")
