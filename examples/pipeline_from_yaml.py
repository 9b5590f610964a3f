# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
The pipeline of chat_pipeline.py from a YAML file.

Importing the package is what allows Haystack to load its classes. A server that loads YAML without importing it sets
HAYSTACK_DESERIALIZATION_ALLOWLIST=haystack_compaction instead.

With a real model: pipeline.yaml says at its top what to replace.
"""

from pathlib import Path

from haystack import Pipeline
from haystack.dataclasses import ChatMessage

import haystack_compaction

print(f"haystack-compaction {haystack_compaction.__version__}")
pipeline = Pipeline.loads((Path(__file__).parent / "pipeline.yaml").read_text(encoding="utf-8"))

history = [ChatMessage.from_system("You know everything about tides.")]
for day in range(100):
    history.append(ChatMessage.from_user(f"When is high tide on day {day}?"))
    history.append(ChatMessage.from_assistant("At half past noon. " * 10))

for port in ("Brest", "Lorient"):
    result = pipeline.run(
        {"conversation": {"values": history}, "prompt": {"port": port}}, include_outputs_from={"compactor"}
    )
    report = result["compactor"]["report"]
    print(f"{report.tokens_before} tokens before, {report.tokens_after} after, {report.removed_messages} messages gone")
    print(result["llm"]["replies"][0].text)
    history = [*result["compactor"]["messages"], *result["llm"]["replies"]]
