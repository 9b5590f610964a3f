# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which tool a result comes from, where it does not say: in OpenAI's format it has the id of its call and no name."""

from collections.abc import Sequence
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole, ToolCall, ToolCallResult


def with_origins(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """
    Give results from tools without a name the call that they answer.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction.conversation.origins import with_origins

    call = ToolCall(tool_name="read_file", arguments={"path": "tides.csv"}, id="call_1")
    result = ChatMessage.from_openai_dict_format({"role": "tool", "tool_call_id": "call_1", "content": "06:12"})
    assert result.tool_call_result.origin.tool_name == ""
    messages = with_origins([ChatMessage.from_assistant(tool_calls=[call]), result])
    assert messages[1].tool_call_result.origin == call
    ```

    :param messages: The conversation, oldest to newest. It is left as it is.
    :returns: The same, with copies in the place of the messages with such results. A result whose call is not among
        those of the assistant message before it stays as it is.
    """
    if not any(message._role is ChatRole.TOOL and _is_nameless(message) for message in messages):
        return messages
    completed = []
    open_calls: list[ToolCall] = []
    for message in messages:
        if message._role is ChatRole.ASSISTANT:
            open_calls = [part for part in message._content if type(part) is ToolCall]
        elif message._role is ChatRole.TOOL:
            content = [_with_origin(part, open_calls) for part in message._content]
            if _is_nameless(message):
                message = ChatMessage(message._role, content, message._name, message._meta)
        completed.append(message)
    return completed


def _is_nameless(message: ChatMessage) -> bool:
    return any(isinstance(part, ToolCallResult) and not part.origin.tool_name for part in message._content)


def _with_origin(part: Any, open_calls: list[ToolCall]) -> Any:
    """The part with the call that it answers, which is then answered."""
    if isinstance(part, ToolCallResult):
        for position, call in enumerate(open_calls):
            if call.id == part.origin.id:
                del open_calls[position]
                return part if part.origin.tool_name else ToolCallResult(part.result, call, part.error)
    return part
