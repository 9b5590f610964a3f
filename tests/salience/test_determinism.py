# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The hash of a text differs from process to process, and with it the order of a set of texts."""

import os
import subprocess
import sys

# Every statement is worth the same, so that the smallest difference in a sum decides which of them stay.
COMPACTED = """
import sys
from random import Random

from haystack.dataclasses import ChatMessage, ToolCall

import haystack_compaction as hc

random = Random(3)
common = ["harbor", "market", "garden", "bridge", "museum"]


def said():
    words = [*common, *("".join(random.choices("aeioulmnrst", k=6)) for _ in range(4))]
    random.shuffle(words)
    return " ".join(words)


messages = []
for turn in range(80):
    call = ToolCall(tool_name="look_up", arguments={"of": said()}, id=str(turn))
    messages += [
        ChatMessage.from_user(said()),
        ChatMessage.from_assistant(said(), tool_calls=[call]),
        ChatMessage.from_tool(said(), origin=call),
        ChatMessage.from_assistant(said()),
    ]
messages.append(ChatMessage.from_user(said()))

counter = hc.EstimateTokenCounter()
for compactor in (hc.SummarizationCompactor(), hc.ImportanceScoringCompactor(), hc.HybridCompactor()):
    for share in (0.05, 0.2, 0.5):
        compacted = compactor.compact(messages, int(counter.count(messages) * share), counter)
        sys.stdout.write("\\n".join(str(message.to_dict()) for message in compacted) + "\\n")
"""


def compacted_in_another_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
    arguments = [sys.executable, "-W", "ignore", "-c", COMPACTED]
    return subprocess.run(arguments, env=environment, capture_output=True, check=True, timeout=120).stdout


def test_the_outcome_does_not_depend_on_the_hashes_of_texts():
    outcomes = [compacted_in_another_process(seed) for seed in ("1", "2")]
    assert len(outcomes[0]) > 10_000
    assert outcomes[0] == outcomes[1]
