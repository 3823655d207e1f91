"""Small neighbours become one segment with the same batches, and whoever looks meanwhile reads the same."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.journal.backup import backup
from headrace.journal.catalog import Segment
from headrace.journal.compaction import is_worth_it
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch, CorruptJournal
from headrace.journal.inspect import verify
from headrace.journal.log import SegmentedLog
from headrace.journal.merging import MERGED_MIN, mergeable
from headrace.journal.reader import JournalReader, SegmentInfo
from headrace.journal.repair import Repair
from headrace.journal.restore import restore
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Batch, SegmentHeader, split_records
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import SMALL, filled, silent

LIMITED = replace(SMALL, segment_bytes_max=8192, retention_bytes=1)
RECORDS = 1500
LIVE = (3, 250, 251, 1000)


def record(offset: int) -> bytes:
    payload = b"%06d" % offset * 10
    return (len(payload) + 1).to_bytes(4, "little") + b"\x09" + payload


def compacted(data_dir: Path, disk: Disk | None = None) -> SegmentedLog:
    """Some twenty segments, all but the last rewritten with next to nothing in them."""
    filled(data_dir, [record(offset) for offset in range(RECORDS)], LIMITED)
    log = SegmentedLog.open(data_dir, LIMITED, silent, disk or Disk())
    SnapshotWriter(log.directory, log.high_watermark).commit()
    log.set_floor(0)
    for segment in log.compactable():
        live = {offset for offset in LIVE if segment.base_offset <= offset < segment.end_offset}
        log.count_kept(segment)
        if is_worth_it(segment, live):
            log.adopt(log.rewrite_sparse(segment, live))
    return log


def merged(log: SegmentedLog) -> None:
    for group in log.mergeable():
        assert log.adopt_merged(log.merge(group), group)
        log.remove_leftovers()


def contents(batches: Iterator[Batch]) -> list[tuple[int, int, int, int, bytes]]:
    return [(b.base_offset, b.count, b.epoch, b.max_timestamp_us, b.body) for b in batches]


def names(log: SegmentedLog) -> list[str]:
    return sorted(path.name for path in log.directory.glob("*.log"))


def test_the_batches_stay_as_they_are(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    before, count, size = contents(log.scan(0)), len(names(log)), log.size_bytes
    assert count > 2 * MERGED_MIN
    merged(log)
    assert len(names(log)) == len(log._catalog.segments) < count // 3
    assert log.size_bytes < size
    assert contents(log.scan(0)) == contents(JournalReader(tmp_path).scan(0)) == before
    for offset in LIVE:
        batch = log.read_batch(offset)
        assert split_records(batch.body)[offset - batch.base_offset] == record(offset)
    assert log.mergeable() == []
    log.close()
    assert verify(tmp_path).ok, verify(tmp_path).lines()
    log = SegmentedLog.open(tmp_path, LIMITED, silent)
    assert contents(log.scan(0)) == before
    log.close()


def test_what_is_merged_is_compacted_again(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    merged(log)
    first = log.compactable()[0]
    assert first.kept_records == len([offset for offset in LIVE if offset < first.end_offset])
    log.adopt(log.rewrite_sparse(first, {3}))
    assert split_records(log.read_batch(3).body)[3 - log.read_batch(3).base_offset] == record(3)
    log.close()
    assert verify(tmp_path).ok, verify(tmp_path).lines()


def small(tmp_path: Path, base: int, size: int, kept: int = 0, count: int = 10) -> Segment:
    segment = Segment(tmp_path, base)
    segment.end_offset, segment.size, segment.kept_records = base + count, size, kept
    return segment


def test_neighbours_alone_and_no_large_one_for_a_few_bytes(tmp_path: Path) -> None:
    ten = [small(tmp_path, 10 * at, 200) for at in range(10)]
    assert mergeable(ten, 1 << 20) == [ten]
    assert mergeable(ten[: MERGED_MIN - 1], 1 << 20) == []
    assert mergeable([*ten[:5], *ten[6:]], 1 << 20) == [], "a gap"
    large = small(tmp_path, 100, 100_000)
    assert mergeable([*ten, large], 1 << 20) == [ten]
    dense = small(tmp_path, 40, 200, kept=10)
    assert mergeable([*ten[:4], dense, *ten[5:]], 1 << 20) == [], "compaction has not rewritten it"
    unknown = small(tmp_path, 40, 200, kept=-1)
    assert mergeable([*ten[:4], unknown, *ten[5:]], 1 << 20) == []


def test_the_number_of_segments_stays_small(tmp_path: Path) -> None:
    """One small segment after the other, merged as they come: few are left, and each byte was written a few times."""
    segments: list[Segment] = []
    written = 0
    for at in range(5000):
        segments.append(small(tmp_path, 10 * at, 200))
        for group in mergeable(segments, 128 << 20):
            first, last = segments.index(group[0]), segments.index(group[-1])
            one = small(tmp_path, group[0].base_offset, sum(one.size for one in group), count=10 * len(group))
            one.end_offset = group[-1].end_offset
            written += one.size
            segments[first : last + 1] = [one]
    assert len(segments) < 100
    assert written < 12 * 5000 * 200


def test_nothing_that_a_consumer_still_reads(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    ConsumerPosition.register(tmp_path, "archive", log.uuid, log.epoch, 1)
    assert log.mergeable() == []
    log.close()


def test_a_damaged_segment_is_not_merged_away(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    group = log.mergeable()[0]
    with group[2].path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptBatch):
        log.merge(group)
    assert not list(log.directory.glob("*.tmp"))
    log.close()


def test_retention_was_faster(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    group = log.mergeable()[0]
    new = log.merge(group)
    log.set_floor(RECORDS)
    assert log.apply_retention()
    assert not log.adopt_merged(new, group)
    assert not list(log.directory.glob("*.tmp"))
    log.close()


def test_a_merged_segment_ages_as_its_newest_record(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    group = log.mergeable()[0]
    log._ages._born[group[0].base_offset] -= 10_000
    age = log._ages(group[-1])
    log.adopt_merged(log.merge(group), group)
    assert log._ages(log._catalog.segments[0]) == age
    log.close()


# Between the name of the new one and the end of the old ones


class Stubborn(Disk):
    """Removes so many segments, then none."""

    left = 1 << 30

    def unlink(self, path: Path) -> None:
        if path.suffix == ".log":
            if not self.left:
                raise OSError(errno.EIO, "it stays")
            self.left -= 1
        super().unlink(path)


@pytest.fixture(params=[0, 1, 5])
def overlapping(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A data directory in which some of the merged segments are left beside the one they were merged into."""
    disk = Stubborn()
    log = compacted(tmp_path / "data", disk)
    (tmp_path / "before").write_text(repr(contents(log.scan(0))))
    group = log.mergeable()[0]
    new = log.merge(group)
    disk.left = request.param
    log.adopt_merged(new, group)
    with pytest.raises(OSError, match="it stays"):
        log.remove_leftovers()
    assert len(names(log)) == len(log._catalog.segments) + len(group) - 1 - request.param
    log.close()
    return tmp_path / "data"


