# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A first look at an installed package: `python .ci/smoke.py`, from anywhere but the repository."""

from importlib.metadata import version
from pathlib import Path

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage

import haystack_compaction
from haystack_compaction import CompactingChatGenerator, CompactionHook, HybridCompactor, SlidingWindowCompactor

assert "site-packages" in haystack_compaction.__file__, haystack_compaction.__file__
assert version("haystack-compaction") == haystack_compaction.__version__
assert Path(haystack_compaction.__file__).with_name("py.typed").exists()
for name in haystack_compaction.__all__:
    getattr(haystack_compaction, name)

messages = [ChatMessage.from_user("What is a tide? " * 50), ChatMessage.from_assistant("Water, moving. " * 50)]
messages.append(ChatMessage.from_user("Thanks!"))
pipeline = Pipeline()
pipeline.add_component("compactor", SlidingWindowCompactor(trigger_threshold_tokens=200, target_tokens=100))
report = Pipeline.loads(pipeline.dumps()).run({"compactor": {"messages": messages}})["compactor"]["report"]
assert report.compacted, report
assert report.reached_target, report

hook = CompactionHook(HybridCompactor(), context_window=300)
agent = Agent(chat_generator=MockChatGenerator("You are welcome."), hooks={"before_llm": [hook]})
assert len(agent.run(messages=messages)["messages"]) < len(messages) + 1

generator = CompactingChatGenerator(MockChatGenerator("You are welcome."), context_window=300)
assert "context_compaction_report" in generator.run(messages=messages)["replies"][0].meta
