# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A compactor of one's own: the small talk goes first.

One method, `rewrite`, is all there is to write. `removable_turns` offers whole turns only, and none that is pinned or
otherwise must stay, so calls keep their results whatever the method picks. The class works as a pipeline node, in an
Agent's hook, in a `HybridCompactor` and in YAML.

With a real model: use it like any other compactor, such as in
`CompactionHook(SmallTalkCompactor(), context_window=128_000)`.
"""

from haystack import component
from haystack.dataclasses import ChatMessage

from haystack_compaction import Compactor, HybridCompactor, SlidingWindowCompactor
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.tokens.ledger import TokenLedger


@component
class SmallTalkCompactor(Compactor):
    """Removes old turns that the user opened with thanks or a greeting."""

    strategy = "small_talk"

    def __init__(self, *, openings: tuple[str, ...] = ("hi", "hello", "thanks", "bye"), preserve_recent_turns: int = 0):
        # `@component` makes a new class of this one, so `super()` without arguments does not work here.
        Compactor.__init__(self, preserve_recent_turns=preserve_recent_turns)
        self.openings = tuple(openings)

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage]:
        """Remove small talk, oldest first, until the rest fits."""
        sizes = ledger.sizes(conversation.messages)
        excess = sum(sizes) - target_tokens
        gone: set[int] = set()
        for turn in conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns):
            if excess <= 0:
                break
            opening = conversation.messages[turn[0]].text or ""
            if opening.lower().startswith(self.openings):
                gone.update(turn)
                excess -= sum(sizes[index] for index in turn)
        return [message for index, message in enumerate(conversation.messages) if index not in gone]


history = [ChatMessage.from_system("You are the harbour's assistant.")]
for day in range(20):
    history.append(ChatMessage.from_user(f"Order {7000 + day}: is it paid?"))
    history.append(ChatMessage.from_assistant(f"Yes, order {7000 + day} is paid."))
    history.append(ChatMessage.from_user("Thanks, that was quick!"))
    history.append(ChatMessage.from_assistant("My pleasure. I wish you a very fine day at the harbour. " * 3))
history.append(ChatMessage.from_user("Which of the orders were paid?"))

result = SmallTalkCompactor().run(messages=history, target_tokens=700)
thanks = sum(message.text == "Thanks, that was quick!" for message in result["messages"])
print(f"{result['report'].tokens_before} -> {result['report'].tokens_after} tokens, {thanks} of 20 thanks left")

# Where small talk is not enough, a sliding window does the rest.
result = HybridCompactor([SmallTalkCompactor(), SlidingWindowCompactor()]).run(messages=history, target_tokens=300)
for stage in result["report"].stages:
    print(f"{stage['strategy']}: {stage['tokens_before']} -> {stage['tokens_after']} tokens")
