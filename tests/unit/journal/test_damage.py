"""Every piece of a segment: what is whole, and each stretch that is not."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from headrace.journal.damage import Damage, first_damage, survey
from headrace.journal.disk import DISK
from headrace.journal.segment import Batch, seed_of
from unit.journal.log_at import filled, opened

SIZE = 56 + 100


def segment(tmp_path: Path) -> tuple[Path, int]:
    filled(tmp_path, [b"%02d" % i * 50 for i in range(10)])
    log = opened(tmp_path)
    seed = seed_of(UUID(log.uuid).bytes)
    log.close()
    return tmp_path / "journal" / f"{0:020d}.log", seed


def pieces(path: Path, seed: int, end: int = 10) -> list[str]:
    fd = DISK.open(path)
    try:
        found = list(survey(DISK, fd, "log", seed, 0, end))
    finally:
        DISK.close(fd)
    return [str(p.base_offset) if isinstance(p, Batch) else f"{p.first_offset}-{p.end_offset}" for p in found]


def hurt(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], "0 1 2 3 4 5 6 7 8 9"),
        ([(2, 70)], "0 1 2-3 3 4 5 6 7 8 9"),
        ([(0, 10)], "0-1 1 2 3 4 5 6 7 8 9"),
        ([(2, 0), (3, 9), (7, 60)], "0 1 2-4 4 5 6 7-8 8 9"),
        ([(9, 100)], "0 1 2 3 4 5 6 7 8 9-10"),
    ],
)
def test_damage_lies_between_what_is_whole(
    tmp_path: Path, places: list[tuple[int, int]], expected: str
) -> None:
    path, seed = segment(tmp_path)
    for batch, byte in places:
        hurt(path, 64 + batch * SIZE + byte, b"\xff")
    assert pieces(path, seed) == expected.split()


def test_a_hole_of_zeros_in_the_middle(tmp_path: Path) -> None:
    path, seed = segment(tmp_path)
    hurt(path, 64 + 3 * SIZE - 20, bytes(4 * SIZE))
    assert pieces(path, seed) == ["0", "1", "2-7", "7", "8", "9"]


def test_a_batch_without_its_neighbour_before(tmp_path: Path) -> None:
    path, seed = segment(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: 64 + 2 * SIZE] + data[64 + 4 * SIZE :])
    assert pieces(path, seed) == ["0", "1", "2-4", "4", "5", "6", "7", "8", "9"]


def test_an_unfinished_batch_at_the_end_is_no_damage(tmp_path: Path) -> None:
    path, seed = segment(tmp_path)
    path.write_bytes(path.read_bytes()[: 64 + 9 * SIZE + 30])
    assert pieces(path, seed, 9) == ["0", "1", "2", "3", "4", "5", "6", "7", "8"]
    assert pieces(path, seed, 12) == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9-12"]


def test_the_first_damage_as_an_error(tmp_path: Path) -> None:
    path, seed = segment(tmp_path)
    fd = DISK.open(path)
    assert first_damage(DISK, fd, "log", seed, 0, 10) is None
    hurt(path, 64 + 4 * SIZE + 60, b"\xff")
    found = first_damage(DISK, fd, "log", seed, 0, 10)
    DISK.close(fd)
    assert isinstance(found, Damage)
    assert found.records == 1
    assert "byte 688: bad checksum; offsets 4 up to 5 were durable" in str(found.error())
