# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The promises of every compactor, on random conversations."""

from contextlib import suppress

import pytest
from haystack.dataclasses import ChatMessage

from haystack_compaction import SlidingWindowCompactor
from haystack_compaction.testing import PromiseBrokenError, check_compactor


@pytest.mark.parametrize(
    "compactor",
    [
        SlidingWindowCompactor(),
        SlidingWindowCompactor(min_keep_steps=0, omission_note=None),
        SlidingWindowCompactor(min_keep_steps=3, preserve_recent_turns=2, preserve_system_prompt=False),
    ],
    ids=["sliding_window", "sliding_window silent", "sliding_window with a larger floor"],
)
def test_promises(compactor):
    check_compactor(compactor)


class Broken:
    """A compactor that breaks one promise at a time."""

    def __init__(self, rewrite):
        self.rewrite = rewrite

    def compact(self, messages, target_tokens, token_counter):
        return self.rewrite(messages)


def in_place(messages):
    if len(messages) > 2:
        del messages[1]
        return list(messages)
    return None


@pytest.mark.parametrize(
    ("number", "rewrite"),
    [
        (1, in_place),
        (1, lambda messages: [*messages, ChatMessage.from_user("More!")]),
        (1, lambda messages: list(reversed(messages))[:-1] if len(messages) > 2 else None),
        (2, lambda messages: [message for message in messages if not message.tool_calls]),
        (4, lambda messages: [m for m in messages if m.role != "system"] if messages else None),
        (7, lambda messages: messages[0].text.index("x")),
    ],
)
def test_a_broken_promise_is_named(number, rewrite):
    def smaller_only(messages):
        result = rewrite(messages)
        return None if result is not None and len(result) == len(messages) else result

    with pytest.raises(PromiseBrokenError, match=f"Promise {number} is broken"):
        check_compactor(Broken(smaller_only))


def test_a_compactor_that_hands_fragments_to_a_counter_is_found_out_even_if_it_hides_the_error():
    class Asking:
        def compact(self, messages, target_tokens, token_counter):
            for message in messages:
                with suppress(Exception):
                    token_counter.count([message])

    with pytest.raises(PromiseBrokenError, match="Promise 7 is broken: a counter that validates was given a fragment"):
        check_compactor(Asking())


@pytest.mark.parametrize("other", ["sliding_window", SlidingWindowCompactor, object()])
def test_what_is_no_compactor_is_refused(other):
    with pytest.raises(ValueError, match="`compactor` must be an object with a method `compact`"):
        check_compactor(other)
