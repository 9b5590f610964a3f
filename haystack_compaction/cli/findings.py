# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What is wrong with a conversation, and what is in it twice."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from haystack.dataclasses import ChatMessage, ChatRole

from haystack_compaction.conversation.blank_texts import has_blank_texts
from haystack_compaction.conversation.pairing import repair_tool_pairs, stands_in
from haystack_compaction.conversation.shortening import json_text
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import tool_steps
from haystack_compaction.tokens.ledger import TokenLedger


@dataclass(frozen=True)
class Fault:
    """
    Something that providers reject.

    :param message: The number of the message, from 1 on.
    :param what: What is wrong with it.
    """

    message: int
    what: str


@dataclass(frozen=True)
class Repetition:
    """
    A call that was made more than once.

    :param tool_name: The tool.
    :param arguments: Its arguments, as JSON.
    :param messages: The numbers of the messages that made it, from 1 on.
    :param tokens: What all results but the newest take, in tokens.
    """

    tool_name: str
    arguments: str
    messages: list[int]
    tokens: int


def faults(messages: Sequence[ChatMessage]) -> list[Fault]:
    """
    Find what providers would reject: broken pairs of calls and results, and blank texts.

    :param messages: The conversation. Calls at its very end may wait for their results.
    :returns: What is wrong, in order.
    """
    found = [*_broken_pairs(messages), *_blank_texts(messages)]
    return sorted(found, key=lambda fault: fault.message)


def _broken_pairs(messages: Sequence[ChatMessage]) -> list[Fault]:
    """What a repair does tells what was broken."""
    valid = repair_tool_pairs(messages)
    number_of = {id(message): number for number, message in enumerate(messages, 1)}
    owner_before, owner_after = _owners(messages), _owners(valid)
    found = []
    for number, message in enumerate(messages, 1):
        if message.role is ChatRole.TOOL and id(message) not in owner_after:
            found.append(Fault(number, "a result that no call is waiting for, or with another id than its call"))
        elif message.role is ChatRole.TOOL and owner_after[id(message)] != owner_before[id(message)]:
            found.append(Fault(number, "a result that does not stand right after its call"))
    call = 0
    for message in valid:
        call = number_of.get(id(message), call) if message.role is ChatRole.ASSISTANT else call
        if message.role is ChatRole.TOOL and id(message) not in number_of and stands_in(message):
            found.append(Fault(call, f"a call of {message.tool_call_results[0].origin.tool_name} without a result"))
    return found


def _owners(messages: Sequence[ChatMessage]) -> dict[int, int]:
    """For each result the message that it stands after, by identity."""
    owners, owner = {}, 0
    for message in messages:
        if message.role is ChatRole.TOOL:
            owners[id(message)] = owner
        else:
            owner = id(message)
    return owners


def _blank_texts(messages: Sequence[ChatMessage]) -> list[Fault]:
    return [Fault(number, "a blank text") for number, message in enumerate(messages, 1) if has_blank_texts([message])]


def repetitions(messages: Sequence[ChatMessage]) -> list[Repetition]:
    """
    Find calls that were made more than once with the same arguments.

    :param messages: The conversation.
    :returns: The repeated calls, those whose older results take most room first.
    """
    valid = repair_tool_pairs(messages)
    number_of = {id(message): number for number, message in enumerate(messages, 1)}
    ledger = TokenLedger()
    calls: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for step in tool_steps(Conversation(valid)):
        for index in step.results:
            origin = valid[index].tool_call_results[0].origin
            arguments = json_text(origin.arguments)
            if arguments is not None:
                number = number_of.get(id(valid[step.assistant]), 0)
                calls[origin.tool_name, arguments].append((number, ledger.count([valid[index]])))
    found = [
        Repetition(tool, arguments, [number for number, _ in made], sum(size for _, size in made[:-1]))
        for (tool, arguments), made in calls.items()
        if len(made) > 1
    ]
    return sorted(found, key=lambda repetition: -repetition.tokens)
