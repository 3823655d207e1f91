"""The checksum of any stretch from one pass over the file."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.disk import DISK
from headrace.journal.prefix_crc import PrefixCrcs, product

DATA = bytes(number * 7 % 251 for number in range(3 << 20))


def test_any_stretch_behind_anything(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    fd = DISK.open(tmp_path / "file")
    positions = [5, 64, 65, 1000, 65_536, 65_600, 131_136, 1 << 20, (1 << 20) + 1, 3_000_000, len(DATA)]
    crcs = PrefixCrcs(DISK, fd, positions)
    for at, start in enumerate(positions):
        for end in positions[at:]:
            for before in (0, 77, 0xFFFF_FFFF):
                assert crcs.between(start, end, before) == crc32(DATA[start:end], before)
    DISK.close(fd)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA[:1000])
    fd = DISK.open(tmp_path / "file")
    crcs = PrefixCrcs(DISK, fd, [10, 100, 2000])
    assert crcs.between(10, 100, 3) == crc32(DATA[10:100], 3)
    assert crcs.between(10, 2000, 3) == -1
    DISK.close(fd)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_product_is_one(a: int, b: int, c: int) -> None:
    assert product(a, 1 << 31) == a
    assert product(a, b) == product(b, a)
    assert product(a, b ^ c) == product(a, b) ^ product(a, c)