def before(data_dir: Path) -> str:
    return (data_dir.parent / "before").read_text()


def spans(infos: list[SegmentInfo]) -> list[tuple[int, int]]:
    return [(info.base_offset, info.end_offset) for info in infos]


def test_a_start_keeps_the_one_that_reaches_further(overlapping: Path) -> None:
    said: list[str] = []
    log = SegmentedLog.open(overlapping, LIMITED, said.append)
    assert "interrupted merge" in said[-1]
    assert names(log) == [segment.path.name for segment in log._catalog.segments]
    assert repr(contents(log.scan(0))) == before(overlapping)
    log.close()


def test_readers_see_each_record_once(overlapping: Path) -> None:
    reader = JournalReader(overlapping)
    assert repr(contents(reader.scan(0))) == before(overlapping)
    infos = spans(reader.segments())
    assert [base for base, _ in infos[1:]] == [end for _, end in infos[:-1]]
    assert infos[-1][1] == RECORDS
    for start in range(0, RECORDS, 13):
        assert next(iter(reader.scan(start))).base_offset <= start
        assert sum(batch.count for batch in reader.scan(start, start + 1)) > 0


def test_verify_and_repair_find_nothing_damaged(overlapping: Path) -> None:
    report = verify(overlapping)
    assert report.ok, report.lines()
    assert any("to be removed" in note for note in report.notes)
    with Repair(overlapping) as repair:
        assert repair.plan() == []
        assert repair.run() == []


