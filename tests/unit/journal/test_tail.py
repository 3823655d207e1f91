"""The last segment at opening."""

from __future__ import annotations

from pathlib import Path

from headrace.journal.disk import DISK
from headrace.journal.segment import FOOTER_SIZE, SegmentHeader, seed_of
from headrace.journal.tail import Tail, open_to_append, rewrite
from headrace.journal.walk import Walk
from unit.journal.log_at import filled

BODIES = [b"a" * 10, b"b" * 20, b"c" * 30]
SIZES = [56 + len(body) for body in BODIES]


def written(tmp_path: Path) -> tuple[Path, SegmentHeader, int]:
    filled(tmp_path, BODIES)
    path = tmp_path / "journal" / f"{0:020d}.log"
    header = SegmentHeader.unpack(path.read_bytes(), "")
    return path, header, seed_of(header.uuid)


def test_a_clean_one(tmp_path: Path) -> None:
    path, _, seed = written(tmp_path)
    tail = Tail(DISK, path.parent, 0, seed)
    assert (tail.segment.end_offset, tail.durable_offset, tail.damage) == (3, 3, "")
    assert tail.segment.size == 64 + sum(SIZES)
    assert list(tail.segment.index.positions) == [64, 64 + SIZES[0], 64 + SIZES[0] + SIZES[1]]


def test_zeros_behind_the_end_are_no_damage(tmp_path: Path) -> None:
    path, _, seed = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-FOOTER_SIZE] + bytes(10_000))
    tail = Tail(DISK, path.parent, 0, seed)
    assert (tail.segment.end_offset, tail.durable_offset, tail.damage) == (3, 0, "")


def test_a_footer_vouches_for_what_is_damaged_before_it(tmp_path: Path) -> None:
    path, _, seed = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[64 + SIZES[0] + 60] ^= 1
    path.write_bytes(data)
    tail = Tail(DISK, path.parent, 0, seed)
    assert (tail.segment.end_offset, tail.durable_offset) == (1, 3)
    assert tail.damage == "bad checksum"


def test_going_on_cuts_the_footer_off(tmp_path: Path) -> None:
    path, _, seed = written(tmp_path)
    file = open_to_append(DISK, Tail(DISK, path.parent, 0, seed).segment, 4096)
    assert path.stat().st_size == 64 + sum(SIZES)
    file.close()


def test_rewriting_copies_the_rest_into_a_segment_of_its_own(tmp_path: Path) -> None:
    path, header, seed = written(tmp_path)
    old = Tail(DISK, path.parent, 0, seed).segment
    new = rewrite(DISK, old, SegmentHeader(header.uuid, 2, 1, 0), 64 + SIZES[0], 4096)
    assert new.segment.path.name == f"{1:020d}.log"
    assert (new.segment.base_offset, new.segment.end_offset, new.segment.batches) == (1, 3, 2)
    batches = list(Walk(DISK, new.fd, seed, 1))
    assert [(batch.body, batch.durable_offset, batch.epoch) for batch in batches] == [
        (BODIES[1], 1, 1),
        (BODIES[2], 1, 1),
    ]
    new.close()
