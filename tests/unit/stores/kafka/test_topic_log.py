"""What is known of a topic: repeats, holes, trims, and what may be deleted."""

from __future__ import annotations

from headrace.stores.kafka.record import StreamKey
from headrace.stores.kafka.topic_log import INDEX_STEP, StreamLog, TopicLog

ONE, TWO = StreamKey("5f" * 16, 7, 1), StreamKey("5f" * 16, 7, 2)


def stream(*serials: int) -> StreamLog:
    made = StreamLog()
    for offset, serial in enumerate(serials, 100):
        made.note(serial, offset)
    return made


def test_a_record_that_comes_twice_counts_once() -> None:
    found = stream(5, 6, 7, 6, 7, 8)
    assert (found.first, found.last, found.count()) == (5, 8, 4)
    assert found.last_offset == 105
    assert found.offset_for(8) == 100


def test_holes_are_counted_and_trimmed() -> None:
    found = stream(1, 2, 5, 6, 9)
    assert found.count() == 5
    found.trim(3)
    assert (found.first, found.last, found.count()) == (5, 9, 3)
    found.trim(6)
    assert (found.first, found.count()) == (6, 2)
    found.trim(4)
    assert found.first == 6
    found.trim(7)
    assert (found.first, found.count()) == (9, 1)
    found.trim(10)
    assert (found.first, found.last, found.count(), found.needed_from()) == (0, 9, 0, None)


def test_numbers_go_on_behind_what_was_trimmed() -> None:
    found = stream(1, 2)
    found.trim(3)
    assert not found.note(2, 150)
    assert found.note(3, 151)
    assert (found.first, found.last, found.count()) == (3, 3, 1)


def test_the_index_says_from_where_on_a_number_is_found() -> None:
    found = stream(*range(1, 10 * INDEX_STEP + 1))
    for serial in (1, INDEX_STEP, INDEX_STEP + 1, 5 * INDEX_STEP + 7, 10 * INDEX_STEP):
        offset = 99 + serial
        assert offset - INDEX_STEP < found.offset_for(serial) <= offset
    found.trim(5 * INDEX_STEP + 7)
    assert found.needed_from() == 100 + 5 * INDEX_STEP


def test_what_no_stream_needs_may_go() -> None:
    log = TopicLog("id", 10)
    for offset, key, serial in ((10, ONE, 1), (11, ONE, 2), (12, TWO, 3), (13, TWO, 4)):
        log.note(key, serial, offset)
    assert (log.end, log.needless_below()) == (14, 10)
    log.delete(ONE)
    assert log.needless_below() == 12
    log.note(ONE, 3, 14)  # one that was late
    assert log.is_dead(ONE)
    assert ONE not in log.streams
    log.delete(TWO)
    assert log.needless_below() == log.end == 15
    assert not log.is_foreign


def test_records_of_others_are_noticed() -> None:
    log = TopicLog("id", 0)
    log.note(None, 0, 0)
    assert log.is_foreign
    assert log.end == 1