def test_a_backup_holds_each_record_once(overlapping: Path) -> None:
    backup(overlapping, overlapping.parent / "copy")
    restore(overlapping.parent / "copy", overlapping.parent / "new")
    assert verify(overlapping.parent / "new").ok
    log = SegmentedLog.open(overlapping.parent / "new", LIMITED, silent)
    assert len(names(log)) == len(log._catalog.segments)
    bodies = [body for *_, body in contents(log.scan(0))]
    assert b"".join(split_records(b"".join(bodies))[offset] for offset in LIVE) == b"".join(map(record, LIVE))
    log.close()


def test_damage_in_the_one_that_wins_costs_what_the_others_have_not(overlapping: Path) -> None:
    """The old ones count again: repair cuts the damaged one where the first of those begins that are left."""
    log_path = sorted((overlapping / "journal").glob("*.log"))[0]
    left = [int(path.stem) for path in sorted((overlapping / "journal").glob("*.log"))[1:]]
    data = bytearray(log_path.read_bytes())
    data[-64 - 20] ^= 0xFF  # in the last batch
    log_path.write_bytes(data)
    with pytest.raises(CorruptJournal):
        SegmentedLog.open(overlapping, LIMITED, silent)
    assert not verify(overlapping).ok
    with Repair(overlapping) as repair:
        assert repair.plan()
        assert repair.lost_records == 0
        repair.run()
    assert verify(overlapping).ok, verify(overlapping).lines()
    log = SegmentedLog.open(overlapping, LIMITED, silent)
    assert left[0] in [segment.base_offset for segment in log._catalog.segments]
    records = split_records(b"".join(batch.body for batch in log.scan(0)))
    assert [records[offset] for offset in LIVE] == [record(offset) for offset in LIVE]
    log.close()


def test_a_segment_that_reaches_further_without_proof_is_damage(overlapping: Path) -> None:
    """What was begun later than the one that lies over it was not merged into that: nothing is removed."""
    first, second = sorted((overlapping / "journal").glob("*.log"))[:2]
    data = bytearray(second.read_bytes())
    header = SegmentHeader.unpack(bytes(data[:SEGMENT_HEADER_SIZE]), "")
    header.created_us += 1 << 50
    data[:SEGMENT_HEADER_SIZE] = header.pack()
    second.write_bytes(data)
    with pytest.raises(CorruptJournal, match="begins elsewhere"):
        SegmentedLog.open(overlapping, LIMITED, silent)
    assert not verify(overlapping).ok
    assert first.exists()
    assert second.exists()


def test_retention_takes_the_winner_first_and_leaves_no_gap(tmp_path: Path) -> None:
    disk = Stubborn()
    log = compacted(tmp_path, disk)
    group = log.mergeable()[0]
    new = log.merge(group)
    disk.left = 0
    log.adopt_merged(new, group)
    with suppress(OSError):
        log.remove_leftovers()
    log.set_floor(RECORDS)
    for left in (1, 2, 1 << 30):
        disk.left = left
        log.apply_retention()
        assert verify(tmp_path).ok, verify(tmp_path).lines()
    log.remove_leftovers()
    assert names(log) == [segment.path.name for segment in log._catalog.segments]
    log.close()


class Moving(Disk):
    """Merges under a reader between two of its calls, once."""

    def __init__(self, log: SegmentedLog, at: int) -> None:
        self._log = log
        self._left = at

    def open(self, path: Path, write: bool = False) -> int:
        self._left -= 1
        if self._left == 0:
            merged(self._log)
        return super().open(path, write)

    def names(self, directory: Path) -> list[str]:
        found = super().names(directory)
        self._left -= 1
        if self._left == 0:
            merged(self._log)
        return found


@pytest.mark.parametrize("at", range(1, 60, 3))
def test_a_merge_under_a_reader(tmp_path: Path, at: int) -> None:
    log = compacted(tmp_path)
    wanted = contents(JournalReader(tmp_path).scan(0))
    reader = JournalReader(tmp_path, Moving(log, at))
    infos = spans(reader.segments())
    assert [base for base, _ in infos[1:]] == [end for _, end in infos[:-1]]
    assert contents(reader.scan(0)) == wanted
    infos = spans(reader.segments())
    assert [base for base, _ in infos[1:]] == [end for _, end in infos[:-1]]
    log.close()
