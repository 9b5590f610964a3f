# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A compactor loaded from pipeline YAML.

Importing the package is what allows Haystack to load its classes. A server that loads YAML without importing it sets
HAYSTACK_DESERIALIZATION_ALLOWLIST=haystack_compaction instead.
"""

from pathlib import Path

from haystack import Pipeline
from haystack.dataclasses import ChatMessage

import haystack_compaction

print(f"haystack-compaction {haystack_compaction.__version__}")
pipeline = Pipeline.loads((Path(__file__).parent / "pipeline.yaml").read_text(encoding="utf-8"))

messages = [ChatMessage.from_system("You know everything about tides.")]
for day in range(100):
    messages.append(ChatMessage.from_user(f"When is high tide on day {day}?"))
    messages.append(ChatMessage.from_assistant("At half past noon. " * 10))
result = pipeline.run({"compactor": {"messages": [*messages, ChatMessage.from_user("And today?")]}})
print(result["compactor"]["report"])
