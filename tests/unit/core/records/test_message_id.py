"""The 16 bytes of a message id are the MD5 of the text that the lake has as `message_id`."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from headrace.core.records.message import FrameMessage, Message
from headrace.core.records.message_id import JournalName, Origin, origin_in

JOURNAL = "0e4c9d3c-6d1f-4f6a-8a54-5d7f6f3f2b11:2"
NAME = JournalName("0e4c9d3c-6d1f-4f6a-8a54-5d7f6f3f2b11", [(0, 2)])


def md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def published(client_id: str, own: str | None) -> Message:
    properties = b""
    if own is not None:
        name, value = b"message-id", own.encode()
        properties = b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value
    origin = b"default" + client_id.encode()
    found = Message(1, 1, 1, 1, "default", origin, 7, b"t", properties, -1, b"x")
    found.offset = 77
    return found


def test_without_an_id_of_its_own_it_is_that_of_journal_and_offset() -> None:
    frame = FrameMessage(1, 5, "default", b"defaultdoor", 7, b"t", -1, b"x")
    frame.offset = 77
    assert NAME.id_of(frame) == NAME.id_of(published("door", None)) == md5(f"journal:{JOURNAL}:77")


@pytest.mark.parametrize(
    ("client_id", "own", "text"),
    [
        ("door", "m-1", "client:default/door/m-1"),
        ("a/b%c", "é", "client:default/a%2Fb%25c/é"),
        ("door", "x" * 65_535, "client:default/door/" + "x" * 65_535),
    ],
)
def test_an_id_of_the_publisher_counts_for_its_client(client_id: str, own: str, text: str) -> None:
    assert NAME.id_of(published(client_id, own)) == md5(text)


def test_an_empty_id_is_none_and_the_message_is_called_by_its_place() -> None:
    assert NAME.id_of(published("door", "")) == md5(f"journal:{JOURNAL}:77")


def test_a_message_has_the_epoch_that_it_was_written_in() -> None:
    name = JournalName("u", [(100, 1), (200, 3)])
    assert [name.id_of(at(offset)) for offset in (0, 100, 199, 200, 10**9)] == [
        md5(text)
        for text in (
            "journal:u:1:0",
            "journal:u:1:100",
            "journal:u:1:199",
            "journal:u:3:200",
            "journal:u:3:1000000000",
        )
    ]
    assert JournalName("u", [(0, 7)]).id_of(at(5)) == md5("journal:u:7:5")


OLD = [(0, 7), (100, 9)]


@pytest.mark.parametrize("found", [[(200, 10)], [(150, 9), (200, 10)], [(150, 9), (200, 10), (300, 12)]])
def test_what_was_copied_is_called_what_it_was_called_whatever_is_left_of_it(
    found: list[tuple[int, int]],
) -> None:
    """Of the old journal's records a new one has some, or none; it may have been restored since."""
    name = JournalName("new", found, Origin("old", 200, OLD))
    assert name.differs_from(JournalName("old", OLD), 200) == -1
    assert name.id_of(at(99)) == md5("journal:old:7:99")
    assert name.id_of(at(199)) == md5("journal:old:9:199")
    assert name.id_of(at(200)) == md5("journal:new:10:200")


def test_copies_of_which_an_older_version_has_not_said_the_epochs_have_those_that_are_found() -> None:
    name = JournalName("new", [(150, 9), (200, 10)], Origin("old", 200, []))
    assert name.id_of(at(150)) == md5("journal:old:9:150")
    assert name.id_of(at(200)) == md5("journal:new:10:200")


@pytest.mark.parametrize(
    ("other", "lowest"),
    [
        (JournalName("u", [(0, 1), (100, 2)]), -1),
        (JournalName("u", [(50, 1), (100, 2)]), -1),  # the first one holds from the beginning
        (JournalName("u", [(0, 1), (99, 2)]), 99),
        (JournalName("u", [(0, 1)]), 100),
        (JournalName("v", [(0, 1), (100, 2)]), 0),
        (JournalName("u", [(0, 1), (100, 2), (200, 3)]), -1),  # no longer of what is compared
    ],
)
def test_two_names_are_compared_by_what_they_call_each_message(other: JournalName, lowest: int) -> None:
    name = JournalName("u", [(0, 1), (100, 2)])
    assert name.differs_from(other, 200) == lowest
    assert other.differs_from(name, 200) == lowest


def at(offset: int) -> Message:
    found = published("door", None)
    found.offset = offset
    return found


def test_the_origin_is_found_among_the_first_entries_alone() -> None:
    entry = Origin("old", 200, OLD).entry()
    streams, session = (msgspec.msgpack.encode(some) for some in (["streams", [], []], ["session", "a"]))
    found = origin_in([streams, entry, session])
    assert found is not None
    assert (found.uuid, found.end, found.epochs, found.epoch) == ("old", 200, OLD, OLD[-1][1])
    assert origin_in([streams, session, entry]) is None
    assert origin_in([]) is None
    older = origin_in([msgspec.msgpack.encode(["origin", "old", 200])])
    assert older is not None
    assert older.epoch == -1


def test_the_epoch_of_an_origin_is_that_of_its_last_record() -> None:
    """An epoch in which nothing was written, as behind a restore, has no record there."""
    began_after = [(0, 1), (100, 7), (200, 99)]
    assert Origin("old", 200, began_after).epoch == 7
    assert Origin("old", 201, began_after).epoch == 99
    assert Origin("old", 0, [(0, 3)]).epoch == -1
