"""Which records of a partition take effect, record by record."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka.entry import BatchEntry
from headrace.storage.kafka.envelope import (
    BATCH,
    MARK,
    NO_OWNER,
    Epoch,
    Floor,
    Mark,
    pack,
    pack_floor,
    pack_mark,
    pack_owned,
    unpack,
)
from headrace.storage.kafka.log_fold import (
    Beginning,
    Floored,
    LogFold,
    Marked,
    MissingRecords,
    NewOwner,
    Taken,
    TakenPart,
    Verdict,
    Void,
)

UUID = bytes(range(16))
SEED = seed_of(UUID)
A, B = b"a" * 16, b"b" * 16


def batch(base: int, count: int = 1, body: bytes = b"x") -> bytes:
    return pack_batch_header(SEED, body, base, count, 0, 0, 0, 0) + body


class Log:
    """A partition that a test writes, and its fold."""

    def __init__(self) -> None:
        self.fold = LogFold(UUID)
        self.values: list[bytes] = []

    def add(self, value: bytes) -> Verdict:
        self.values.append(value)
        return self.fold.take(len(self.values) - 1, value)

    def owned(self, bits: bytes, previous: Epoch | None = None) -> Verdict:
        return self.add(pack_owned(SEED, bits, self.fold.owner if previous is None else previous, "w"))

    def batch(self, epoch: Epoch, base: int, count: int = 1) -> Verdict:
        return self.add(pack(SEED, BATCH, epoch, batch(base, count)))


def test_batches_of_the_owner_in_their_place_take_effect() -> None:
    log = Log()
    assert isinstance(log.batch(NO_OWNER, 1), Void)
    found = log.owned(A)
    assert found == NewOwner(Epoch(1, A), "w")
    for base, count in ((0, 2), (2, 3)):
        taken = log.batch(Epoch(1, A), base, count)
        assert isinstance(taken, Taken)
        assert (taken.batch.base_offset, taken.batch.end_offset) == (base, base + count)
    assert (log.fold.next_offset, log.fold.tail) == (5, 4)


@pytest.mark.parametrize("base", [0, 1, 3])
def test_a_batch_elsewhere_is_void_and_moves_nothing(base: int) -> None:
    log = Log()
    log.owned(A)
    log.batch(Epoch(0, A), 0, 2)
    assert isinstance(log.batch(Epoch(0, A), base), Void)
    assert log.fold.next_offset == 2


@pytest.mark.parametrize("epoch", [Epoch(0, B), Epoch(1, A), NO_OWNER])
def test_a_batch_of_another_epoch_is_void(epoch: Epoch) -> None:
    log = Log()
    log.owned(A)
    assert isinstance(log.batch(epoch, 0), Void)


def test_of_two_who_claim_after_the_same_owner_the_first_has_it() -> None:
    log = Log()
    log.owned(A)
    assert isinstance(log.owned(B, NO_OWNER), Void)
    assert log.fold.owner == Epoch(0, A)
    assert log.owned(B) == NewOwner(Epoch(2, B), "w")


def test_an_owned_that_comes_again_takes_no_effect() -> None:
    log = Log()
    log.owned(A)
    log.batch(Epoch(0, A), 0)
    again = log.values[0]
    assert isinstance(log.add(again), Void)
    log.owned(B)
    assert isinstance(log.add(again), Void)
    assert log.fold.owner.bits == B


def test_what_an_owner_of_before_had_under_way_is_void() -> None:
    log = Log()
    log.owned(A)
    log.owned(B)
    assert isinstance(log.batch(Epoch(0, A), 0), Void)
    assert isinstance(log.add(pack_mark(SEED, Epoch(0, A), Mark(0, 0, -1))), Void)
    assert isinstance(log.add(pack_floor(SEED, Epoch(0, A), Floor(0, 0, 0))), Void)
    assert isinstance(log.batch(Epoch(1, B), 0), Taken)


def parts(epoch: Epoch, base: int) -> list[bytes]:
    found = BatchEntry.of(batch(base, 2, b"y" * 300)).values(SEED, epoch, base, 200)
    assert len(found) == 3
    return found


def test_a_batch_in_parts_takes_effect_with_the_last_one() -> None:
    log = Log()
    log.owned(A)
    first, second, third = parts(Epoch(0, A), 0)
    assert log.add(first) == TakenPart(Epoch(0, A), 0)
    assert isinstance(log.add(first), Void)  # a repeat
    assert isinstance(log.add(third), Void)
    assert log.add(second) == TakenPart(Epoch(0, A), 1)
    assert log.fold.next_offset == 0
    taken = log.add(third)
    assert isinstance(taken, Taken)
    assert taken.batch.body == b"y" * 300
    assert log.fold.next_offset == 2


def test_a_new_owner_ends_a_batch_whose_last_part_is_missing() -> None:
    log = Log()
    log.owned(A)
    first, second, third = parts(Epoch(0, A), 0)
    log.add(first)
    log.owned(B)
    assert isinstance(log.add(second), Void)
    assert isinstance(log.add(third), Void)
    for value in parts(Epoch(2, B), 0):
        found = log.add(value)
    assert isinstance(found, Taken)


def test_a_mark_between_parts_ends_the_batch_for_who_begins_before_it_too() -> None:
    log = Log()
    log.owned(A)
    first, second, third = parts(Epoch(0, A), 0)
    log.add(first)
    assert isinstance(log.add(pack_mark(SEED, Epoch(0, A), Mark(0, 0, -1))), Marked)
    late = LogFold(UUID)
    late.begin_at_mark(2, log.values[2])
    for value in (second, third):
        assert isinstance(log.add(value), Void)
        assert isinstance(late.take(late.tail, value), Void)


def test_a_fold_from_a_mark_finds_what_one_from_the_beginning_does() -> None:
    log = Log()
    log.owned(A)
    log.batch(Epoch(0, A), 0, 5)
    assert log.add(pack_mark(SEED, Epoch(0, A), Mark(5, 3, 8))) == Marked(Mark(5, 3, 8), Epoch(0, A))
    late = LogFold(UUID)
    late.begin_at_mark(2, log.values[2])
    assert (late.tail, late.owner, late.next_offset) == (3, Epoch(0, A), 5)
    assert isinstance(late.take(3, pack(SEED, BATCH, Epoch(0, A), batch(5))), Taken)
    with pytest.raises(CorruptFile):
        late.begin_at_mark(1, log.values[1])


def test_an_owner_that_appends_knows_what_a_reader_finds() -> None:
    log = Log()
    log.owned(A)
    own = LogFold(UUID)
    own.take(0, log.values[0])
    for value in [*parts(Epoch(0, A), 0)[:2]]:
        log.add(value)
    entry = BatchEntry.of(batch(0, 2, b"y" * 300))
    own.append_part(1, log.values[1], entry.piece(0, 200), len(entry.data))
    own.append_part(2, log.values[2], entry.piece(1, 200), len(entry.data))
    last = parts(Epoch(0, A), 0)[2]
    log.add(last)
    own.append(3, last, entry.end(own.next_offset))
    assert (own.tail, own.next_offset, own.owner) == (log.fold.tail, log.fold.next_offset, log.fold.owner)
    assert own.is_last(last)
    assert not own.is_last(log.values[1])


def newer(value: bytes) -> bytes:
    """The same record, of a higher level."""
    rest = bytes([2]) + value[9:40]
    covered = rest if value[9] in (2, 3) else rest + value[40:]
    return value[:4] + struct.pack("<I", crc32(covered, SEED)) + rest + value[40:]


def test_a_log_whose_owner_writes_a_higher_level_is_refused() -> None:
    log = Log()
    log.owned(A)
    with pytest.raises(UnsupportedFormat, match="level 2"):
        log.add(newer(pack(SEED, BATCH, Epoch(0, A), batch(0))))
    with pytest.raises(UnsupportedFormat):
        Log().add(newer(pack_owned(SEED, A, NO_OWNER, "w")))


def test_what_is_void_may_be_of_any_level() -> None:
    log = Log()
    log.owned(A)
    assert isinstance(log.add(newer(pack_owned(SEED, B, NO_OWNER, "w"))), Void)
    assert isinstance(log.add(newer(pack(SEED, BATCH, Epoch(0, B), batch(0)))), Void)


def test_a_gap_is_no_void_record() -> None:
    log = Log()
    log.owned(A)
    with pytest.raises(MissingRecords, match="offset 1 was to be read next"):
        log.fold.take(2, log.values[0])


@pytest.mark.parametrize("value", [None, b"", b"whatever", b"\xd7HRK" + bytes(60)])
def test_what_others_write_is_void(value: bytes | None) -> None:
    assert isinstance(LogFold(UUID).take(0, value), Void)


def test_damage_is_void() -> None:
    log = Log()
    log.owned(A)
    data = batch(0)
    assert isinstance(log.add(pack(SEED, BATCH, Epoch(0, A), data[:-1] + b"!")), Void)
    assert isinstance(log.add(pack(SEED, MARK, Epoch(0, A), b"short")), Void)
    assert isinstance(log.batch(Epoch(0, A), 0), Taken)


# Where a reader begins


class AnyMark(Beginning):
    """A reader that begins at any MARK."""

    def take(self, offset: int, value: bytes | None) -> int | None:
        found = unpack(SEED, value or b"")
        return offset if found is not None and found.kind == MARK else None


def log_with_a_void_mark() -> Log:
    """A log that begins, for who has no more of it, with a MARK that is void."""
    log = Log()
    log.owned(A)
    log.batch(Epoch(0, A), 0)
    log.owned(B)
    epoch = log.fold.owner
    assert isinstance(log.add(pack_mark(SEED, Epoch(0, A), Mark(1, 0, -1))), Void)
    log.batch(epoch, 1)
    assert isinstance(log.add(pack_mark(SEED, epoch, Mark(2, 0, -1))), Marked)
    log.batch(epoch, 2)
    assert isinstance(log.add(pack_floor(SEED, epoch, Floor(3, 2, 5))), Floored)
    log.batch(epoch, 3)
    return log


def found_from(log: Log, search: Beginning, start: int) -> list[int]:
    """The base offsets of the batches that a reader finds, of what is there from `start` on."""
    beginning = next(
        at
        for offset in range(start, len(log.values))
        if (at := search.take(offset, log.values[offset])) is not None
    )
    fold = LogFold(UUID)
    fold.begin_at_mark(beginning, log.values[beginning])
    verdicts = [fold.take(offset, log.values[offset]) for offset in range(fold.tail, len(log.values))]
    return [verdict.batch.base_offset for verdict in verdicts if isinstance(verdict, Taken)]


@pytest.mark.parametrize("start", [1, 3, 4, 5])
def test_a_reader_begins_at_a_mark_that_a_floor_names(start: int) -> None:
    assert found_from(log_with_a_void_mark(), Beginning(UUID), start) == [2, 3]


def test_a_reader_that_begins_at_any_mark_loses_what_is_there() -> None:
    assert found_from(log_with_a_void_mark(), AnyMark(UUID), 3) == []


def test_without_a_floor_there_is_no_beginning() -> None:
    log = log_with_a_void_mark()
    search = Beginning(UUID)
    for offset in (3, 4, 5, 6, 8):
        assert search.take(offset, log.values[offset]) is None
