# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A message as JSON, as a digest and as text."""

import copy
import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from haystack_compaction.archive.messages import digest_of, from_json, searchable_text, to_json, without_recalled
from haystack_compaction.conversation.notes import pin
from haystack_compaction.testing import conversations


@settings(max_examples=40, deadline=None)
@given(conversations(), st.booleans())
def test_json_is_that_of_haystack(messages, ascii_only):
    for message in messages:
        stored = to_json(message, ascii_only=ascii_only)
        assert json.loads(stored) == message.to_dict()
        assert from_json(stored) == message
        assert stored.isascii() or not ascii_only


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_a_message_is_recognised_whatever_was_done_to_its_meta(messages):
    digests = list(map(digest_of, messages))
    assert list(map(digest_of, copy.deepcopy(messages))) == digests
    assert [digest_of(from_json(to_json(message))) for message in messages] == digests
    assert [digest_of(pin(replace(message, _meta={}))) for message in messages] == digests
    contents = {(message.role.value, json.dumps(message.to_dict()["content"])) for message in messages}
    assert len(set(digests)) <= len(contents)


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_what_is_searched_is_text_that_any_engine_takes(messages):
    for message in messages:
        text = searchable_text(message)
        text.encode("utf-8")
        assert "\0" not in text
        assert without_recalled(message) is message
