"""Reading a range of time: exactly the batches that overlap it, and hardly a byte of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch
from headrace.journal.reader import JournalReader
from headrace.journal.selective import TimeRange
from unit.journal.log_at import SMALL, filled, opened

BODIES = [b"%03d" % i * 50 for i in range(100)]  # at 1000, 2000, ... microseconds


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.bytes = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = super().pread(fd, length, position)
        self.bytes += len(data)
        return data


@given(st.integers(0, 110), st.integers(0, 110), st.integers(0, 99), st.integers(0, 100))
def test_the_batches_of_a_time(
    tmp_path_factory: pytest.TempPathFactory, since: int, until: int, start: int, end: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "times"
    if not folder.exists():
        filled(folder, BODIES)
    times = TimeRange(1000 * since, 1000 * until)
    found = [batch.body for batch in JournalReader(folder).scan(start, end, times=times)]
    assert found == [body for i, body in enumerate(BODIES) if start <= i < end and since <= i + 1 < until]


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(b"x" * 50, 1, 9000, 2000)  # began before the step, ended behind it
    log.close()
    reader = JournalReader(tmp_path)
    for since, expected in ((1000, 1), (5000, 1), (9000, 1), (9001, 0)):
        assert len(list(reader.scan(0, times=TimeRange(since, 10_000)))) == expected


def test_what_lies_outside_is_hardly_read(tmp_path: Path) -> None:
    filled(tmp_path, [b"x" * 2000] * 200, replace(SMALL, segment_bytes_max=1 << 20))
    disk = CountingDisk()
    reader = JournalReader(tmp_path, disk)
    assert len(list(reader.scan(0, times=TimeRange(100_000, 102_000)))) == 2
    assert disk.bytes < 0.1 * 200 * 2000


def test_a_chain_that_is_broken_is_not_stepped_over(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    path = tmp_path / "journal" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[64 + 206 + 8] += 1  # length of the second batch
    path.write_bytes(data)
    with pytest.raises(CorruptBatch):
        list(JournalReader(tmp_path).scan(0, times=TimeRange(9000, 99_000)))
