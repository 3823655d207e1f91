"""Walking a segment: every way to end has its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal import walk as walks
from headrace.journal.disk import DISK
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Footer, pack_batch_header
from headrace.journal.walk import Walk, has_data, read_footer

SEED = 5


def batch(offset: int, body: bytes) -> bytes:
    return pack_batch_header(SEED, body, offset, 1, 1, 0, 0, 0) + body


def segment(tmp_path: Path, *parts: bytes) -> int:
    path = tmp_path / "segment"
    path.write_bytes(bytes(SEGMENT_HEADER_SIZE) + b"".join(parts))
    return DISK.open(path)


FIRST, SECOND = batch(0, b"first"), batch(1, b"second")
END = SEGMENT_HEADER_SIZE + len(FIRST) + len(SECOND)
FOOTER = Footer(2, 2, END, 0, 0).pack(SEED)


@pytest.mark.parametrize(
    ("rest", "stop", "is_damaged"),
    [
        ([], walks.END_OF_DATA, False),
        ([bytes(5000)], walks.END_OF_DATA, False),
        ([FOOTER], walks.FOOTER, False),
        ([b"something else here"], walks.NO_BATCH, True),
        ([FOOTER[:-1] + b"!"], walks.NO_BATCH, True),
        ([batch(2, b"third")[:-1]], walks.TORN, True),
        ([batch(2, b"third")[:20]], walks.TORN, True),
        ([batch(2, b"third")[:-1] + b"!"], walks.BAD_CHECKSUM, True),
        ([batch(3, b"fourth")], walks.WRONG_OFFSET, True),
    ],
)
def test_where_a_walk_ends(tmp_path: Path, rest: list[bytes], stop: str, is_damaged: bool) -> None:
    fd = segment(tmp_path, FIRST, SECOND, *rest)
    walk = Walk(DISK, fd, SEED, 0)
    assert [found.body for found in walk] == [b"first", b"second"]
    assert (walk.stop, walk.is_damaged) == (stop, is_damaged)
    assert (walk.position, walk.next_offset) == (END, 2)
    assert (walk.footer is not None) == (stop == walks.FOOTER)
    DISK.close(fd)


def test_a_walk_keeps_to_its_limit_and_start(tmp_path: Path) -> None:
    fd = segment(tmp_path, FIRST, SECOND, b"garbage")
    second_at = SEGMENT_HEADER_SIZE + len(FIRST)
    assert [found.body for found in Walk(DISK, fd, SEED, 0, limit=second_at)] == [b"first"]
    walk = Walk(DISK, fd, SEED, 1, second_at, END)
    assert [found.body for found in walk] == [b"second"]
    assert not walk.is_damaged
    DISK.close(fd)


def test_batches_larger_than_the_read_ahead(tmp_path: Path) -> None:
    bodies = [bytes([i]) * (700_000 * i + 1) for i in range(4)]
    fd = segment(tmp_path, *[batch(i, body) for i, body in enumerate(bodies)])
    assert [found.body for found in Walk(DISK, fd, SEED, 0)] == bodies
    DISK.close(fd)


def test_footer_at_the_end(tmp_path: Path) -> None:
    fd = segment(tmp_path, FIRST, SECOND, FOOTER)
    footer = read_footer(DISK, fd, SEED)
    assert footer is not None
    assert footer.end_offset == 2
    assert read_footer(DISK, fd, SEED + 1) is None
    DISK.close(fd)
    fd = segment(tmp_path)
    assert read_footer(DISK, fd, SEED) is None
    DISK.close(fd)


def test_has_data(tmp_path: Path) -> None:
    fd = segment(tmp_path, bytes(3_000_000), b"\1")
    assert has_data(DISK, fd, 0)
    assert not has_data(DISK, fd, SEGMENT_HEADER_SIZE + 3_000_001)
    DISK.close(fd)
    fd = segment(tmp_path, bytes(3_000_000))
    assert not has_data(DISK, fd, 0)
    DISK.close(fd)
