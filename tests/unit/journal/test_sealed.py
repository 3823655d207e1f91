"""Finished segments at opening: a late footer, a rebuilt index, gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptFile, CorruptJournal
from headrace.journal.sealed import SealedLoader, read_header
from headrace.journal.segment import FOOTER_SIZE, seed_of
from unit.journal.log_at import filled

BODIES = [bytes([i]) * 1000 for i in range(9)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments with offsets 0-2, 3-5 and 6-8."""
    filled(tmp_path, BODIES)
    return tmp_path / "journal"


def loader(directory: Path, lines: list[str]) -> SealedLoader:
    return SealedLoader(DISK, directory, seed_of(read_header(DISK, directory, 0).uuid), 256, lines.append)


def test_a_sound_one_is_loaded_from_footer_and_index(directory: Path) -> None:
    lines: list[str] = []
    segment = loader(directory, lines).load(3, 6)
    assert (segment.base_offset, segment.end_offset, segment.batches) == (3, 6, 3)
    assert (segment.min_timestamp_us, segment.max_timestamp_us) == (4000, 6000)
    assert list(segment.index.offsets) == [3, 4, 5]
    assert lines == []


@pytest.mark.parametrize("data", [None, b"", b"x" * 40])
def test_the_index_is_rebuilt(directory: Path, data: bytes | None) -> None:
    path = directory / f"{3:020d}.index"
    whole = path.read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    lines: list[str] = []
    assert list(loader(directory, lines).load(3, 6).index.offsets) == [3, 4, 5]
    assert len(lines) == 1
    assert path.read_bytes() == whole


def test_damage_that_rebuilding_meets_is_refused(directory: Path) -> None:
    (directory / f"{3:020d}.index").unlink()
    path = directory / f"{3:020d}.log"
    data = bytearray(path.read_bytes())
    data[64 + 1056 + 500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptJournal) as caught:
        loader(directory, []).load(3, 6)
    assert (caught.value.position, caught.value.first_offset, caught.value.end_offset) == (64 + 1056, 4, 6)


def test_a_footer_that_a_crash_kept_back_is_written(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-FOOTER_SIZE] + bytes(3000))
    assert loader(directory, []).load(0, 3).end_offset == 3
    assert path.read_bytes() == whole


def test_what_was_rewritten_into_the_next_segment_is_cut_off_here(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-FOOTER_SIZE])
    segment = loader(directory, []).load(0, 2)
    assert (segment.end_offset, segment.batches, segment.max_timestamp_us) == (2, 2, 2000)
    assert path.stat().st_size == 64 + 2 * 1056 + FOOTER_SIZE


def test_a_gap_is_refused(directory: Path) -> None:
    with pytest.raises(CorruptJournal, match="begins elsewhere"):
        loader(directory, []).load(0, 6)
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-FOOTER_SIZE])
    with pytest.raises(CorruptJournal, match="no footer"):
        loader(directory, []).load(0, 6)


def test_a_segment_under_a_wrong_name_is_refused(directory: Path) -> None:
    (directory / f"{3:020d}.log").rename(directory / f"{4:020d}.log")
    with pytest.raises(CorruptFile, match="begins at offset 3"):
        read_header(DISK, directory, 4)
    with pytest.raises(CorruptFile, match="belongs to journal"):
        read_header(DISK, directory, 0, seed=1)
