"""A failed write or sync: said once, nothing acknowledged after it, and repaired at the next start (decision 21)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from faults.journal.crash_run import DATA_DIR, SMALL, Run, content, reopened
from faults.journal.simulated_disk import WANT_OF_MEMORY, SimulatedDisk
from headrace.journal.errors import DiskFull, WriteFailed


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        ("fdatasync", errno.EIO, WriteFailed),
        ("pwritev", errno.EIO, WriteFailed),
        ("fdatasync", errno.ENOSPC, DiskFull),
    ],
)
@pytest.mark.parametrize("syncer", [False, True])
def test_a_failure_is_said_once_and_ends_acknowledging(
    call: str, code: int, kind: type[WriteFailed], syncer: bool
) -> None:
    disk = SimulatedDisk()
    run = Run(disk, syncer=syncer)
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


@pytest.mark.parametrize("syncer", [False, True])
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(syncer: bool) -> None:
    disk = SimulatedDisk()
    run = Run(disk, syncer=syncer)
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


def test_the_syncer_takes_what_fits_and_the_thread_the_rest() -> None:
    disk = SimulatedDisk()
    run = Run(disk, settings=replace(SMALL, index_interval_bytes=1000), syncer=True)
    assert run.syncer is not None
    sent = [b"%02d" % i * 400 for i in range(20)]
    for i, body in enumerate(sent):
        assert run.append([body]) == i + 1
    segments = sum(path.suffix == ".log" for path in disk._names)
    assert segments == 5
    assert run.syncer.done_at_once == 20 - segments, "all but the first of each segment"
    assert content(run.log) == sent
    index = disk.content(DATA_DIR / "journal" / f"{0:020d}.index")
    assert len(index) == 2 * 16, "by the thread and by the syncer"
    run.log.close()
    assert reopened(disk)[0] == sent


def test_what_is_handed_over_meanwhile_comes_behind() -> None:
    disk = SimulatedDisk()
    run = Run(disk, settings=replace(SMALL, segment_bytes_max=1 << 20), syncer=True)
    assert run.syncer is not None
    run.append([b"the first is for the thread"])
    assert run.append([b"a", b"b", b"c"]) == 4
    assert run.syncer.done_at_once == 3
    assert content(run.log)[1:] == [b"a", b"b", b"c"]
    run.log.close()


def test_closing_waits_for_the_syncer() -> None:
    disk = SimulatedDisk()
    run = Run(disk, syncer=True)
    run.append([b"a"])
    run.log.append(b"b", 1, 1, 1)
    run.log.append(b"c", 1, 1, 1)
    run.log.close()
    assert run.log.high_watermark == 3
    assert reopened(disk)[0] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("code", [errno.EINTR, errno.ENOMEM, WANT_OF_MEMORY])
@pytest.mark.parametrize("call", ["pwritev", "allocate"])
def test_what_the_syncer_cannot_write_the_thread_does_again(call: str, code: int) -> None:
    disk = SimulatedDisk()
    run = Run(disk, settings=replace(SMALL, segment_bytes_max=1 << 25), syncer=True)
    assert run.syncer is not None
    first = b"x" * ((16 << 20) - 1000)  # nearly all that is preallocated
    second = b"y" * (2000 if call == "allocate" else 20)
    run.append([first])
    disk.failures[call] = code
    run.log.append(second, 1, 1, 1)
    run.syncer.wait()
    disk.failures.clear()
    run.log.finish_write()
    run.wait_for(lambda: run.acknowledged == 2)
    assert run.failures == []
    assert content(run.log) == [first, second]
    run.log.close()


@pytest.mark.parametrize("call", ["create", "allocate", "pwritev", "rename", "fsync_directory"])
@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ENOSPC, WANT_OF_MEMORY]
)
@pytest.mark.parametrize("syncer", [False, True])
def test_a_segment_that_cannot_be_begun_now_is_begun_later(call: str, code: int, syncer: bool) -> None:
    """Want of descriptors, of memory or of space ends nobody; nothing is acknowledged meanwhile."""
    disk = SimulatedDisk()
    run = Run(disk, syncer=syncer)
    sent = [b"x" * 3000, b"y" * 3000, b"z" * 3000]
    assert run.append(sent[:1]) == 1
    disk.failures[call] = code
    run.log.append(sent[1], 1, 1, 1)
    run.log.append(sent[2], 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    said = os.strerror(errno.ENOMEM) if code == WANT_OF_MEMORY else errno.errorcode[code]
    assert run.full == [said]
    assert run.acknowledged == 1
    disk.failures.clear()
    run.wait_for(lambda: run.acknowledged == 3 and run.full[-1] == "")
    assert run.failures == []
    assert content(run.log) == sent
    run.log.close()
    assert reopened(disk)[0] == sent


@pytest.mark.parametrize("code", [errno.EMFILE, WANT_OF_MEMORY])
def test_closing_does_not_wait_for_descriptors_or_memory(code: int) -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    assert run.append([b"x" * 3000]) == 1
    disk.failures["create"] = code
    run.log.append(b"y" * 3000, 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    run.log.close()
    assert [type(failure) for failure in run.failures] == [WriteFailed]
    disk.kill()
    assert reopened(disk)[0] == [b"x" * 3000]


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_a_sync_for_want_of_memory_is_a_sync_that_failed(call: str) -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    assert run.append([b"x" * 3000]) == 1
    disk.failures[call] = errno.ENOMEM
    assert run.append([b"y" * 3000]) == 1
    assert [type(failure) for failure in run.failures] == [WriteFailed]


def test_a_reserve_that_somebody_has_removed_is_no_failure() -> None:
    disk = SimulatedDisk()
    run = Run(disk, settings=replace(SMALL, segment_bytes_max=1 << 25))
    run.append([b"x" * ((16 << 20) - 1000)])
    disk.unlink(DATA_DIR / "reserve")
    disk.failures["allocate"] = errno.ENOSPC
    run.log.append(b"y" * 3000, 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    disk.failures.clear()
    run.wait_for(lambda: run.acknowledged == 2)
    assert run.failures == []
    run.log.close()
