# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import chat, step

from haystack_compaction import EstimateTokenCounter
from haystack_compaction.salience.digest import digest_of, write_digest
from haystack_compaction.salience.reading import Reading
from haystack_compaction.salience.texts import Voice

COUNT = EstimateTokenCounter().count_text

TALK = {
    "en": ["What is a tide?", "The tide is high at noon.", "The tide is low at night.", "And the moon?"],
    "de": ["Was ist eine Tide?", "Mittags ist die Tide hoch.", "Nachts ist die Tide niedrig.", "Und der Mond?"],
    "zh": ["什么是潮汐？", "中午潮水高。", "晚上潮水低。", "那月亮呢？"],
}


def user(text):
    return ChatMessage.from_user(text)


def assistant(text):
    return ChatMessage.from_assistant(text)


def small_talk(language="en", turns=40):
    first, high, low, moon = TALK[language]
    return [
        message for _ in range(turns // 2) for message in (user(first), assistant(high), user(moon), assistant(low))
    ]


def digest(messages, budget=120, **options):
    text = write_digest(messages, budget_tokens=budget, count_text=COUNT, **options)
    assert COUNT(text) <= budget
    return text


@pytest.mark.parametrize(
    ("language", "fact"),
    [
        ("en", "Whatever you do, leave the billing tables alone."),
        ("en", "I'd much rather travel by train to Lisbon."),
        ("en", "Two signatures from finance before anything ships."),
        ("de", "Finger weg von der Abrechnung, die gehört einem anderen Team."),
        ("de", "Rechnungen über zehntausend Euro unterschreibt Frau Brandt."),
        ("zh", "财务那边要先签字才能发货。"),
        ("zh", "住宿请安排在河边的旅馆。"),
    ],
)
@pytest.mark.parametrize("place", [0, 40, 76])
def test_what_a_user_lays_down_survives_small_talk(language, fact, place):
    messages = small_talk(language)
    messages[place] = user(fact)
    assert fact in digest(messages)


@pytest.mark.parametrize(
    "value", ["/srv/ember/ember-658.csv", "https://jade282.example.org/v5", "OPS-44716", "9f8e7d6c5b4a", "$48,213.50"]
)
def test_an_exact_value_in_a_tool_result_survives(value):
    messages = [user("Check all services.")]
    for number in range(60):
        messages += step("read_log", f"INFO service {number % 7} took {number} ms", call_id=str(number))
    messages[42:42] = step("upload", f"Stored the archive as {value}", call_id="x")
    assert value in digest(messages)


@pytest.mark.parametrize(
    ("old", "new", "stale", "valid"),
    [
        ("The relay listens on port 8080.", "Correction: the relay listens on port 9443.", "8080", "9443"),
        ("Budget for parking is $12,000.", "I just heard, budget for parking is $15,500 now.", "12,000", "15,500"),
        ("Mira arrives on 2027-03-04.", "Mira had to rebook and arrives on 2027-04-09.", "2027-03-04", "2027-04-09"),
        ("We meet Mira Okafor in Bremen.", "Change of plan, we meet Mira Okafor in Leipzig.", "Bremen", "Leipzig"),
        ("Das Relais lauscht auf Port 8080.", "Korrektur: Das Relais lauscht auf Port 9443.", "8080", "9443"),
        ("邮件中继监听8080端口。", "更正一下，邮件中继监听9443端口。", "8080", "9443"),
    ],
)
def test_the_newest_value_wins(old, new, stale, valid):
    messages = small_talk(turns=20)
    messages[4], messages[5], messages[20] = user(old), assistant(f"Noted: {old}"), user(new)
    text = digest(messages)
    assert valid in text
    assert stale not in text


def test_values_of_different_subjects_stand_side_by_side():
    facts = [
        "The staging server is at 10.0.0.1.",
        "The production server is at 10.0.0.2.",
        "Mira's number is 48121.",
        "Jonas' number is 53977.",
    ]
    messages = small_talk(turns=20)
    for place, fact in zip((2, 8, 14, 20), facts, strict=True):
        messages[place] = user(fact)
    text = digest(messages)
    assert all(fact in text for fact in facts)


def test_a_correction_of_what_an_earlier_digest_says_wins_too():
    earlier = digest([*small_talk(turns=10), user("The relay listens on port 8080.")])
    text = digest([*small_talk(turns=10), user("No, the relay listens on port 9443.")], previous=earlier)
    assert "9443" in text
    assert "8080" not in text


def test_repeated_digesting_loses_nothing_that_fits():
    facts = [f"Rule {name}: the {name} cabinet stays locked." for name in ("amber", "birch", "cobalt", "dune", "elm")]
    messages = small_talk()
    for place, fact in enumerate(facts):
        messages[place * 8] = user(fact)
    text = digest(messages)
    for _ in range(6):
        text = digest(small_talk(), previous=text)
    assert all(fact in text for fact in facts)
    assert text.count("amber cabinet") == 1


def test_a_summary_of_other_origin_is_carried_on():
    earlier = "# Goal\nFind the leak in the cellar.\n# Rules\n- The owner must be called before 18:00."
    assert "The owner must be called before 18:00." in digest(small_talk(), previous=earlier)


def test_what_is_said_often_stands_there_once():
    text = digest([message for _ in range(9) for message in (user("Try again."), assistant("It failed."))])
    assert text.splitlines().count("- Try again. (x9)") == 1


def invoices(number):
    return [
        message
        for index in range(number)
        for message in step(
            "get_invoice", f"Invoice INV-{1040 + 7 * index} of 2027-03-{index + 1:02} is paid.", call_id=str(index)
        )
    ]


def test_values_of_what_comes_in_many_versions_are_listed_on_one_line():
    text = digest([user("Book all invoices."), *invoices(20)], budget=900)
    lines = [line for line in text.partition("## Tools returned")[2].splitlines() if "Invoice" in line]
    assert len(lines) == 1
    assert all(f"INV-{1040 + 7 * index}" in lines[0] and f"2027-03-{index + 1:02}" in lines[0] for index in range(20))


def test_values_that_do_not_fit_are_counted():
    text = digest([user("Book all invoices."), *invoices(20)], budget=90)
    assert "(and 19 more like it, with other values" in text
    assert "INV-1173" in text
    assert "INV-1040" not in text


def test_listed_values_are_carried_on():
    text = digest([user("Book all invoices."), *invoices(20)], budget=900)
    for _ in range(3):
        text = digest(small_talk(turns=10), budget=900, previous=text)
    assert "(and 19 more like it, with other values" in text
    assert "INV-1040 2027-03-01" in text


def test_writing_a_digest_leaves_the_reading_as_it_is():
    reading = Reading([*small_talk(turns=10), *invoices(20), *small_talk(turns=10)])
    first, second = (digest_of(reading, range(100), budget_tokens=400, count_text=COUNT) for _ in range(2))
    assert first == second


def test_what_a_later_call_was_given_counts_as_referred_to():
    orders = [step("create_order", f"Created order OPS-{number} for the depot.") for number in (417, 528, 639)]
    used = step("pay", "done")
    used[0].tool_calls[0].arguments["order"] = "OPS-528"
    reading = Reading([user("Go."), *orders[0], *orders[1], *orders[2], *used])
    weights = {statement.text: statement.weight for statement in reading.statements if statement.voice is Voice.TOOL}
    assert max(weights, key=weights.get) == "Created order OPS-528 for the depot."


def test_calls_are_listed_with_their_outcome():
    messages = [user("Book a room."), *step("book_room", "confirmed, code RB-20418", call_id="1")]
    text = digest(messages, budget=500)
    assert "book_room(of=confirmed,): confirmed, code RB-20418" in text


def test_calls_are_counted_over_passes():
    first = digest([user("Go."), *step("search", "one", call_id="1"), *step("book", "two", call_id="2")], budget=300)
    second = digest([user("Go on."), *step("search", "three", call_id="3")], budget=300, previous=first)
    assert "- Calls: search x2, book x1" in second.splitlines()


def failed(name, result):
    call = step(name, result)[0].tool_calls[0]
    return [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool(result, origin=call, error=True)]


def test_problems_stay_open_until_the_tool_succeeds():
    first = digest(
        [user("Go."), *failed("upload", "disk quota exceeded"), *failed("mail", "no route to host")], budget=300
    )
    assert "- upload failed: disk quota exceeded" in first.partition("## Open problems")[2]
    second = digest([user("Go on."), *step("upload", "done")], budget=300, previous=first)
    assert "disk quota exceeded" not in second
    assert "- mail failed: no route to host" in second


def test_it_is_deterministic():
    messages = chat(30)
    assert digest(messages) == digest(messages)


@pytest.mark.parametrize("budget", [-5, 0, 1, 3, 10, 40, 200])
@pytest.mark.parametrize("count_text", [COUNT, len, lambda text: len(text.split()), lambda text: 7 + len(text) // 3])
def test_the_budget_is_never_exceeded(budget, count_text):
    text = write_digest(chat(30), budget_tokens=budget, count_text=count_text, previous="- an old line\n" * 9)
    assert text == "" or count_text(text) <= budget


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=80), max_size=12),
    previous=st.text(max_size=80),
    task=st.text(max_size=20),
    budget=st.integers(0, 60),
)
def test_no_text_breaks_it(texts, previous, task, budget):
    messages = [step("t", text)[1] if index % 3 == 2 else user(text) for index, text in enumerate(texts)]
    digest(messages, budget=budget, previous=previous, task_text=task)


