# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage
from samples import step

from haystack_compaction.conversation.stranded import behind_stranded, stranded_texts

PIECES = {
    "s": [ChatMessage.from_system("The user has logged in.")],
    "u": [ChatMessage.from_user("Audit every service.")],
    "a": [ChatMessage.from_assistant("I look.")],
    "c": step("read_log", "fine", call_id="0")[:1],
    "t": step("read_log", "fine", call_id="0")[1:],
}


def conversation(roles):
    return [message for role in roles for message in PIECES[role]]


@pytest.mark.parametrize(
    ("roles", "gone", "stranded"),
    [
        ("uaucta", [], []),
        ("uaucta", [2], [1]),
        ("uaacta", [0], []),
        ("uaauacta", [3, 4], [1, 2]),
        ("uausacta", [2, 4], [1]),
        ("uasucta", [3], [1]),
        ("uactaucta", [2, 3], []),
        ("uaua", [2], []),
        ("", [], []),
    ],
    ids=str,
)
def test_texts_that_come_to_stand_right_before_calls(roles, gone, stranded):
    kept = [index for index in range(len(roles)) if index not in gone]
    assert stranded_texts(conversation(roles), kept) == set(stranded)


@pytest.mark.parametrize(("place", "behind"), [(0, 2), (1, 2), (3, 3), (9, 9)])
def test_a_note_behind_them_keeps_them_apart(place, behind):
    assert behind_stranded({1, 2, 5}, [0, 1, 2, 4, 5, 6], place) == behind
