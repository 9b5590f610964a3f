# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import copy
import gc
import threading
import weakref

from haystack.dataclasses import ChatMessage
from samples import chat

from haystack_compaction import SlidingWindowCompactor
from haystack_compaction.known_conversations import KnownConversation, KnownConversations
from haystack_compaction.tokens.calibration import Calibration
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.window import Window
from haystack_compaction.window_guard import WindowGuard

NOTE = ChatMessage.from_user("What came before.")


def known(beginning, stands_as=(NOTE,)):
    guard = WindowGuard(Window(context_window=1_000), SlidingWindowCompactor(), RequestMeter(TokenLedger()))
    return KnownConversation(beginning, list(stands_as), guard)


def test_a_longer_conversation_goes_on_from_what_is_known():
    memory, messages = KnownConversations(8), chat(5)
    memory.keep(known(messages[:7]))
    recalled = memory.recall(messages)
    continued = recalled.continued(messages)
    assert continued[0] is NOTE
    assert all(a is b for a, b in zip(continued[1:], messages[7:], strict=True))


def test_copies_are_recognised():
    memory, messages = KnownConversations(8), chat(5)
    memory.keep(known(messages[:7]))
    assert memory.recall(copy.deepcopy(messages)) is not None


def test_another_conversation_is_not():
    memory, messages = KnownConversations(8), chat(5)
    memory.keep(known(messages[:7]))
    assert memory.recall(messages[:6]) is None
    for position in range(7):
        other = list(messages)
        other[position] = ChatMessage.from_user("Something else.")
        assert memory.recall(other) is None


def test_the_longest_beginning_counts():
    memory, messages = KnownConversations(8), chat(5)
    longer = ChatMessage.from_user("Much more of it.")
    memory.keep(known(messages[:9], [longer]))
    memory.keep(known(messages[:3]))
    assert memory.recall(messages).continued(messages)[0] is longer
    assert memory.recall(messages[:5]).continued(messages[:5])[0] is NOTE


def test_conversations_that_part_share_what_they_have_in_common():
    memory, messages = KnownConversations(8), chat(5)
    memory.keep(known(messages[:5]))
    memory.keep(known(messages[:7]))
    branch = [*messages[:5], ChatMessage.from_user("Something else.")]
    assert memory.recall(branch).continued(branch) == [NOTE, branch[-1]]


def test_what_was_not_asked_for_longest_is_forgotten():
    memory = KnownConversations(2)
    first, second, third = chat(1), chat(2), chat(3)
    memory.keep(known(first))
    memory.keep(known(second))
    memory.recall(first)
    memory.keep(known(third))
    assert memory.recall(first)
    assert memory.recall(third)
    assert memory.recall(second) is None


def test_the_shorter_beginnings_of_a_long_conversation_are_forgotten_before_others():
    memory, long, other = KnownConversations(3), chat(20), chat(1)
    memory.keep(known(other))
    for length in range(3, 40, 2):
        memory.keep(known(long[:length]))
    assert len(memory) == 3
    assert memory.recall(other)


def test_it_is_bounded_and_lets_go_of_messages():
    memory = KnownConversations(4)
    message = ChatMessage.from_user("The first of many.")
    gone = weakref.ref(message)
    memory.keep(known([message]))
    del message
    for number in range(100):
        memory.keep(known([ChatMessage.from_user(f"Conversation {number}")]))
    gc.collect()
    assert len(memory) == 4
    assert gone() is None


def test_what_is_recalled_is_ones_own():
    memory, messages = KnownConversations(8), chat(5)
    memory.keep(known(messages[:7]))
    one, other = memory.recall(messages), memory.recall(messages)
    one.guard.meter.calibration = Calibration(ratio=3.0)
    assert other.guard.meter.calibration.ratio is None
    assert memory.recall(messages).guard.meter.calibration.ratio is None


def test_a_list_that_its_owner_goes_on_with_is_not_the_one_remembered():
    memory, messages = KnownConversations(8), chat(2)
    beginning = messages[:3]
    memory.keep(known(beginning))
    beginning.append(ChatMessage.from_user("More."))
    assert memory.recall(messages) is not None


def test_what_cannot_be_compared_is_no_match():
    class Odd:
        def __eq__(self, other):
            raise ValueError("neither true nor false")

    def odd():
        return [ChatMessage.from_user("Hello", meta={"odd": Odd()})]

    memory = KnownConversations(8)
    memory.keep(known(odd()))
    assert memory.recall(odd()) is None


def test_many_threads():
    memory = KnownConversations(16)
    failures = []

    def work(number):
        messages = [ChatMessage.from_user(f"{number}")]
        for turn in range(50):
            messages.append(ChatMessage.from_assistant(f"{number}: {turn}"))
            memory.keep(known(list(messages), [messages[0]]))
            recalled = memory.recall(messages)
            if recalled is not None and recalled.stands_as[0] is not messages[0]:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(memory) <= 16
