# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A chat pipeline with a compactor between the conversation and the model, for two turns with a long history.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")` and set OPENAI_API_KEY.
"""

from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.joiners import ListJoiner
from haystack.dataclasses import ChatMessage
from scripted import ScriptedChatGenerator

from haystack_compaction import SlidingWindowCompactor


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Say how much of the conversation is visible."""
    return ChatMessage.from_assistant(
        f"I can see {len(messages)} messages. " + "High tide comes at half past noon. " * 20
    )


pipeline = Pipeline()
pipeline.add_component(
    "prompt", ChatPromptBuilder([ChatMessage.from_user("When is high tide in {{ port }}?")], required_variables="*")
)
# The history joins after the prompt is built: what users wrote is no template.
pipeline.add_component("conversation", ListJoiner(list[ChatMessage]))
pipeline.add_component("compactor", SlidingWindowCompactor(trigger_threshold_tokens=2_000, target_tokens=1_000))
pipeline.add_component("llm", ScriptedChatGenerator(reply))
pipeline.connect("prompt.prompt", "conversation.values")
pipeline.connect("conversation.values", "compactor.messages")
pipeline.connect("compactor.messages", "llm.messages")

history = [ChatMessage.from_system("You know everything about tides.")]
for day in range(30):
    history.append(ChatMessage.from_user(f"When is high tide on day {day}? " + "Please be precise. " * 5))
    history.append(ChatMessage.from_assistant("At half past noon. " * 10))

for port in ("Brest", "Lorient"):
    result = pipeline.run(
        {"conversation": {"values": history}, "prompt": {"port": port}}, include_outputs_from={"compactor"}
    )
    report = result["compactor"]["report"]
    print(f"{report.tokens_before} tokens before, {report.tokens_after} after, {report.removed_messages} messages gone")
    print(result["llm"]["replies"][0].text[:40])
    # Going on from the compacted conversation keeps the work of the compaction.
    history = [*result["compactor"]["messages"], *result["llm"]["replies"]]
