"""The power goes at any step of a merge, or of the start behind it: every record is there once, for whoever looks.

Nothing that a merge does may change what is read: so the journal is read whole before, and by every reader after. The
steps between are those of a long life: records, snapshots, compaction, merges, retention.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from faults.journal.crash_run import DATA_DIR, SMALL
from faults.journal.simulated_disk import PowerCut, SimulatedDisk
from headrace.journal.diagnosis import diagnose
from headrace.journal.log import SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.segment import split_records
from headrace.journal.snapshot import SnapshotWriter

LIMITED = replace(SMALL, segment_bytes_max=4096, retention_bytes=1)
RECORDS = 600
LIVE = frozenset((3, 100, 101, 250))
Contents = list[tuple[int, int, bytes]]


def record(offset: int) -> bytes:
    payload = b"%06d" % offset * 10
    return (len(payload) + 1).to_bytes(4, "little") + b"\x09" + payload


def opened(disk: SimulatedDisk) -> SegmentedLog:
    return SegmentedLog.open(DATA_DIR, LIMITED, lambda _: None, disk)


def append(disk: SimulatedDisk, count: int) -> None:
    log = opened(disk)
    for offset in range(log.next_offset, log.next_offset + count):
        log.append(record(offset), 1, offset + 1, offset + 1)
    log.close()


def compact(log: SegmentedLog, live: frozenset[int]) -> None:
    for segment in log.compactable():
        log.count_kept(segment)
        here = {offset for offset in live if segment.base_offset <= offset < segment.end_offset}
        if len(here) < segment.kept_records:
            log.adopt(log.rewrite_sparse(segment, here))


def snapshot(disk: SimulatedDisk, log: SegmentedLog) -> None:
    SnapshotWriter(log.directory, log.high_watermark, disk).commit()
    log.set_floor(0)


def compacted(seed: int, kind: type[SimulatedDisk] = SimulatedDisk) -> SimulatedDisk:
    """Some ten small segments on the medium, and the one that is written."""
    disk = kind(seed)
    append(disk, RECORDS)
    log = opened(disk)
    snapshot(disk, log)
    compact(log, LIVE)
    log.close()
    disk.fsync_directory(log.directory)
    return disk


def merge(log: SegmentedLog) -> bool:
    log.remove_leftovers()
    found = False
    for segment in log.compactable():
        log.count_kept(segment)
    for group in log.mergeable():
        log.adopt_merged(log.merge(group), group)
        log.remove_leftovers()
        found = True
    return found


def contents(disk: SimulatedDisk) -> Contents:
    batches = JournalReader(DATA_DIR, disk).scan(0)
    return [(batch.base_offset, batch.count, batch.body) for batch in batches]


def check_everybody(disk: SimulatedDisk, wanted: Contents) -> None:
    """Who reads without a start in between, and the start."""
    report = diagnose(DATA_DIR, disk)
    assert report.ok, report.lines()
    reader = JournalReader(DATA_DIR, disk)
    infos = reader.segments()
    assert [info.base_offset for info in infos[1:]] == [info.end_offset for info in infos[:-1]]
    assert contents(disk) == wanted
    for start in range(0, RECORDS, 37):
        batch = next(iter(reader.scan(start, start + 1)))
        assert batch.base_offset <= start < batch.end_offset


def check_start(disk: SimulatedDisk, wanted: Contents) -> None:
    log = opened(disk)
    assert [(b.base_offset, b.count, b.body) for b in log.scan(0)] == wanted
    names = [name for name in disk.names(log.directory) if name.endswith((".log", ".tmp"))]
    assert names == [segment.path.name for segment in log._catalog.segments]
    for offset in LIVE:
        batch = log.read_batch(offset)
        assert split_records(batch.body)[offset - batch.base_offset] == record(offset)
    log.close()


def merge_until(disk: SimulatedDisk, cut_after: int) -> bool:
    """Whether the merge ended before the power went."""
    disk.kill()
    log = opened(disk)
    disk.cut_after = cut_after
    try:
        assert merge(log)
    except PowerCut:
        return False
    disk.cut_after = -1
    log.close()
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "power"),
    [
        (0, True),
        (1, False),
        *(
            pytest.param(*rest, marks=pytest.mark.deep)
            for rest in ((0, False), (1, True), (2, True), (2, False))
        ),
    ],
)
def test_the_power_goes_at_each_step(seed: int, power: bool) -> None:
    """`power`: else the process alone is killed, and the page cache stays."""
    for cut_after in range(200):
        disk = compacted(seed * 1000 + cut_after)
        wanted = contents(disk)
        is_over = merge_until(disk, cut_after)
        disk.crash() if power else disk.kill()
        check_everybody(disk, wanted)
        check_start(disk, wanted)
        check_everybody(disk, wanted)
        if is_over:
            assert cut_after > 20
            return
    pytest.fail("a merge has more steps than that")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2))])
def test_the_power_goes_again_in_the_start_behind_it(seed: int) -> None:
    rng = Random(seed)
    for cut_after in range(200):
        disk = compacted(seed * 1000 + cut_after)
        wanted = contents(disk)
        is_over = merge_until(disk, cut_after)
        disk.crash()
        disk.cut_after = rng.randrange(30)
        with suppress(PowerCut):
            opened(disk).close()
        disk.crash()
        check_everybody(disk, wanted)
        check_start(disk, wanted)
        if is_over:
            return
    pytest.fail("a merge has more steps than that")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_long_lives(seed: int) -> None:
    """Records, compaction, merges of merged segments and crashes in any order; retention at the end."""
    rng = Random(seed)
    disk = SimulatedDisk(seed)
    append(disk, 100)
    for _ in range(12):
        disk.cut_after = rng.choice((-1, rng.randrange(200)))
        with suppress(PowerCut):
            append(disk, rng.randrange(20, 160))
            log = opened(disk)
            snapshot(disk, log)
            compact(log, LIVE)
            merge(log)
            log.close()
        if rng.random() < 0.5:
            disk.crash()
        else:
            disk.kill()
        report = diagnose(DATA_DIR, disk)
        assert report.ok, report.lines()
        log = opened(disk)
        for offset in LIVE:
            if offset < log.high_watermark:
                batch = log.read_batch(offset)
                assert split_records(batch.body)[offset - batch.base_offset] == record(offset)
        log.close()
    log = opened(disk)
    log.set_floor(log.high_watermark)
    while log.apply_retention():
        assert diagnose(DATA_DIR, disk).ok
    log.close()
