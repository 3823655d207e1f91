"""The segment that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.journal.active import (
    SMALL_WRITE_MAX,
    ZEROS,
    ZEROS_MIN,
    SegmentFile,
    begin_segment,
    create_segment,
)
from headrace.journal.disk import DISK, Disk
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, seed_of
from headrace.journal.walk import Walk, read_footer

UUID = bytes(range(16))


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.allocated: list[tuple[int, int]] = []
        self.writes: list[tuple[int, int]] = []  # position, bytes

    def allocate(self, fd: int, position: int, length: int) -> None:
        self.allocated.append((position, length))
        super().allocate(fd, position, length)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self.writes.append((position, sum(map(len, buffers))))
        return super().pwritev(fd, buffers, position)


def created(directory: Path, disk: Disk = DISK) -> SegmentFile:
    return create_segment(disk, directory, SegmentHeader(UUID, 2, 7, 0), 10_000)


def test_a_new_one_has_its_name_and_a_header(tmp_path: Path) -> None:
    file = created(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{7:020d}.log"]
    data = file.segment.path.read_bytes()
    assert SegmentHeader.unpack(data, "").base_offset == 7
    assert data[SEGMENT_HEADER_SIZE:] == bytes(10_000 - SEGMENT_HEADER_SIZE)
    file.close()


def test_space_is_reserved_in_steps(tmp_path: Path) -> None:
    disk = CountingDisk()
    file = created(tmp_path, disk)
    for end in (100, 10_000, 10_001, 15_000, 20_001, 70_000):
        file.preallocate(end)
    assert disk.allocated == [(0, 10_000), (10_000, 10_000), (20_000, 10_000), (30_000, 40_000)]
    file.close()


def test_of_scarce_space_little_is_reserved_at_a_time(tmp_path: Path) -> None:
    disk = CountingDisk()
    header = SegmentHeader(UUID, 2, 7, 0)
    file = begin_segment(disk, tmp_path, header, 16 << 20, True)
    file.preallocate(65_000, True)
    assert file.spare_bytes == (64 << 10) - SEGMENT_HEADER_SIZE
    file.preallocate(70_000, True)
    file.preallocate(400_000, True)
    step = 64 << 10
    assert disk.allocated == [(0, step), (step, step), (2 * step, 400_000 - 2 * step)]
    file.preallocate(400_001)
    assert disk.allocated[-1] == (400_000, 16 << 20)
    file.close()


def written(tmp_path: Path, allocated: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Where what was written, when batches of these sizes follow each other."""
    disk = CountingDisk()
    file = created(tmp_path, disk)
    file.preallocate(allocated)
    disk.writes.clear()
    position = SEGMENT_HEADER_SIZE
    for size in sizes:
        file.append_durably([b"x" * size], position, position + size)
        position += size
    file.close()
    data = file.segment.path.read_bytes()
    assert data[SEGMENT_HEADER_SIZE:] == b"x" * (position - SEGMENT_HEADER_SIZE) + bytes(len(data) - position)
    assert len(data) == max(allocated, 10_000)
    return disk.writes


def test_zeros_go_behind_a_small_write_once_for_many(tmp_path: Path) -> None:
    sizes = [size for _, size in written(tmp_path, 16 << 20, [SMALL_WRITE_MAX] * 10)]
    zeros = 8 * SMALL_WRITE_MAX
    assert sizes == [SMALL_WRITE_MAX + zeros, *[SMALL_WRITE_MAX] * 8, SMALL_WRITE_MAX + zeros]
    assert zeros <= len(ZEROS)


def test_no_zeros_go_behind_a_large_write(tmp_path: Path) -> None:
    large = SMALL_WRITE_MAX + 1
    assert [size for _, size in written(tmp_path, 1 << 20, [large, 10, large])] == [
        large,
        10 + ZEROS_MIN,
        large,
    ]


def test_zeros_end_with_what_is_preallocated(tmp_path: Path) -> None:
    assert written(tmp_path, 10_000, [100, 100]) == [
        (SEGMENT_HEADER_SIZE, 10_000 - SEGMENT_HEADER_SIZE),
        (SEGMENT_HEADER_SIZE + 100, 100),
    ]


def test_sealing_cuts_to_size(tmp_path: Path) -> None:
    file = created(tmp_path)
    file.seal(seed_of(UUID))
    footer = read_footer(DISK, file.fd, seed_of(UUID))
    assert footer is not None
    assert (footer.batches, footer.end_offset, footer.position) == (0, 7, SEGMENT_HEADER_SIZE)
    assert list(Walk(DISK, file.fd, seed_of(UUID), 7)) == []
    file.close()


def test_the_index_file_grows_and_restarts(tmp_path: Path) -> None:
    file = created(tmp_path)
    file.restart_index(100, 0)
    assert not file.segment.index_path.exists(), "nothing to say"
    file.write_index(b"one")
    file.write_index(b"two")
    file.close()
    assert file.segment.index_path.read_bytes() == b"onetwo"