@pytest.mark.parametrize(
    "text", [" " * 1_000_000, "x" * 2_000_000, "\ud800 <|endoftext|> \x00", "[{" * 9_999, "1," * 99_999]
)
def test_hostile_messages_are_digested(text):
    digest([user(text), assistant("Fine."), *step("t", text)])


def test_a_conversation_too_large_to_read_whole_keeps_its_rules():
    messages = small_talk(turns=9_000)
    fact = "Whatever you do, leave the billing tables alone."
    messages[5_000] = user(fact)
    assert fact in digest(messages)


def test_a_call_is_one_line_whatever_its_arguments_say():
    call = ToolCall("send_mail", {"text": "Your seat is kept. Please pay by card."}, id="1")
    messages = [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool("Mail 77 is queued.", origin=call)]
    digest = write_digest(messages, budget_tokens=200, count_text=EstimateTokenCounter().count_text)
    assert "send_mail(text=Your seat is kept. Please pay by card.): Mail 77 is queued." in digest


@pytest.mark.parametrize(
    "alike",
    [
        ["User 4711 wants a refund.", "User 4712 wants a refund."],
        ["Never delete table orders_2021.", "Never delete table orders_2022.", "Never delete table orders_2023."],
        ["Do not touch /etc/shop/a.yaml.", "Do not touch /srv/mail/c.conf."],
        ["Cabin A costs 180 EUR.", "Cabin B costs 210 EUR.", "Cabin C costs 250 EUR."],
        ["Please note that Alice's booking is BK-0007.", "Please note that Bruno's booking is BK-0038."],
        ["Nutzer 4711 will sein Geld zurück.", "Nutzer 4712 will sein Geld zurück."],
        # Words that often put something right, and here belong to the matter.
        ["Please update billing to 1.2.0.", "Please update search to 1.3.0.", "Please update mail to 1.4.0."],
        ["Now check order 7001.", "Now check order 7002."],
        ["Change the price of the red kayak to 45 EUR.", "Change the price of the blue kayak to 55 EUR."],
        ["现在检查订单 7001。", "现在检查订单 7002。"],
    ],
)
def test_similar_matters_do_not_put_each_other_right(alike):
    messages = []
    for text in alike:
        messages += [ChatMessage.from_user(text), ChatMessage.from_assistant("Fine, I have that.")]
    digest = write_digest(messages, budget_tokens=200, count_text=EstimateTokenCounter().count_text)
    assert all(text in digest for text in alike)
