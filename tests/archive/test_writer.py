# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Writing passes to archives that work, that fail, and that come back."""

import pytest
from archive.programs import memory_archive, report_of
from haystack.dataclasses import ChatMessage

from haystack_compaction.archive import ArchiveError, ArchiveWriter, full_transcript

MESSAGES = [ChatMessage.from_user(f"message {number}") for number in range(6)]


class Flaky:
    """An archive of which each method fails while it is told to."""

    def __init__(self, archive, *methods):
        self.archive = archive
        self.methods = methods
        self.fails = True

    def __getattr__(self, name):
        if self.fails and name in self.methods:
            raise OSError("disk full")
        return getattr(self.archive, name)


@pytest.fixture
def flaky(tmp_path):
    return Flaky(memory_archive(tmp_path), "append", "outline")


def write(writer, before, after, **options):
    return writer.write(before, after, report_of(before, after), **options)


def test_an_unknown_policy_is_refused(flaky):
    with pytest.raises(ValueError, match="must be one of keep, drop, raise, got 'ignore'"):
        ArchiveWriter(flaky, "a", on_failure="ignore")


def test_messages_are_kept_while_they_fit(flaky, caplog):
    writer = ArchiveWriter(flaky, "a")
    assert not write(writer, MESSAGES, MESSAGES[3:])
    assert "not compacted" in caplog.text
    flaky.fails = False
    assert write(writer, MESSAGES, MESSAGES[4:])
    assert full_transcript(flaky, "a", MESSAGES[4:]) == MESSAGES


@pytest.mark.parametrize("methods", [("append",), ("append", "outline")])
def test_what_must_go_is_archived_as_soon_as_that_is_possible_again(tmp_path, methods, caplog):
    flaky = Flaky(memory_archive(tmp_path), *methods)
    writer = ArchiveWriter(flaky, "a")
    assert write(writer, MESSAGES[:4], MESSAGES[2:4], fits=False)
    assert "2 messages that are no longer in the conversation are in memory only" in caplog.text
    assert write(writer, MESSAGES[2:5], MESSAGES[3:5], fits=False)
    flaky.fails = False
    assert write(writer, MESSAGES[3:], MESSAGES[5:], fits=False)
    assert full_transcript(flaky, "a", MESSAGES[5:]) == MESSAGES
    assert len(flaky.passes("a")) == 1


def test_what_waits_to_be_archived_outlives_a_conflict(flaky):
    flaky.fails = False
    write(ArchiveWriter(flaky, "a"), MESSAGES[:1], [])
    flaky.fails = True
    writer = ArchiveWriter(flaky, "a", on_failure="drop")
    assert write(writer, MESSAGES[1:4], MESSAGES[3:4])
    flaky.fails = False
    assert write(writer, MESSAGES[3:6], MESSAGES[5:6])
    restored = full_transcript(flaky, "a", MESSAGES[5:])
    assert sorted(message.text for message in restored) == [message.text for message in MESSAGES]


def test_the_other_policies(flaky):
    assert write(ArchiveWriter(flaky, "a", on_failure="drop"), MESSAGES, MESSAGES[3:])
    with pytest.raises(ArchiveError, match="disk full"):
        write(ArchiveWriter(flaky, "a", on_failure="raise"), MESSAGES, MESSAGES[3:])


async def test_without_blocking_the_event_loop(tmp_path):
    archive = memory_archive(tmp_path)
    assert await ArchiveWriter(archive, "a").write_async(MESSAGES, MESSAGES[3:], report_of(MESSAGES, MESSAGES[3:]))
    assert len(archive.read_range("a")) == 3
