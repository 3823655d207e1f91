"""What is known of a stream in HBase."""

from __future__ import annotations

from headrace.stores.hbase.stream_log import StreamLog


def numbers(log: StreamLog) -> tuple[int, int, int]:
    found = log.found(None)
    return (found.first, found.last, found.count)


def test_what_is_noted_is_found_and_a_hole_is_seen() -> None:
    log = StreamLog()
    assert numbers(log) == (0, 0, 0)
    log.note(range(5, 9))
    assert numbers(log) == (5, 8, 4)
    assert log.found(b"8").is_dense()
    log.note([10])
    assert numbers(log) == (5, 10, 5)
    assert not log.found(None).is_dense()
    assert log.block == 0


def test_the_last_row_is_read_again_and_the_highest_number_is_not_forgotten() -> None:
    log = StreamLog()
    log.note(range(60, 200))
    assert log.reopen() == 199 >> 6
    assert numbers(log) == (60, 199, 132)
    log.note(range(192, 198))
    assert numbers(log) == (60, 199, 138)
    assert not log.found(None).is_dense()
    alone = StreamLog()
    alone.note([70, 71])
    assert alone.reopen() == 1
    assert numbers(alone) == (0, 71, 0)


def test_rows_that_are_not_needed_any_more_are_named_once() -> None:
    log = StreamLog()
    log.note(range(70, 300))
    log.trim(64)
    assert log.needless_rows() == range(1, 1)
    log.trim(200)
    assert numbers(log) == (200, 299, 100)
    assert log.needless_rows() == range(1, 3)
    log.block = 3
    log.trim(100)
    assert log.needless_rows() == range(3, 3)
    assert numbers(log) == (200, 299, 100)
    log.trim(1000)
    assert numbers(log) == (0, 299, 0)
    assert log.needless_rows() == range(3, 5)


def test_what_a_row_still_has_below_the_floor_is_given_to_nobody() -> None:
    log = StreamLog()
    log.note(range(1, 200))
    log.trim(150)
    log.reopen()
    log.note(range(192, 200))
    assert numbers(log) == (150, 199, 50)
    log.trim(196)
    block = log.reopen()
    log.note(range(block << 6, 200))
    assert numbers(log) == (196, 199, 4)


def test_the_first_row_is_that_of_the_first_entry() -> None:
    log = StreamLog()
    assert log.first_row() is None
    log.note(range(64, 300))
    assert log.first_row() == 1
    log.trim(150)
    assert log.first_row() == 2
