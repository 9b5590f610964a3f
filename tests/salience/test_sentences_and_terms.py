# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haystack_compaction.salience.sentences import sentences
from haystack_compaction.salience.terms import Reader


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Never push to main. Use port 8443!", ["Never push to main.", "Use port 8443!"]),
        ("He said e.g. this one. Then no.", ["He said e.g. this one.", "Then no."]),
        ("Version 2.3.1 is out. 7 bugs left.", ["Version 2.3.1 is out.", "7 bugs left."]),
        ("端口改为8443了。请不要删除！好吗？", ["端口改为8443了。", "请不要删除！", "好吗？"]),
        ("明日は休みです。会議は中止。", ["明日は休みです。", "会議は中止。"]),
        ('"Stop." she said. Und nun?', ['"Stop."', "she said.", "Und nun?"]),
        ("one\n\n  two \r\nthree", ["one", "two", "three"]),
        ("   ", []),
    ],
)
def test_sentences_of_prose(text, expected):
    assert sentences(text) == expected


def test_the_values_of_an_object_stay_together():
    text = json.dumps(
        {"status": "ok", "orders": [{"id": "A-1", "total": 3}, {"id": "A-2", "total": 4}], "tags": ["x", "y"]}
    )
    assert sentences(text) == ["status: ok", "orders: id: A-1, total: 3", "orders: id: A-2, total: 4", "tags: x, y"]


def test_a_long_sentence_is_cut_between_words():
    text = "word " * 500
    pieces = sentences(text)
    assert len(pieces) > 5
    assert set(" ".join(pieces).split()) == {"word"}
    assert " ".join(pieces).split() == text.split()


@given(st.text(alphabet=st.characters(), max_size=400))
def test_nothing_visible_is_lost(text):
    if text.lstrip()[:1] not in ("{", "["):
        assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "\ud800 lone",
        " " * 1_000_000,
        "a" * 1_000_000,
        "[" * 100_000,
        "1" * 100_000,
        "/a" * 100_000,
        ". " * 100_000,
        "«" * 9_999,
        "a_" * 50 + "-",
    ],
    ids=["surrogate", "spaces", "one word", "brackets", "digits", "path", "dots", "quotes", "underscores"],
)
def test_hostile_texts_are_read(text):
    reader = Reader()
    for sentence in sentences(text):
        reader.read(sentence)


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("see https://a.example/b?c=1.", "https://a.example/b?c=1", "url"),
        ("mail Mira.O@example.org, please", "mira.o@example.org", "email"),
        ("it is in /etc/app/app.yaml.", "/etc/app/app.yaml", "path"),
        ("in C:\\Users\\mira\\notes.txt", "c:\\users\\mira\\notes.txt", "path"),
        ("on 2027-03-04", "2027-03-04", "date"),
        ("am 14.03.2027,", "14.03.2027", "date"),
        ("at 14:30.", "14:30", "time"),
        ("costs $12,500.50!", "$12,500.50", "amount"),
        ("weighs 30kg", "30kg", "amount"),
        ("runs 2.14.3", "2.14.3", "version"),
        ("commit 9f8e7d6c5b", "9f8e7d6c5b", "hash"),
        ("ticket OPS-4471", "ops-4471", "id"),
        ("set MAX_RETRIES", "max_retries", "name"),
        ("端口改为8443了", "8443", "number"),
        ("pay(order=OPS-528)", "ops-528", "id"),
        ("放在/data/prod里", "/data/prod", "path"),
    ],
)
def test_values_are_recognised_in_their_surroundings(text, value, kind):
    assert Reader().read(text).values[value] == kind


def test_inflections_share_a_term():
    reader = Reader()
    assert reader.read("deploying").terms == reader.read("Deployed").terms


def test_scripts_without_spaces_have_terms_too():
    reader = Reader()
    assert reader.read("数据仓库的端口").terms & reader.read("我们的数据仓库").terms >= {"数据", "仓库"}
