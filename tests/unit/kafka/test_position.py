"""Where a sink goes on."""

from __future__ import annotations

import pytest

from headrace.kafka.errors import OtherJournal
from headrace.kafka.position import JournalNow, Position, Resumed, resume

ONE = JournalNow("u", 1, [(0, 1)], 0, 100)
CUT = JournalNow("u", 2, [(0, 1), (60, 2)], 0, 100)
"""At 60 another history begins."""


def unknown(_offset: int) -> int | None:
    return None


def test_a_position_is_read_back_and_may_get_more_fields() -> None:
    for one in (Position("u", 3, 7), Position("u", 3, 7, 1_900_000_000_000_000)):
        assert Position.unpack(one.pack()) == one
    one = Position("u", 3, 7)
    assert Position.unpack(b'{"journal": "u", "epoch": 3, "offset": 7, "new": 1}') == one
    for wrong in (b"", b"{}", b"7", b'{"journal": "u", "epoch": "x", "offset": 7}'):
        with pytest.raises(ValueError, match="no position"):
            Position.unpack(wrong)


@pytest.mark.parametrize(
    ("kafka", "local", "now", "offset"),
    [
        (None, Position("u", 1, 30), ONE, 30),  # Kafka has nothing of it: the consumer held what is not sent
        (
            Position("u", 1, 40),
            Position("u", 1, 30),
            ONE,
            40,
        ),  # killed between the transaction and the consumer
        (Position("u", 1, 20), Position("u", 1, 30), ONE, 20),  # Kafka has lost its newest transactions
        (Position("other", 1, 90), Position("u", 1, 30), ONE, 30),
        (
            Position("u", 1, 80),
            Position("u", 1, 80),
            CUT,
            60,
        ),  # what is there from 60 on is not what was sent
        (Position("u", 1, 50), Position("u", 1, 50), CUT, 50),
        (Position("u", 2, 80), Position("u", 1, 50), CUT, 80),
    ],
)
def test_it_goes_on_where_kafka_has_it(
    kafka: Position | None, local: Position, now: JournalNow, offset: int
) -> None:
    assert resume(kafka, local, now, unknown) == Resumed(offset)


def test_what_the_journal_has_let_go_of_is_lost_and_counted() -> None:
    found = resume(
        Position("u", 1, 30), Position("u", 1, 30), JournalNow("u", 1, [(40, 1)], 40, 100), unknown
    )
    assert (found.offset, found.lost) == (40, 10)
    assert "10 offsets" in found.why


def test_a_journal_that_is_shorter_than_what_was_sent_is_said() -> None:
    found = resume(Position("u", 1, 300), Position("u", 1, 300), ONE, unknown)
    assert (found.offset, found.lost, "ends at 100" in found.why) == (100, 0, True)


def test_a_journal_that_nobody_knows_is_sent_from_its_beginning() -> None:
    found = resume(None, Position("before", 1, 90), ONE, unknown)
    assert (found.offset, found.lost, bool(found.why)) == (0, 0, True)


def test_an_older_copy_that_has_grown_past_what_was_sent_is_refused() -> None:
    """Its epoch is the same, and what it has there was never sent."""
    sent, local = Position("u", 1, 40, 7), Position("u", 1, 30)
    assert resume(sent, local, ONE, {40: 7}.get) == Resumed(40)
    assert resume(sent, local, ONE, unknown) == Resumed(40)  # it may be gone, or compacted
    with pytest.raises(OtherJournal, match="record 39 is another one"):
        resume(sent, local, ONE, {40: 8}.get)
    before_the_cut = Position("u", 1, 50, 7)
    with pytest.raises(OtherJournal, match="record 49"):
        resume(before_the_cut, local, CUT, {50: 8}.get)
    assert resume(Position("u", 1, 80, 7), local, CUT, {60: 8, 80: 8}.get) == Resumed(60)


def test_a_copy_of_a_lower_epoch_than_was_sent_is_refused() -> None:
    with pytest.raises(OtherJournal, match="in epoch 5 up to offset 40, and is in 1"):
        resume(Position("u", 5, 40), Position("u", 1, 30), ONE, unknown)
