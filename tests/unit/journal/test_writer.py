"""Group commit: what waits together is written and synced together."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from broker_process import wait_until
from headrace.journal.disk import Disk
from headrace.journal.log import SegmentedLog
from headrace.journal.reader import JournalReader
from unit.journal.log_at import SMALL, Started, opened, silent


class DirectoryThatFails(Disk):
    """Once armed, the first two calls of one kind that look into a directory or make a file in it fail with EIO."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.failures_left = 0

    def _fail(self, call: str) -> None:
        if call == self._call and self.failures_left:
            self.failures_left -= 1
            raise OSError(errno.EIO, "Input/output error")

    def create(self, path: Path) -> int:
        self._fail("create")
        return super().create(path)

    def fsync_directory(self, path: Path) -> None:
        self._fail("fsync_directory")
        super().fsync_directory(path)


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.writes: list[int] = []
        self.syncs = 0

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self.writes.append(len(buffers))
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        super().fdatasync(fd)


@pytest.mark.parametrize(("durability", "syncs"), [("fsync", 1), ("os", 0), ("none", 0)])
def test_a_group_is_one_write_and_one_sync(tmp_path: Path, durability: str, syncs: int) -> None:
    disk = CountingDisk()
    log = SegmentedLog.open(tmp_path, replace(SMALL, durability=durability), silent, disk)
    for i in range(10):
        log.append(b"%d" % i, 1, 1, 1)
    before = len(disk.writes)
    log.close()
    zeros = 1 if durability == "fsync" else 0
    assert disk.writes[before] == 20 + zeros, "header and body of ten batches, and zeros behind them"
    assert disk.syncs == syncs


def test_batches_of_a_group_carry_what_was_durable_before_it(tmp_path: Path) -> None:
    started = Started(tmp_path)
    started.append(b"a")
    started.append(b"b")
    assert [batch.durable_offset for batch in started.log.scan(0)] == [0, 1]
    started.log.close()


def test_without_sync_the_durable_offset_lags(tmp_path: Path) -> None:
    started = Started(tmp_path, replace(SMALL, durability="os"))
    for _ in range(5):
        started.append(b"x" * 1000)
    assert [batch.durable_offset for batch in started.log.scan(0)] == [0, 0, 0, 3, 3]
    started.log.close()


def test_without_durability_it_is_acknowledged_before_it_is_written(tmp_path: Path) -> None:
    log = opened(tmp_path, replace(SMALL, durability="none"))
    published: list[int] = []
    readable: list[bytes] = []

    def on_durable(high_watermark: int) -> None:
        published.append(JournalReader(tmp_path).high_watermark())
        readable.append(log.read_batch(high_watermark - 1).body)

    log.append(b"a", 1, 1, 1)
    log.append(b"b", 1, 1, 1)
    log.start(on_durable, lambda _: None)
    log.close()
    assert published == [0], "other processes see only what is written"
    assert readable == [b"b"]
    assert JournalReader(tmp_path).high_watermark() == 2


def test_a_group_that_fills_several_segments(tmp_path: Path) -> None:
    log = opened(tmp_path)
    said: list[int] = []
    for i in range(20):
        log.append(bytes([i]) * 1000, 1, 1, 1)
    log.start(said.append, lambda _: None)
    log.close()
    assert said == [3, 6, 9, 12, 15, 18, 20]
    log = opened(tmp_path)
    assert [batch.body[0] for batch in log.scan(0)] == list(range(20))
    log.close()


@pytest.mark.parametrize("call", ["create", "fsync_directory"])
def test_a_segment_that_cannot_be_begun_now_is_begun_again(tmp_path: Path, call: str) -> None:
    disk = DirectoryThatFails(call)
    log = SegmentedLog.open(tmp_path, replace(SMALL, durability="os"), silent, disk)
    for i in range(8):
        log.append(bytes([i]) * 1000, 1, 1, 1)
    disk.failures_left = 2
    failures: list[BaseException] = []
    full: list[str] = []
    log.start(lambda _: None, failures.append, full.append)
    wait_until(lambda: log.high_watermark == 8 or bool(failures), "nothing was written")
    wait_until(lambda: bool(failures) or full[-1:] == [""], "the journal did not say that it goes on")
    log.close()
    assert (failures, disk.failures_left) == ([], 0)
    assert (full[0], full[-1]) == ("Input/output error", "")
    log = opened(tmp_path)
    assert [batch.body[0] for batch in log.scan(0)] == list(range(8))
    log.close()


def test_an_error_in_the_callback_is_a_failure_said_once(tmp_path: Path) -> None:
    log = opened(tmp_path)
    errors: list[BaseException] = []

    def broken(high_watermark: int) -> None:
        raise RuntimeError(high_watermark)

    log.append(b"a", 1, 1, 1)
    log.start(broken, errors.append)
    log.append(b"b", 1, 1, 1)
    log.close()
    assert [type(error) for error in errors] == [RuntimeError]


def test_the_index_file_has_about_one_entry_an_interval(tmp_path: Path) -> None:
    log = opened(tmp_path, replace(SMALL, segment_bytes_max=1 << 20, index_interval_bytes=1000))
    for _ in range(100):
        log.append(b"x" * 44, 1, 1, 1)
    log.close()
    assert (tmp_path / "journal" / f"{0:020d}.index").stat().st_size == 10 * 16
