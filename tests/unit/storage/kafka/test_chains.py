"""Snapshots in a partition: when one is whole, which chain a start begins with, and what may go."""

from __future__ import annotations

from itertools import count
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.errors import CorruptFile
from headrace.journal.segment import seed_of
from headrace.storage.kafka.chains import (
    FULL,
    ChainFold,
    Manifest,
    Whole,
    entries_in,
    manifest_of,
    pack_manifest,
    pack_piece,
    pieces_of,
)
from headrace.storage.kafka.envelope import Epoch, unpack

UUID = bytes(range(16))
SEED = seed_of(UUID)
EPOCH = Epoch(7, bytes(range(100, 116)))


def named(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Log:
    """A partition of snapshots that a test writes, and its fold."""

    def __init__(self) -> None:
        self.fold = ChainFold(UUID)
        self.values: list[bytes] = []
        self._names = count(1)

    def add(self, value: bytes) -> Whole | None:
        self.values.append(value)
        return self.fold.take(len(self.values) - 1, value)

    def snapshot(self, position: int, mark: int, parent: bytes = FULL, pieces: int = 2) -> bytes:
        """Write a whole one; returns its name."""
        name = named(next(self._names))
        held = [b"%d" % number for number in range(pieces)]
        for number, data in enumerate(held):
            assert self.add(pack_piece(SEED, EPOCH, name, number, data)) is None
        assert self.add(manifest(name, position, mark, parent, held)) is not None
        return name


def manifest(name: bytes, position: int, mark: int, parent: bytes, held: list[bytes]) -> bytes:
    found = Manifest(name, parent, position, position, mark, 0, 9, len(held), crc32(b"".join(held)))
    return pack_manifest(SEED, EPOCH, found)


def test_a_manifest_comes_back_with_its_index() -> None:
    wanted = Manifest(named(1), named(2), 40, 44, 17, 1_790_000_000_000_000, 3, 2, 5, ((0, 1), (30, 12)))
    found = unpack(SEED, pack_manifest(SEED, EPOCH, wanted))
    assert found is not None
    assert manifest_of(found.content) == wanted
    for size in range(len(found.content)):
        assert manifest_of(found.content[:size]) is None


def test_a_snapshot_is_whole_once_its_manifest_is_there() -> None:
    log = Log()
    log.snapshot(10, 3)
    log.snapshot(20, 8, pieces=0)
    places = [(whole.manifest.position, whole.first, whole.last) for whole in log.fold.whole.values()]
    assert places == [(10, 0, 2), (20, 3, 3)]


def test_pieces_of_two_snapshots_may_come_among_each_other_and_twice() -> None:
    log = Log()
    for name, number in ((1, 0), (2, 0), (1, 0), (1, 1), (2, 1), (2, 0)):
        log.add(pack_piece(SEED, EPOCH, named(name), number, b"%d" % number))
    assert log.add(manifest(named(1), 10, 3, FULL, [b"0", b"1"])) is not None
    assert log.add(manifest(named(2), 20, 8, FULL, [b"0", b"1"])) is not None
    assert log.add(manifest(named(2), 20, 8, FULL, [b"0", b"1"])) is None


@pytest.mark.parametrize("there", [[], [0], [1], [0, 2], [1, 2], [2, 1, 0]])
def test_a_snapshot_that_lacks_a_piece_is_none(there: list[int]) -> None:
    log = Log()
    for number in there:
        log.add(pack_piece(SEED, EPOCH, named(1), number, b"%d" % number))
    assert log.add(manifest(named(1), 10, 3, FULL, [b"0", b"1", b"2"])) is None
    assert log.fold.chains(0) == []


def positions(chains: list[list[Whole]]) -> list[list[int]]:
    return [[whole.manifest.position for whole in chain] for chain in chains]


def test_changes_follow_what_they_are_changes_of() -> None:
    log = Log()
    first = log.snapshot(10, 1)
    changes = log.snapshot(20, 2, first)
    log.snapshot(30, 3, changes)
    log.snapshot(25, 4)
    log.snapshot(99, 5, named(500))  # of one that is not there
    assert positions(log.fold.chains(0)) == [[10, 20, 30], [25]]


def test_one_that_was_finished_late_lies_further_back() -> None:
    log = Log()
    log.snapshot(50, 9)
    log.snapshot(20, 4)  # by an owner that was replaced meanwhile
    assert positions(log.fold.chains(0)) == [[50], [20]]


def test_a_chain_whose_mark_is_deleted_is_none() -> None:
    log = Log()
    log.snapshot(10, 1)
    later = log.snapshot(20, 5)
    log.snapshot(30, 9, later)
    assert positions(log.fold.chains(2)) == [[20, 30]]
    assert positions(log.fold.chains(6)) == [[20, 30]]
    assert log.fold.chains(10) == []


def test_two_chains_are_kept_and_what_is_before_them_may_go() -> None:
    log = Log()
    log.snapshot(10, 1)
    assert log.fold.kept_from(0) is None
    assert log.fold.floor(0) is None
    second = log.snapshot(20, 2)
    log.snapshot(30, 3, second)
    log.snapshot(40, 4)
    assert log.fold.kept_from(0) == 3
    floor = log.fold.floor(0)
    assert floor is not None
    assert (floor.position, floor.mark) == (20, 2)
    log.fold.forget_below(3)
    assert positions(log.fold.chains(0)) == [[40], [20, 30]]


def test_records_of_another_journal_are_nothing() -> None:
    log = Log()
    other = seed_of(bytes(16))
    assert log.add(pack_piece(other, EPOCH, named(1), 0, b"x")) is None
    assert log.add(b"") is None
    assert log.fold.take(9, None) is None


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_entries_come_back_from_pieces_of_any_size(entries: list[bytes], bytes_max: int) -> None:
    pieces = list(pieces_of(entries, bytes_max))
    assert all(len(piece) <= bytes_max for piece in pieces)
    assert list(entries_in(pieces)) == entries


def test_pieces_that_end_within_an_entry_are_refused() -> None:
    with pytest.raises(CorruptFile):
        list(entries_in([b"\x05\0\0\0abc"]))
