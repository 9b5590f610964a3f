# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What hayhooks serves as the model "tides". See served_with_hayhooks.py.

With a real model: replace `MockChatGenerator(response_fn=reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, and set
`context_window` to that of the model.
"""

from typing import Any

from hayhooks import BasePipelineWrapper
from haystack import Pipeline
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction import CompactingChatGenerator, EstimateTokenCounter

WINDOW = 2_000


def reply(messages: list[ChatMessage]) -> str:
    """Say how much of the conversation is visible, and refuse what does not fit."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    return f"At half past noon. I can see {len(messages)} messages."


class PipelineWrapper(BasePipelineWrapper):
    """
    Answers chat completions.

    Clients of that API send the whole conversation each time. `CompactingChatGenerator` recognises its beginning and
    goes on from what it was compacted to, so nothing is compacted twice.
    """

    def setup(self) -> None:
        """Build the pipeline, once for all requests."""
        self.pipeline = Pipeline()
        self.pipeline.add_component(
            "llm", CompactingChatGenerator(MockChatGenerator(response_fn=reply), context_window=WINDOW)
        )

    def run_chat_completion(self, model: str, messages: list[dict[str, Any]], body: dict[str, Any]) -> str:
        """Answer the conversation."""
        conversation = [ChatMessage.from_openai_dict_format(message) for message in messages]
        result = self.pipeline.run({"llm": {"messages": conversation}})
        return result["llm"]["replies"][0].text or ""
