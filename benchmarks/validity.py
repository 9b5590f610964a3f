# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
How many of the conversations that each library's compaction leaves a strict provider would refuse.

Run `python benchmarks/validity.py --transcripts FOLDER`, with a folder of JSON lines, each of them a conversation with
its `messages` as `ChatMessage.to_dict()` writes them. Real transcripts are best: they repeat ids, leave them out, and
put messages between a call and its result. The judge is the server of the tests that says no where OpenAI does.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from haystack.dataclasses import ChatMessage, ChatRole
from measure import header, quiet, row
from peers import Json, Peer, all_peers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import ApiError, StrictOpenAIServer

CUTS = 4
SHARES = (0.7, 0.4, 0.1)

_COLUMNS = ["compactor", "compactions", "refused", "refused when damaged", "raised"]


def main() -> None:
    """Run the benchmark and print its table."""
    quiet()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("TRANSCRIPTS")
    parser.add_argument("--transcripts", type=Path, required=not folder, default=folder and Path(folder))
    parser.add_argument("--most", type=int, default=10**9, help="how many conversations of a file to take at most")
    arguments = parser.parse_args()
    requests = list(_requests(arguments.transcripts, arguments.most))
    damaged = [_damaged(messages, Random(number)) for number, messages in enumerate(requests)]
    print(f"{len(requests)} requests, cut out of real transcripts before a call of the model, each brought down to")
    print(f"{', '.join(f'{share:.0%}' for share in SHARES)} of its tokens; then the same, damaged.\n")
    print(header(_COLUMNS))
    for peer in all_peers():
        whole, broken = _Verdicts(peer, requests), _Verdicts(peer, damaged)
        cells = whole.compactions, whole.refused, broken.refused, whole.raised + broken.raised
        print(row([str(peer), *map(str, cells)]), flush=True)


def _requests(folder: Path, most: int) -> Iterator[list[ChatMessage]]:
    """Some of the points of each conversation at which it was the model's turn."""
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines()[:most]:
            messages = [ChatMessage.from_dict(message) for message in json.loads(line)["messages"]]
            turns = [
                index
                for index in range(8, len(messages))
                if messages[index].is_from(ChatRole.ASSISTANT) and not messages[index - 1].is_from(ChatRole.ASSISTANT)
            ]
            for turn in turns[:: -max(len(turns) // CUTS, 1)][:CUTS]:
                yield messages[:turn]


def _damaged(messages: list[ChatMessage], random: Random) -> list[ChatMessage]:
    """The conversation with a result that is lost, sent twice, or behind a message of the user."""
    newest_step = max((index for index, message in enumerate(messages) if message.tool_calls), default=0)
    # Calls at the end that have no result are not broken: something is about to run them.
    results = [index for index in range(newest_step) if messages[index].is_from(ChatRole.TOOL)]
    if not results:
        return messages
    index = random.choice(results)
    damage = random.choice(
        [
            [],
            [messages[index], messages[index]],
            [ChatMessage.from_user("Are you still there?"), messages[index]],
        ]
    )
    return [*messages[:index], *damage, *messages[index + 1 :]]


class _Verdicts:
    """What a provider thinks of the compacted requests."""

    def __init__(self, peer: Peer, requests: list[list[ChatMessage]]) -> None:
        self.compactions = len(requests) * len(SHARES)
        self.refused = self.raised = 0
        for messages in requests:
            size = peer.count(peer.converted(messages))
            for share in SHARES:
                try:
                    compacted = peer.compacted(peer.converted(messages), int(size * share))
                    self.refused += not _is_valid(peer.as_sent(compacted))
                except Exception:
                    self.raised += 1


def _is_valid(messages: list[Json]) -> bool:
    try:
        StrictOpenAIServer([]).check({"messages": messages})
    except ApiError:
        return False
    return True


if __name__ == "__main__":
    main()
