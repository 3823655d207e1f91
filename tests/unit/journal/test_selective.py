"""Reading a range of time: exactly the batches that overlap it, and hardly a byte of the others."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.journal.backup import backup
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch
from headrace.journal.reader import JournalReader
from headrace.journal.selective import TimeRange
from unit.journal.log_at import SMALL, Started, filled, opened

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
    assert len(list(reader.scan(0, times=TimeRange(1000, 5000)))) == 1


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=40))
@settings(max_examples=60)
def test_wherever_the_clock_jumps_every_record_is_found_by_its_time(steps: list[tuple[int, int]]) -> None:
    """In a segment that is being written, after a start that follows a kill, in finished ones, and in a backup. Batches
    begin and end at any time."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        started = Started(folder / "data", SMALL)
        for number, (first, last) in enumerate(steps):
            body = b"%03d" % number * 300
            offset = started.log.append(body, 1, first, last)
            started.reach(offset + 1)
        check_times(folder / "data", steps)
        shutil.copytree(folder / "data", folder / "killed")
        again = Started(folder / "killed", SMALL)
        check_times(folder / "killed", steps)
        backup(folder / "killed", folder / "backup")
        again.log.close()
        started.log.close()
        check_times(folder / "data", steps)
        check_times(folder / "backup", steps)


def check_times(data_dir: Path, steps: list[tuple[int, int]]) -> None:
    """What a segment says of its times, and a scan for a time, leave out no batch."""
    reader = JournalReader(data_dir)
    segments = reader.segments()
    for time in range(1, 61):
        wanted = {offset for offset, pair in enumerate(steps) if time in pair}
        times = TimeRange(time, time + 1)
        seen: set[int] = set()
        for one in segments:
            if times.overlaps(one.min_ts, one.max_ts):
                found = reader.scan(one.base_offset, one.end_offset, times=times)
                seen |= {batch.base_offset for batch in found}
        assert wanted <= seen, f"at {time}"


def test_what_is_told_of_times_while_it_is_written_leads_to_a_look(tmp_path: Path) -> None:
    started = Started(tmp_path)
    for time in (5000, 9000, 2000, 6000):
        started.append(b"x" * 50, time_us=time)
    (info,) = JournalReader(tmp_path).segments()
    assert (info.min_ts, info.max_ts) == (2000, 9000)
    page = bytearray((tmp_path / "watermark").read_bytes())
    page[1152 + 20] ^= 1
    (tmp_path / "watermark").write_bytes(page)
    (info,) = JournalReader(tmp_path).segments()
    assert info.min_ts == 0
    assert info.max_ts > 1 << 60
    started.log.close()


def test_a_clock_that_goes_forward_writes_no_mark(tmp_path: Path) -> None:
    started = Started(tmp_path)
    for time in (1000, 1000, 2000):
        started.append(b"x" * 50, time_us=time)
    assert not any((tmp_path / "watermark").read_bytes()[1152:])
    started.log.close()


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
