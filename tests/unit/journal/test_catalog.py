"""The segments of an open log."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.journal.catalog import Catalog, Segment
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptBatch, OffsetOutOfRange
from headrace.journal.segment import BATCH_HEADER_SIZE, SegmentHeader, seed_of
from headrace.journal.tail import Tail
from unit.journal.log_at import filled

BODIES = [b"%03d" % i * 50 for i in range(60)]


def loaded(data_dir: Path, open_files_max: int = 64, disk: Disk = DISK) -> Catalog:
    """Every segment with a dense index."""
    directory = data_dir / "journal"
    paths = sorted(directory.glob("*.log"))
    seed = seed_of(SegmentHeader.unpack(paths[0].read_bytes(), "").uuid)
    segments = [Tail(DISK, directory, int(path.stem), seed).segment for path in paths]
    return Catalog(disk, seed, segments, open_files_max)


def test_more_segments_than_open_files(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path, open_files_max=2)
    for _ in range(2):
        for offset, body in enumerate(BODIES):
            assert catalog.read(offset).body == body
    assert len(catalog._files) == 2
    catalog.close()


def test_a_sparse_index_is_enough(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path)
    for segment in catalog.segments:
        segment.index = segment.index.thinned(1000)
    assert [catalog.read(offset).body for offset in range(60)] == BODIES
    catalog.close()


def test_a_wrong_index_costs_a_walk(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path)
    catalog.segments[0].index.positions[3] += 1
    assert catalog.read(3).body == BODIES[3]
    assert catalog.read(2).body == BODIES[2]
    catalog.close()


def test_a_damaged_batch_has_its_place(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path)
    path = catalog.segments[1].path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    base = catalog.segments[1].base_offset
    with pytest.raises(CorruptBatch) as caught:
        catalog.read(base)
    assert (caught.value.path, caught.value.position) == (str(path), 64)
    catalog.close()


def test_removing_the_oldest(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path)
    before = catalog.segments
    catalog.read(0)
    gone = catalog.remove_first()
    assert gone is before[0]
    assert not gone.path.exists()
    assert not gone.index_path.exists()
    assert catalog.segments == before[1:]
    with pytest.raises(OffsetOutOfRange):
        catalog.read(0)
    catalog.close()


def test_what_a_segment_knows_of_its_times() -> None:
    segment = Segment(Path("/journal"), 5)
    for first, last in ((100, 300), (50, 60), (200, 250)):
        segment.note(first, last)
    assert (segment.batches, segment.min_timestamp_us, segment.max_timestamp_us) == (3, 50, 300)
    segment = Segment(Path("/journal"), 5)
    segment.note(100, 200)
    segment.note(200, 200)
    assert not segment.went_back
    segment.note(250, 50)  # within a batch
    assert (segment.went_back, segment.min_timestamp_us, segment.max_timestamp_us) == (True, 50, 250)


class FewDescriptors(Disk):
    """A process that has `left` descriptors left."""

    def __init__(self) -> None:
        self.left = 1000
        self.taken: set[int] = set()

    def open(self, path: Path, write: bool = False) -> int:
        if not self.left:
            raise OSError(errno.EMFILE, "Too many open files")
        self.left -= 1
        fd = super().open(path, write)
        self.taken.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.left += 1
        self.taken.remove(fd)
        super().close(fd)


@pytest.mark.parametrize("opened_before", [0, 1, 3])
def test_reads_go_on_when_the_process_has_no_descriptors_left(tmp_path: Path, opened_before: int) -> None:
    filled(tmp_path, BODIES)
    disk = FewDescriptors()
    catalog = loaded(tmp_path, disk=disk)
    for segment in catalog.segments[:opened_before]:
        catalog.read(segment.base_offset)
    disk.left = 0
    for offset, body in enumerate(BODIES):
        assert catalog.read(offset).body == body
    assert [batch.body for batch in catalog.scan(0, len(BODIES))] == BODIES
    catalog.close()
    assert disk.taken == set()


def test_a_scan_is_not_disturbed_by_reads_of_many_segments(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path, open_files_max=1)
    found = []
    for batch in catalog.scan(0, len(BODIES)):
        found.append(batch.body)
        for segment in catalog.segments:
            catalog.read(segment.base_offset)
    assert found == BODIES
    catalog.close()


def test_a_segment_that_cannot_be_deleted_is_still_there(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)

    class Stubborn(Disk):
        def unlink(self, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    catalog = loaded(tmp_path, disk=Stubborn())
    with pytest.raises(OSError, match="Input/output"):
        catalog.remove_first()
    assert catalog.read(0).body == BODIES[0]
    catalog.close()


def test_bytes_from_an_offset_on(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    catalog = loaded(tmp_path)
    batch = BATCH_HEADER_SIZE + len(BODIES[0])
    assert [catalog.bytes_from(offset) for offset in (0, 1, 58, 59, 60, 99)] == [
        60 * batch,
        59 * batch,
        2 * batch,
        batch,
        0,
        0,
    ]
    for segment in catalog.segments:
        segment.index = segment.index.thinned(1000)
    assert 59 * batch <= catalog.bytes_from(1) <= 59 * batch + 1000, "an index with gaps is near enough"
    catalog.close()
