"""Finding places in a segment, and the index file."""

from __future__ import annotations

from array import array

import pytest

from headrace.journal.index import OffsetIndex

SEED = 99


def index_of(*pairs: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in pairs:
        index.add(offset, position)
    return index


def test_span_is_the_stretch_that_holds_the_offset() -> None:
    index = index_of((10, 64), (13, 200), (20, 300))
    assert index.span(10, 999) == (10, 64, 200)
    assert index.span(12, 999) == (10, 64, 200)
    assert index.span(13, 999) == (13, 200, 300)
    assert index.span(500, 999) == (20, 300, 999)
    with pytest.raises(IndexError):
        index.span(9, 999)


class _Short(array):  # type: ignore[type-arg]
    """An array that cannot grow."""

    def append(self, value: int, /) -> None:
        raise MemoryError


def test_an_entry_there_is_no_memory_for_is_left_out() -> None:
    index = index_of((10, 64))
    index.offsets = _Short("Q", index.offsets)
    index.add(13, 200)
    assert index.span(13, 999) == (10, 64, 999)
    assert list(index.positions) == [64]
    index.offsets = array("Q", index.offsets)
    index.add(20, 300)
    assert index.span(19, 999) == (10, 64, 300)
    empty = OffsetIndex()
    empty.offsets = _Short("Q")
    with pytest.raises(MemoryError):
        empty.add(10, 64)


def test_thinned_keeps_the_first_and_about_one_an_interval() -> None:
    dense = index_of(*[(i, 64 + 10 * i) for i in range(100)])
    thin = dense.thinned(100)
    assert list(thin.positions) == [64 + 100 * i for i in range(10)]
    assert thin.offsets[0] == 0


def test_the_file_comes_back_up_to_its_first_damage() -> None:
    data = index_of((0, 64), (5, 100), (9, 300)).pack(SEED)
    assert list(OffsetIndex.unpack(data, SEED).offsets) == [0, 5, 9]
    assert list(OffsetIndex.unpack(data[:-3], SEED).offsets) == [0, 5]
    assert len(OffsetIndex.unpack(data, SEED + 1)) == 0
    damaged = bytearray(data)
    damaged[17] ^= 1
    assert list(OffsetIndex.unpack(bytes(damaged), SEED).offsets) == [0]


def test_entries_that_do_not_ascend_end_it() -> None:
    data = index_of((0, 64), (5, 100), (4, 300), (6, 400)).pack(SEED)
    assert list(OffsetIndex.unpack(data, SEED).offsets) == [0, 5]


@pytest.mark.parametrize(
    ("pairs", "serves"),
    [
        ([(0, 64), (5, 900)], True),
        ([], False),
        ([(1, 64)], False),
        ([(0, 65)], False),
        ([(0, 64), (10, 900)], False),
        ([(0, 64), (5, 1000)], False),
        ([(0, 64), (5, 200)], False),
    ],
)
def test_an_index_serves_if_it_fits_its_segment(pairs: list[tuple[int, int]], serves: bool) -> None:
    assert index_of(*pairs).serves(0, 64, 10, 1000, 500) is serves


def test_an_empty_index_serves_an_empty_segment() -> None:
    assert OffsetIndex().serves(7, 64, 7, 64, 500)
