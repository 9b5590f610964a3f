# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A chat generator whose model has a smaller window than anybody told us. The provider refuses the request; the
conversation is compacted to the size that the error names, and sent again.

`is_context_overflow` knows the refusals of the common providers. Every other error passes through.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, and set
`context_window` to that of the model.
"""

from haystack.dataclasses import ChatMessage
from scripted import ScriptedChatGenerator

from haystack_compaction import CompactingChatGenerator, EstimateTokenCounter

TRUE_WINDOW = 2_000


class BadRequestError(Exception):
    """What a client raises for the provider's answer 400."""


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Refuse what is too long with OpenAI's words."""
    size = EstimateTokenCounter().count(messages)
    print(f"request {number + 1}: {len(messages)} messages, {size} tokens")
    if size > TRUE_WINDOW:
        raise BadRequestError(
            f"This model's maximum context length is {TRUE_WINDOW} tokens. However, your messages resulted in {size} "
            "tokens. Please reduce the length of the messages."
        )
    return ChatMessage.from_assistant("At half past noon, as always.")


generator = CompactingChatGenerator(ScriptedChatGenerator(reply), context_window=128_000)
history = [ChatMessage.from_system("You know everything about tides.")]
for day in range(100):
    history.append(ChatMessage.from_user(f"When is high tide on day {day}?"))
    history.append(ChatMessage.from_assistant("At half past noon. " * 10))

for question in ("And today?", "And tomorrow?"):
    history.append(ChatMessage.from_user(question))
    answer = generator.run(messages=history)["replies"][0]
    report = answer.meta.get("context_compaction_report")
    print(answer.text, f"({report['retries']} retries)" if report else "(nothing to do)")
    # The caller keeps the whole conversation. The generator remembers what it was compacted to.
    history.append(answer)
