"""A gap of void records at the end of a journal: nothing is numbered again, whenever its making is killed."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from headrace.core.records.message import decode_batch
from headrace.core.records.record import KIND_PROGRESS
from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.disk import DISK, Disk
from headrace.journal.inspect import verify
from headrace.journal.segment import seed_of
from headrace.journal.voids import VOIDS_MAX, add_voids, leave_out
from unit.journal.log_at import filled, opened
from unit.journal.test_restore import killed

BODIES = [b"%02d" % i * 450 for i in range(6)]  # four a segment
GAP = range(6, 10_000)


def make_gap(data_dir: Path, disk: Disk = DISK) -> None:
    log = opened(data_dir)
    log.close()
    if log.next_offset < GAP.stop:
        leave_out(disk, log.directory, log.uuid, log.epoch + 1, range(log.next_offset, GAP.stop))


def check(data_dir: Path) -> None:
    """Everything is at its offset, there is nothing in the gap, and what is appended comes behind it."""
    log = opened(data_dir)
    assert log.next_offset == log.high_watermark == GAP.stop
    assert log.append(b"more" * 200, 1, 9000, 9000) == GAP.stop
    log.close()
    log = opened(data_dir)
    try:
        batches = list(log.scan(0))
        assert [batch.body for batch in batches[:6]] == BODIES
        assert sum(batch.count for batch in batches) == GAP.stop + 1
        for batch in batches[6:-1]:
            records = decode_batch(bytes(batch.body), batch.base_offset)
            assert {record.kind for record in records} == {KIND_PROGRESS}
            assert batch.count <= VOIDS_MAX
        assert batches[-1].body == b"more" * 200
        assert (log.epoch, {batch.epoch for batch in batches[6:]}) == (2, {2})
    finally:
        log.close()
    assert verify(data_dir).ok


def test_what_comes_next_is_numbered_behind_the_gap(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    size = sum(path.stat().st_size for path in (tmp_path / "journal").glob("*.log"))
    make_gap(tmp_path)
    assert sum(path.stat().st_size for path in (tmp_path / "journal").glob("*.log")) < size + 1000
    check(tmp_path)


def test_a_gap_behind_a_segment_without_records(tmp_path: Path) -> None:
    filled(tmp_path, [])
    log = opened(tmp_path)
    log.close()
    leave_out(DISK, log.directory, log.uuid, 5, range(9))
    log = opened(tmp_path)
    try:
        assert (log.next_offset, log.epoch) == (9, 5)
    finally:
        log.close()


@pytest.mark.slow
def test_killed_at_any_moment_it_is_there_or_not_at_all(tmp_path: Path) -> None:
    for number in count(1):
        data_dir = tmp_path / str(number)
        filled(data_dir, BODIES)
        was_killed = killed(lambda disk, where=data_dir: make_gap(where, disk), number)  # type: ignore[misc]
        log = opened(data_dir)
        assert (log.next_offset, log.epoch) in ((6, 1), (GAP.stop, 2))
        log.close()
        make_gap(data_dir)
        check(data_dir)
        if not was_killed:
            assert number > 5
            return


def test_voids_are_a_few_bytes_each(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 0)
    file = SegmentFile(DISK, segment, DISK.create(segment.path), 0, 0)
    add_voids(DISK, file, seed_of(bytes(16)), 1, range(3 * VOIDS_MAX - 1), 7)
    file.close()
    assert (segment.end_offset, segment.batches) == (3 * VOIDS_MAX - 1, 3)
    assert segment.size < 300
