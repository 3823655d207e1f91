"""Reading a shard's journal in Kafka without owning it: what counts, where one begins, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from headrace.journal.errors import EpochMismatch, OffsetOutOfRange
from headrace.journal.segment import pack_batch_header, seed_of
from headrace.journal.selective import TimeRange
from headrace.storage.kafka import journal_reader
from headrace.storage.kafka.chains import FULL, Manifest, pack_manifest, pack_piece
from headrace.storage.kafka.entry import BatchEntry
from headrace.storage.kafka.envelope import (
    BATCH,
    NO_OWNER,
    Epoch,
    Floor,
    Mark,
    pack,
    pack_floor,
    pack_mark,
    pack_owned,
)
from headrace.storage.kafka.journal_reader import STEP_BYTES, KafkaHasLost, KafkaJournalReader
from headrace.storage.kafka.log_fold import MissingRecords

UUID = bytes(range(16))
SEED = seed_of(UUID)
A, B = Epoch(0, b"a" * 16), b"b" * 16


class Partition:
    """Records in memory; it notes which ones are read."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.start = 0
        self.read: list[int] = []

    def add(self, value: bytes) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def bounds(self) -> tuple[int, int]:
        return self.start, len(self.values)

    def records(self, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        if start < self.start:
            raise MissingRecords(start, self.start)
        for at in range(start, end):
            self.read.append(at)
            yield at, self.values[at]


class Shard:
    """A journal that a test writes, with its snapshots."""

    def __init__(self) -> None:
        self.journal, self.snapshots = Partition(), Partition()
        self.owner = A
        self.journal.add(pack_owned(SEED, A.bits, NO_OWNER, "n0/0"))
        self.next_offset = 0

    def data(self, base: int, count: int, size: int, at_us: int) -> bytes:
        body = bytes([base % 251]) * size
        return pack_batch_header(SEED, body, base, count, 0, 0, at_us, at_us) + body

    def batch(self, count: int = 1, size: int = 10, at_us: int = 0) -> int:
        value = pack(SEED, BATCH, self.owner, self.data(self.next_offset, count, size, at_us))
        self.next_offset += count
        return self.journal.add(value)

    def mark(self) -> tuple[int, int]:
        return self.next_offset, self.journal.add(pack_mark(SEED, self.owner, Mark(self.next_offset, 0, -1)))

    def manifest(self, *places: tuple[int, int]) -> None:
        self.snapshots.add(pack_piece(SEED, NO_OWNER, b"n" * 16, 0, b"x"))
        found = Manifest(
            b"n" * 16, FULL, places[-1][0], places[-1][0], places[-1][1], 0, 1, 1, crc32(b"x"), places
        )
        self.snapshots.add(pack_manifest(SEED, self.owner, found))

    def reader(self) -> KafkaJournalReader:
        return KafkaJournalReader(UUID, self.journal, self.snapshots)


def found(reader: KafkaJournalReader, start: int, end: int | None = None) -> list[tuple[int, int]]:
    return [(batch.base_offset, batch.end_offset) for batch in reader.scan(start, end)]


def test_batches_that_count_are_read_and_void_ones_are_not() -> None:
    shard = Shard()
    shard.batch(2)
    shard.journal.add(pack(SEED, BATCH, A, shard.data(0, 2, 10, 0)))  # a repeat
    late = pack(SEED, BATCH, A, shard.data(2, 1, 99, 0))
    shard.owner = Epoch(shard.journal.add(pack_owned(SEED, B, A, "n1/0")), B)
    shard.journal.add(late)  # of who was the owner before
    shard.journal.add(b"anything")
    shard.batch(3)
    reader = shard.reader()
    assert (reader.start_offset(), reader.complete_offset(), reader.high_watermark()) == (0, 0, 5)
    assert found(reader, 0) == [(0, 2), (2, 5)]
    assert len(next(reader.scan(2)).body) == 10
    assert found(reader, 3, 4) == [(2, 5)]
    assert found(reader, 5) == []
    assert (reader.uuid, reader.epoch) == ("00010203-0405-0607-0809-0a0b0c0d0e0f", 0)


def test_what_is_appended_later_is_read_on_from_where_the_reader_stands() -> None:
    shard = Shard()
    reader = shard.reader()
    assert (reader.high_watermark(), found(reader, 0)) == (0, [])
    shard.batch(4)
    assert reader.high_watermark() == 4
    shard.batch(1)
    shard.journal.read.clear()
    assert reader.high_watermark() == 5
    assert shard.journal.read == [1, 2]  # the one that was last has to be the same


def test_a_batch_in_parts_counts_once_it_is_whole_and_nobody_begins_within_it() -> None:
    shard = Shard()
    shard.batch(1)
    entry = BatchEntry.of(shard.data(1, 2, 500, 0))
    values = entry.values(SEED, A, 1, 250)
    assert len(values) > 2
    reader = shard.reader()
    for value in values[:-1]:
        shard.journal.add(value)
        shard.journal.add(b"of nobody")
        assert reader.high_watermark() == 1
    shard.journal.add(values[-1])
    assert (reader.high_watermark(), found(reader, 0)) == (3, [(0, 1), (1, 3)])
    other = shard.reader()
    other.pin(*reader.standings(1))
    assert found(other, 1) == [(1, 3)]


def test_the_end_is_found_from_the_newest_place_of_a_manifest_and_older_records_from_older_places() -> None:
    shard = Shard()
    shard.batch(5)
    first = shard.mark()
    shard.batch(5)
    second = shard.mark()
    shard.manifest((0, 0), first, second)
    for _ in range(3):
        shard.snapshots.add(pack_piece(SEED, NO_OWNER, b"m" * 16, 0, b"of one that is not whole"))
    shard.batch(5)
    reader = shard.reader()
    assert reader.high_watermark() == 15
    assert min(shard.journal.read) == second[1]
    assert [(one.base_offset, one.end_offset) for one in reader.segments()] == [(0, 5), (5, 10), (10, 15)]
    shard.journal.read.clear()
    assert found(reader, 7, 9) == [(5, 10)]
    assert min(shard.journal.read) == first[1]
    assert reader.start_offset() == 0


def test_what_is_deleted_is_refused_and_the_rest_begins_at_a_place() -> None:
    shard = Shard()
    shard.batch(5)
    first = shard.mark()
    shard.batch(5)
    second = shard.mark()
    shard.manifest((0, 0), first, second)
    reader = shard.reader()
    reader.high_watermark()
    shard.journal.start = first[1]
    assert reader.start_offset() == 5
    with pytest.raises(OffsetOutOfRange):
        reader.scan(4)
    assert found(reader, 5) == [(5, 10)]
    assert shard.reader().start_offset() == 5


def test_a_reader_that_has_not_looked_for_long_goes_on_behind_what_was_deleted() -> None:
    shard = Shard()
    shard.batch(5)
    reader = shard.reader()
    assert reader.high_watermark() == 5
    shard.batch(5)
    place = shard.mark()
    shard.batch(2)
    shard.manifest(place)
    shard.journal.start = place[1]
    assert (reader.high_watermark(), reader.start_offset(), found(reader, 10)) == (12, 10, [(10, 12)])


def test_without_a_manifest_a_floor_says_where_to_begin() -> None:
    shard = Shard()
    shard.batch(5)
    place = shard.mark()
    shard.batch(5)
    shard.mark()  # nobody says of this one that it was confirmed
    shard.batch(2)
    shard.journal.add(pack_floor(SEED, A, Floor(12, 7, place[1])))
    shard.journal.start = place[1]
    reader = shard.reader()
    assert (reader.start_offset(), reader.high_watermark()) == (5, 12)
    assert found(reader, 5) == [(5, 10), (10, 12)]
    shard.journal.start = place[1] + 1  # deleted by somebody else
    with pytest.raises(KafkaHasLost, match="nothing says where to begin"):
        shard.reader().high_watermark()


def test_who_registers_is_told_what_is_about_to_go() -> None:
    shard = Shard()
    shard.batch(5)
    place = shard.mark()
    shard.batch(5)
    reader = shard.reader()
    assert reader.kept_from() == 0
    shard.journal.add(pack_floor(SEED, A, Floor(10, 7, place[1])))
    assert reader.kept_from() in range(1, 8)
    assert reader.start_offset() == 0  # it is still there


def test_a_pinned_reader_reads_no_more_than_it_was_told() -> None:
    shard = Shard()
    for _ in range(4):
        shard.batch(1, STEP_BYTES)
    reader = shard.reader()
    begin, end = reader.standings(2)
    shard.batch(1)
    other = shard.reader()
    other.pin(begin, end)
    shard.journal.read.clear()
    shard.snapshots.read.clear()
    assert (other.high_watermark(), other.complete_offset() <= 2) == (4, True)
    assert found(other, 2, 3) == [(2, 3)]
    assert 1 not in shard.journal.read
    assert shard.snapshots.read == []


def test_segments_have_sizes_and_times_of_what_was_read() -> None:
    shard = Shard()
    for at_us in (100, 200, 300):
        shard.batch(1, STEP_BYTES, at_us)
    reader = shard.reader()
    segments = reader.segments()
    assert [(one.base_offset, one.min_ts, one.max_ts) for one in segments] == [
        (0, 100, 100),
        (1, 200, 200),
        (2, 300, 300),
    ]
    assert all(STEP_BYTES < one.bytes < STEP_BYTES + 200 for one in segments)
    assert [one.base_offset for one in reader.scan(0, times=TimeRange(150, 250))] == [1]


@pytest.mark.parametrize("how", ["shorter", "another"])
def test_a_log_that_has_lost_what_was_read_is_refused(how: str) -> None:
    shard = Shard()
    shard.batch(1)
    reader = shard.reader()
    reader.high_watermark()
    del shard.journal.values[-1]
    if how == "another":
        shard.journal.add(pack(SEED, BATCH, A, shard.data(0, 2, 10, 0)))
        shard.batch(1)
    with pytest.raises(KafkaHasLost):
        reader.high_watermark()


def test_offsets_of_another_journal_are_refused() -> None:
    reader = Shard().reader()
    reader.check(reader.uuid, 0)
    for uuid, epoch in (("00000000-0000-0000-0000-000000000000", 0), (reader.uuid, 1)):
        with pytest.raises(EpochMismatch):
            reader.check(uuid, epoch)
    with pytest.raises(FileNotFoundError):
        reader.finished(0)


class Deleting(Partition):
    """A partition whose oldest records, up to `most`, are deleted `left` times, when its bounds were asked."""

    left, most = 0, 0

    def bounds(self) -> tuple[int, int]:
        found = super().bounds()
        if self.left and self.start < self.most:
            self.left -= 1
            self.start += 1
        return found


@pytest.mark.parametrize("deleted", range(1, 5))
def test_what_is_deleted_between_the_question_and_the_reading_is_read_anew(deleted: int) -> None:
    shard = Shard()
    shard.journal.__class__ = shard.snapshots.__class__ = Deleting
    for _ in range(4):
        shard.batch()
        place = shard.mark()
        shard.manifest(place)
    for partition, start, most in ((shard.journal, place[1] - deleted, place[1]), (shard.snapshots, 2, 6)):
        assert isinstance(partition, Deleting)
        partition.start, partition.most, partition.left = start, most, deleted
    assert shard.reader().start_offset() == place[0]
    for partition, start in ((shard.journal, place[1] - 2), (shard.snapshots, 2)):
        partition.start, partition.left = start, 2  # type: ignore[attr-defined]
    reader = shard.reader()
    assert reader.high_watermark() == shard.next_offset
    shard.journal.start, shard.journal.left = place[1] - 2, 2  # type: ignore[attr-defined]
    assert reader.kept_from() == place[0]


class Asked(Partition):
    """A partition that does something once, when its bounds are asked."""

    then: Callable[[], object] | None = None

    def bounds(self) -> tuple[int, int]:
        then, self.then = self.then, None
        if then is not None:
            then()
        return super().bounds()


def test_a_manifest_that_comes_while_a_reader_begins_does_not_mean_that_records_are_lost() -> None:
    shard = Shard()
    shard.snapshots.__class__ = Asked
    shard.batch(5)
    first = shard.mark()
    shard.manifest(first)

    def snapshot() -> None:
        shard.batch(5)
        shard.manifest(first, shard.mark())

    assert isinstance(shard.snapshots, Asked)
    shard.snapshots.then = snapshot
    reader = shard.reader()
    assert reader.high_watermark() == 10
    assert found(reader, 0) == [(0, 5), (5, 10)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_reader_that_follows_for_long_remembers_so_much_and_no_more(
    monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    monkeypatch.setattr(journal_reader, "STEP_BYTES", 1)
    monkeypatch.setattr(journal_reader, "KNOWN_MAX", 100 if deleted else 16)
    shard = Shard()
    reader, place = shard.reader(), (0, 0)
    for number in range(200):
        shard.batch()
        if deleted and number % 8 == 0:
            shard.manifest(shard.mark())
            shard.journal.start = place[1]
            place = shard.next_offset, len(shard.journal.values) - 1
        assert reader.high_watermark() == number + 1
        assert len(reader._known) <= 20
        assert len(reader._segments) <= len(reader._known) + 1
    first = reader.start_offset()
    assert (first > 150) == deleted
    for start in range(first, 200, 7):
        assert found(reader, start) == [(at, at + 1) for at in range(start, 200)]
        begin, _ = reader.standings(start)
        assert begin.next_offset <= start
    ends = [one.end_offset for one in reader.segments()]
    assert ends[-1] == 200
    assert [one.base_offset for one in reader.segments()] == [first, *ends[:-1]]
