"""The segments of an open log."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.catalog import Catalog, Segment
from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptBatch, OffsetOutOfRange
from headrace.journal.segment import SegmentHeader, seed_of
from headrace.journal.tail import Tail
from unit.journal.log_at import filled

BODIES = [b"%03d" % i * 50 for i in range(60)]


def loaded(data_dir: Path, open_files_max: int = 64) -> Catalog:
    """Every segment with a dense index."""
    directory = data_dir / "journal"
    paths = sorted(directory.glob("*.log"))
    seed = seed_of(SegmentHeader.unpack(paths[0].read_bytes(), "").uuid)
    segments = [Tail(DISK, directory, int(path.stem), seed).segment for path in paths]
    return Catalog(DISK, seed, segments, open_files_max)


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
