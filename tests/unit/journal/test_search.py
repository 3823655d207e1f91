"""Batches behind damage: all of them are found, and what else lies there costs no more than its bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import Struct
from zlib import crc32

import pytest

from headrace.journal import prefix_crc, search
from headrace.journal import segment as segments
from headrace.journal.damage import survey
from headrace.journal.disk import DISK, Disk
from headrace.journal.epochs import EPOCH_MAX
from headrace.journal.search import find_batches
from headrace.journal.segment import BATCH_MAGIC, SEGMENT_HEADER_SIZE, Batch, pack_batch_header
from headrace.journal.tail import Tail
from unit.journal.test_walk import FIRST, SECOND, SEED, batch, segment

HEADER = Struct("<4sIIBBHQIIQQQ")


class Counting(Disk):
    def __init__(self) -> None:
        self.bytes = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = super().pread(fd, length, position)
        self.bytes += len(data)
        return data


def test_batches_behind_damage_are_found(tmp_path: Path) -> None:
    forged = pack_batch_header(SEED + 1, b"evil", 9, 1, 1, 0, 0, 0) + b"evil"
    fd = segment(tmp_path, b"junk" * 300_000, FIRST, forged, b"\xd7HRB", SECOND[:-1], SECOND)
    found = [(position, item.body) for position, item in find_batches(DISK, fd, SEED, SEGMENT_HEADER_SIZE)]
    first_at = SEGMENT_HEADER_SIZE + 1_200_000
    second_at = first_at + len(FIRST) + len(forged) + 4 + len(SECOND) - 1
    assert found == [(first_at, b"first"), (second_at, b"second")]
    DISK.close(fd)


@pytest.mark.parametrize("chunk_bytes", [200, 257, 1 << 20])
@pytest.mark.parametrize("candidates_max", [1, 3, 1 << 20])
def test_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, candidates_max: int
) -> None:
    monkeypatch.setattr(search, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(search, "_CANDIDATES_MAX", candidates_max)
    rng = Random(5)
    parts, expected, at = [], [], SEGMENT_HEADER_SIZE
    for offset in range(100):
        junk = rng.choice((b"", BATCH_MAGIC, rng.randbytes(rng.randrange(300))))
        whole = batch(offset, rng.randbytes(rng.randrange(1, 500)))
        torn = whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else b""
        parts += [junk, torn, whole]
        at += len(junk) + len(torn)
        expected.append((at, offset))
        at += len(whole)
    fd = segment(tmp_path, *parts)
    found = [(at, one.base_offset) for at, one in find_batches(DISK, fd, SEED, SEGMENT_HEADER_SIZE)]
    assert found == expected
    later = [one.base_offset for _, one in find_batches(DISK, fd, SEED, SEGMENT_HEADER_SIZE, 60)]
    assert later == list(range(60, 100))
    DISK.close(fd)


@pytest.mark.parametrize("epoch", [0, 1, 1 << 24, EPOCH_MAX])
def test_a_batch_of_any_epoch_is_one(tmp_path: Path, epoch: int) -> None:
    whole = pack_batch_header(SEED, b"body", 9, 1, epoch, 0, 0, 0) + b"body"
    fd = segment(tmp_path, b"junk", whole)
    found = [(one.base_offset, one.epoch) for _, one in find_batches(DISK, fd, SEED, SEGMENT_HEADER_SIZE)]
    assert found == [(9, epoch)]
    DISK.close(fd)


def test_one_within_another_is_a_payload(tmp_path: Path) -> None:
    fd = segment(tmp_path, b"?", batch(7, b"<" + batch(9, b"inner") + b">"), batch(8, b"next"))
    found = [one.base_offset for _, one in find_batches(DISK, fd, SEED, SEGMENT_HEADER_SIZE)]
    assert found == [7, 8]
    DISK.close(fd)


def plain(size: int) -> bytes:
    return BATCH_MAGIC * (size // 4)


def plausible(size: int) -> bytes:
    """Headers that overlap as closely as they can, each with a body up to nearly the end."""
    step = 40
    data = bytearray(size)
    for at in range(0, size - 200, step):
        header = HEADER.pack(BATCH_MAGIC, 1, size - at - 200, 1, 0, 0, 50, 1, 1, 0, 0, 0)
        data[at : at + step] = header[:step]
    return bytes(data)


@pytest.mark.parametrize("make", [plain, plausible])
@pytest.mark.parametrize("size", [200_000, 1_000_000])
def test_fake_magic_costs_no_more_than_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], bytes], size: int
) -> None:
    checked = 0

    def counted(data: bytes, value: int = 0) -> int:
        nonlocal checked
        checked += len(data)
        return crc32(data, value)

    for module in (search, prefix_crc, segments):
        monkeypatch.setattr(module, "crc32", counted)
    fake = make(size)
    torn = batch(1, fake)[:-1]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(bytes(SEGMENT_HEADER_SIZE) + batch(0, b"good") + torn)
    disk = Counting()
    tail = Tail(disk, tmp_path, 0, SEED)
    assert tail.segment.end_offset == 1
    assert disk.bytes < 6 * len(torn)
    assert checked < 6 * len(torn)


def test_all_damage_of_a_segment_takes_one_search(tmp_path: Path) -> None:
    parts = []
    for offset in range(300):
        whole = batch(offset, b"%03d" % offset * 300)
        parts.append(whole if offset % 2 else whole[:-1] + b"!")
    fd = segment(tmp_path, *parts)
    disk = Counting()
    pieces = list(survey(disk, fd, "segment", SEED, 0, 300))
    assert [piece.base_offset for piece in pieces if isinstance(piece, Batch)] == list(range(1, 300, 2))
    assert len(pieces) == 300
    DISK.close(fd)
