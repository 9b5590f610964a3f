# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The conversation that the guides to the strategies compact. Run this file to read it."""

from typing import Any

from haystack.dataclasses import ChatMessage, ToolCall

from haystack_compaction import EstimateTokenCounter


def step(number: int, tool_name: str, arguments: dict[str, Any], result: str) -> list[ChatMessage]:
    """Call a tool and get its result."""
    call = ToolCall(tool_name, arguments, id=f"call_{number}")
    return [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool(result, origin=call)]


def config(timeout: int) -> str:
    """Return the content of the shop's configuration."""
    lines = [f"retry_{number}: {{after: {number * 30}s, gateway: backup-{number}}}" for number in range(1, 9)]
    return "\n".join(["gateway: https://pay.example", f"timeout: {timeout}s", *lines])


ORDERS = "\n".join(
    f"order {7000 + number} | ferry to Ouessant | {'failed: gateway timed out' if number == 17 else 'paid, 18.50 EUR'}"
    for number in range(30)
)

CONVERSATION = [
    ChatMessage.from_system("You look after the web shop of a ferry."),
    ChatMessage.from_user("Never restart the payment service during opening hours. Why did tickets fail last night?"),
    *step(1, "read_file", {"path": "/etc/shop.yaml"}, "Error: no such file /etc/shop.yaml"),
    *step(2, "read_file", {"path": "/etc/shop/shop.yaml"}, config(timeout=3)),
    *step(3, "list_orders", {"day": "2026-11-10"}, ORDERS),
    ChatMessage.from_assistant("One failed, order 7017: the gateway took longer than the 3 seconds it is given."),
    ChatMessage.from_user("Then give it 8 seconds."),
    *step(4, "edit_file", {"path": "/etc/shop/shop.yaml", "timeout": "8s"}, "Saved."),
    *step(5, "read_file", {"path": "/etc/shop/shop.yaml"}, config(timeout=8)),
    ChatMessage.from_assistant("Done. The timeout is 8 seconds."),
    ChatMessage.from_user("Thanks! When is high tide today, by the way?"),
    ChatMessage.from_assistant("At 12:40. " + "The harbour is a fine place then, with all boats afloat. " * 8),
    ChatMessage.from_user("I asked the bank. The timeout should be 5 seconds, not 8."),
    *step(6, "edit_file", {"path": "/etc/shop/shop.yaml", "timeout": "5s"}, "Saved."),
    ChatMessage.from_assistant("The timeout is 5 seconds now."),
    ChatMessage.from_user("Write to the customer whose order failed, and tell me all that was changed."),
    *step(7, "find_customer", {"order": 7017}, "Maëlle Le Bihan, maelle@example.org, two tickets to Ouessant"),
]


def said(message: ChatMessage) -> str:
    """Return what a message says: a result, calls, or a text."""
    if message.tool_call_result:
        return str(message.tool_call_result.result)
    calls = [f"{call.tool_name}({', '.join(map(str, call.arguments.values()))})" for call in message.tool_calls]
    return ", ".join(calls) or message.text or ""


def show(messages: list[ChatMessage]) -> None:
    """Print a conversation, each message on a line that is cut where it gets too long."""
    for message in messages:
        line = " / ".join(said(message).splitlines())
        print(f"{message.role.value}: {line if len(line) <= 80 else line[:77] + '...'}")
    print(f"= {len(messages)} messages, {EstimateTokenCounter().count(messages)} tokens")


if __name__ == "__main__":
    show(CONVERSATION)
