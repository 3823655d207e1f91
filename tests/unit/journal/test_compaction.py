"""Compaction keeps the records that are referred to at their offsets, and little else."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.records.message import decode_batch
from headrace.core.records.record import KIND_PROGRESS
from headrace.journal.backup import backup
from headrace.journal.compaction import is_worth_it
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch
from headrace.journal.inspect import verify
from headrace.journal.log import SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.restore import restore
from headrace.journal.segment import split_records
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import SMALL, opened, silent

LIMITED = replace(SMALL, segment_bytes_max=64 << 10, retention_bytes=1)
RECORDS, BATCH = 3000, 5


def record(offset: int) -> bytes:
    payload = b"%06d" % offset * 20
    return (len(payload) + 1).to_bytes(4, "little") + b"\x09" + payload


def compactable(tmp_path: Path, disk: Disk | None = None) -> SegmentedLog:
    """Several segments over the limit, behind a snapshot."""
    log = SegmentedLog.open(tmp_path, LIMITED, silent, disk or Disk())
    for base in range(0, RECORDS, BATCH):
        log.append(b"".join(map(record, range(base, base + BATCH))), BATCH, base + 1, base + 2)
    log.close()
    log = SegmentedLog.open(tmp_path, LIMITED, silent, disk or Disk())
    SnapshotWriter(log.directory, log.high_watermark).commit()
    log.set_floor(0)
    return log


def compact(log: SegmentedLog, live: Sequence[int]) -> int:
    freed = 0
    for segment in log.compactable():
        here = {offset for offset in live if segment.base_offset <= offset < segment.end_offset}
        log.count_kept(segment)
        if is_worth_it(segment, here):
            freed += log.adopt(log.rewrite_sparse(segment, here))
    return freed


def check(log: SegmentedLog, live: Sequence[int]) -> None:
    last = log._catalog.segments[-1].base_offset
    seen = 0
    for batch in log.scan(0):
        assert batch.base_offset == seen
        records = split_records(batch.body)
        assert len(records) == batch.count
        for offset, found in enumerate(records, seen):
            if offset in live or offset >= last:
                assert found == record(offset)
            else:
                assert found[4] == KIND_PROGRESS
        seen = batch.end_offset
    assert seen == RECORDS
    for offset in live:
        batch = log.read_batch(offset)
        assert split_records(batch.body)[offset - batch.base_offset] == record(offset)


@pytest.mark.parametrize("live", [[], [0], [7, 8, 1000, 1999], list(range(0, RECORDS, 100))])
def test_offsets_stay_and_space_is_freed(tmp_path: Path, live: list[int]) -> None:
    log = compactable(tmp_path)
    assert len(log.compactable()) >= 5
    before = log.size_bytes
    freed = compact(log, live)
    assert log.size_bytes == before - freed
    tail = log._catalog.segments[-1].size
    needed = sum(len(record(offset)) for offset in live)
    assert log.size_bytes - tail < 3 * needed + 300 * len(log._catalog.segments)
    check(log, live)
    log.close()
    assert verify(tmp_path).ok, verify(tmp_path).lines()
    log = opened(tmp_path, LIMITED)
    check(log, live)
    log.close()
    assert [b.end_offset for b in JournalReader(tmp_path).scan(1500)][-1] == RECORDS


def test_the_journal_says_from_where_it_is_complete(tmp_path: Path) -> None:
    """Before a record goes, and for ever; where an older broker has not said so, the segments do."""
    reader = JournalReader(tmp_path)
    log = compactable(tmp_path)
    assert reader.complete_offset() == 0
    segment = log.compactable()[2]
    log.count_kept(segment)
    new = log.rewrite_sparse(segment, [])
    assert reader.complete_offset() == 0
    log.adopt(new)
    assert reader.complete_offset() == segment.end_offset
    log.adopt(log.rewrite_sparse(log.compactable()[0], []))
    assert reader.complete_offset() == segment.end_offset
    log.close()
    watermark = tmp_path / "watermark"
    for known in (True, False):
        opened(tmp_path, LIMITED).close()
        assert reader.complete_offset() == segment.end_offset
        page = bytearray(watermark.read_bytes())
        page[1088:1120] = bytes(32)
        watermark.write_bytes(page)
        assert reader.complete_offset() == segment.end_offset, known
    log = opened(tmp_path, LIMITED)
    for merged in log.mergeable():
        log.adopt_merged(log.merge(merged), merged)
    log.remove_leftovers()
    assert reader.complete_offset() == segment.end_offset
    log.close()


def test_what_cannot_be_said_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = compactable(tmp_path)
    segment = log.compactable()[0]
    new = log.rewrite_sparse(segment, [])

    def fails(_offset: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(log._watermark, "publish_complete", fails)
        with pytest.raises(OSError, match="no"):
            log.adopt(new)
    check(log, list(range(RECORDS)))
    log.close()


def test_what_is_void_decodes(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    compact(log, [])
    batch = log.read_batch(10)
    assert batch.size < 100
    assert {one.kind for one in decode_batch(batch.body, batch.base_offset)} == {KIND_PROGRESS}
    log.close()


def test_again_with_fewer(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    assert compact(log, list(range(0, RECORDS, 10))) > 0
    assert compact(log, list(range(0, RECORDS, 15))) == 0, "not worth it"
    few = list(range(0, RECORDS, 150))
    assert compact(log, few) > 0
    check(log, few)
    log.close()


def test_what_somebody_reads_front_to_back_is_left_alone(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    third = log._catalog.segments[2].base_offset
    ConsumerPosition.register(tmp_path, "archive", log.uuid, log.epoch, third + 1)
    assert [segment.end_offset for segment in log.compactable()][-1] == third
    log.close()
    log = opened(tmp_path, replace(LIMITED, retention_bytes=1 << 30))
    assert log.compactable() == [], "within the limits of retention"
    log.close()


def test_without_a_snapshot_everything_is_needed(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    next(log.directory.glob("*.snapshot")).unlink()
    assert log.compactable() == []
    log.close()


def test_a_crash_before_the_new_file_is_adopted(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    log.rewrite_sparse(log.compactable()[0], {3})
    assert list(log.directory.glob("*.tmp"))
    log.close()
    log = opened(tmp_path, LIMITED)
    assert not list(log.directory.glob("*.tmp"))
    check(log, range(RECORDS))
    log.close()


def test_retention_was_faster(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    new = log.rewrite_sparse(log.compactable()[0], {3})
    log.set_floor(RECORDS)
    assert log.apply_retention()
    assert log.adopt(new) == 0
    assert not list(log.directory.glob("*.tmp"))
    log.close()


def test_damage_is_not_compacted_away(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    segment = log.compactable()[1]
    with segment.path.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptBatch):
        log.rewrite_sparse(segment, set())
    assert not list(log.directory.glob("*.tmp"))
    log.close()


def test_a_full_disk(tmp_path: Path) -> None:
    class Full(Disk):
        full = False

        def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "full")
            return super().pwritev(fd, buffers, position)

    disk = Full()
    log = compactable(tmp_path, disk)
    disk.full = True
    with pytest.raises(OSError, match="full"):
        log.rewrite_sparse(log.compactable()[0], {3})
    disk.full = False
    assert not list(log.directory.glob("*.tmp"))
    log.close()


def test_a_compacted_journal_is_backed_up_and_restored(tmp_path: Path) -> None:
    live = [7, 1000, 2500]
    log = compactable(tmp_path / "data")
    compact(log, live)
    backup(tmp_path / "data", tmp_path / "copy")
    log.close()
    restore(tmp_path / "copy", tmp_path / "new")
    log = opened(tmp_path / "new", LIMITED)
    for offset in live:
        batch = log.read_batch(offset)
        assert split_records(batch.body)[offset - batch.base_offset] == record(offset)
    log.close()


@pytest.mark.parametrize("reopens", [False, True])
def test_what_is_compacted_is_written_once(tmp_path: Path, reopens: bool) -> None:
    """Neither an empty segment nor one whose records all stay is written anew at the next snapshot, or after a start."""
    disk = Counting()
    log = compactable(tmp_path, disk)
    live = [3, 4]  # of the first segment; the others become empty
    assert compact(log, live) > 0
    if reopens:
        log.close()
        log = SegmentedLog.open(tmp_path, LIMITED, silent, disk)
        log.set_floor(0)
    disk.created = 0
    for _ in range(3):
        assert compact(log, live) == 0
    assert disk.created == 0
    assert [segment.kept_records for segment in log.compactable()] == [2]
    check(log, live)
    log.close()


class Counting(Disk):
    def __init__(self) -> None:
        self.created = 0

    def create(self, path: Path) -> int:
        self.created += 1
        return super().create(path)


def test_a_consumer_that_never_returns_holds_nothing_beyond_its_limit(tmp_path: Path) -> None:
    log = compactable(tmp_path)
    ConsumerPosition.register(tmp_path, "dead", log.uuid, log.epoch, 1)
    assert log.compactable() == []
    log.close()
    log = opened(tmp_path, replace(LIMITED, consumer_retention_bytes=100_000))
    before = log.size_bytes
    segment = log.compactable()[0]
    assert log.lost_by(segment) == f"'dead' ({segment.end_offset - 1} records)"
    assert compact(log, [7]) > before // 2
    check_sparse(log, 7)
    log.close()


def check_sparse(log: SegmentedLog, offset: int) -> None:
    batch = log.read_batch(offset)
    assert split_records(batch.body)[offset - batch.base_offset] == record(offset)


def test_what_was_written_before_a_restore_keeps_its_epoch(tmp_path: Path) -> None:
    log = compactable(tmp_path / "data")
    first = log.epoch
    assert log.epochs() == [(0, first)]
    backup(tmp_path / "data", tmp_path / "copy")
    log.close()
    restore(tmp_path / "copy", tmp_path / "new")
    log = SegmentedLog.open(tmp_path / "new", LIMITED, silent)
    second = log.epoch
    assert second > first
    assert log.epochs() == [(0, first), (RECORDS, second)]
    for base in range(RECORDS, 2 * RECORDS, BATCH):
        log.append(b"".join(map(record, range(base, base + BATCH))), BATCH, base + 1, base + 2)
    log.close()
    log = SegmentedLog.open(tmp_path / "new", LIMITED, silent)
    assert log.epochs() == [(0, first), (RECORDS, second)]
    SnapshotWriter(log.directory, log.high_watermark).commit()
    log.set_floor(0)
    assert compact(log, range(0, 2 * RECORDS, 100)) > 0
    assert log.epochs() == [(0, first), (RECORDS, second)]
    log.close()
