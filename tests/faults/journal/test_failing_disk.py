"""A failed write or sync: said once, nothing acknowledged after it, and repaired at the next start (decision 21)."""

from __future__ import annotations

import errno

import pytest

from faults.journal.crash_run import Run, content, reopened
from faults.journal.simulated_disk import SimulatedDisk
from headrace.journal.errors import DiskFull, WriteFailed


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        ("fdatasync", errno.EIO, WriteFailed),
        ("pwritev", errno.EIO, WriteFailed),
        ("fdatasync", errno.ENOSPC, DiskFull),
    ],
)
def test_a_failure_is_said_once_and_ends_acknowledging(call: str, code: int, kind: type[WriteFailed]) -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    assert run.append([b"good"]) == 1
    disk.failures[call] = code
    assert run.append([b"bad"]) == 1
    disk.failures.clear()
    run.log.append(b"after", 1, 1, 1)
    run.log.close()
    assert run.acknowledged == 1
    assert [type(failure) for failure in run.failures] == [kind]
    assert isinstance(run.failures[0].__cause__, OSError)
    assert run.log.high_watermark == 1


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    run.append([b"durable"])
    disk.failures["fdatasync"] = errno.EIO
    run.append([b"only in the page cache"])
    disk.kill()
    bodies, reports, _ = reopened(disk)
    assert bodies == [b"durable", b"only in the page cache"]
    assert any("rewritten into a new segment" in line for line in reports)
    disk.lose_clean_pages()
    assert reopened(disk)[0] == bodies, "a plain fsync would have said yes and lost it"


def test_a_failed_sync_of_the_very_first_batch() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    disk.failures["fdatasync"] = errno.EIO
    run.append([b"first"])
    disk.kill()
    run = Run(disk)
    assert content(run.log) == [b"first"]
    disk.lose_clean_pages()
    disk.crash()
    assert reopened(disk)[0] == [b"first"]


def test_an_index_that_cannot_be_written_costs_nothing() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    disk.failures["create"] = errno.ENOSPC
    assert run.append([b"a"]) == 1
    disk.failures.clear()
    run.log.close()
    assert run.failures == []
    assert reopened(disk)[0] == [b"a"]


def test_without_sync_a_finished_segment_is_still_synced() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    run.append([b"x" * 3000])
    syncs = disk.calls["fsync"]
    run.append([b"y" * 3000])
    assert disk.calls["fsync"] == syncs + 2, "the old segment and the header of the new one"
    run.log.close()
