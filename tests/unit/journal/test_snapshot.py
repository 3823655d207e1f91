"""Snapshots: whole or skipped, two kept, gone when the journal was cut below them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptFile
from headrace.journal.snapshot import (
    CHANGES_SUFFIX,
    SnapshotFile,
    SnapshotWriter,
    discard_beyond,
    first_entries,
    newest_chain,
    newest_snapshot,
    positions,
)


def snapshot(directory: Path, position: int, *entries: bytes, applied: int | None = None) -> Path:
    writer = SnapshotWriter(directory, position)
    for entry in entries:
        writer.add(entry)
    return writer.commit(applied)


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    entries = [b"", b"one", b"x" * 3_000_000, *[b"%d" % i for i in range(1000)]]
    path = snapshot(tmp_path, 42, *entries, applied=50)
    found = newest_snapshot(tmp_path)
    assert found is not None
    assert (found.path, found.position, found.applied_offset, found.entry_count) == (
        path,
        42,
        50,
        len(entries),
    )
    assert found.size == path.stat().st_size
    assert found.created_us > 0
    assert list(found.entries()) == list(found.entries()) == entries


def test_the_first_entries_need_nothing_of_what_is_behind_them(tmp_path: Path) -> None:
    assert list(first_entries(tmp_path / "nowhere")) == list(first_entries(tmp_path)) == []
    snapshot(tmp_path, 5, b"older")
    path = snapshot(tmp_path, 10, b"one", b"two", b"x" * 3_000_000)
    assert next(first_entries(tmp_path)) == b"one"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert list(first_entries(tmp_path)) == [b"one", b"two"]
    path.write_bytes(b"?" + whole[1:])
    assert list(first_entries(tmp_path)) == [b"older"]


def test_there_is_none_before_commit(tmp_path: Path) -> None:
    assert newest_snapshot(tmp_path) is None
    writer = SnapshotWriter(tmp_path, 1)
    writer.add(b"x")
    assert newest_snapshot(tmp_path) is None
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_two_are_kept(tmp_path: Path) -> None:
    for position in (5, 10, 200):
        snapshot(tmp_path, position, b"entry")
    assert positions(tmp_path) == [10, 200]


def test_a_damaged_one_is_skipped_and_said(tmp_path: Path) -> None:
    snapshot(tmp_path, 1, b"old")
    path = snapshot(tmp_path, 2, b"new entry", b"another")
    whole = path.read_bytes()
    lines: list[str] = []
    for at in range(len(whole)):
        if 40 <= at < 64 or at >= len(whole) - 8:
            continue  # reserved, zero, and below a checksum
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        found = newest_snapshot(tmp_path, lines.append)
        assert found is not None
        assert found.position == 1, f"byte {at}"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = newest_snapshot(tmp_path, lines.append)
        assert found is not None
        assert found.position == 1, f"cut to {length}"
    assert all("damaged" in line for line in lines)
    with pytest.raises(CorruptFile):
        SnapshotFile(path)


def test_those_that_reflect_what_is_gone_are_removed(tmp_path: Path) -> None:
    snapshot(tmp_path, 5, b"a")
    snapshot(tmp_path, 8, b"b", applied=20)
    lines: list[str] = []
    discard_beyond(tmp_path, 19, lines.append)
    assert positions(tmp_path) == [5]
    assert "reflects records up to 20" in lines[0]
    discard_beyond(tmp_path, 5, lines.append)
    assert positions(tmp_path) == [5]


def test_a_damaged_end_is_left_to_whoever_loads_it(tmp_path: Path) -> None:
    path = snapshot(tmp_path, 5, b"a", applied=20)
    path.write_bytes(path.read_bytes()[:-20])
    discard_beyond(tmp_path, 10, print)
    assert positions(tmp_path) == [5]
    path.write_bytes(b"")
    discard_beyond(tmp_path, 10, print)
    assert newest_snapshot(tmp_path) is None


def test_a_commit_that_failed_can_be_abandoned(tmp_path: Path) -> None:
    class Full(Disk):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "full")

    writer = SnapshotWriter(tmp_path, 7, Full())
    writer.add(b"x")
    with pytest.raises(OSError, match="full"):
        writer.commit()
    writer.abandon()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def changes(directory: Path, position: int, parent: int) -> Path:
    writer = SnapshotWriter(directory, position, parent=parent)
    writer.add(b"changes up to %d" % position)
    return writer.commit()


def chain_of(directory: Path) -> list[int]:
    return [found.position for found in newest_chain(directory)]


def test_changes_are_read_behind_their_full_one(tmp_path: Path) -> None:
    assert chain_of(tmp_path) == []
    snapshot(tmp_path, 10, b"all")
    changes(tmp_path, 20, 10)
    changes(tmp_path, 30, 20)
    assert chain_of(tmp_path) == [10, 20, 30]
    assert list(newest_chain(tmp_path)[1].entries()) == [b"changes up to 20"]
    snapshot(tmp_path, 40, b"all")
    assert chain_of(tmp_path) == [40]
    assert positions(tmp_path, suffix=CHANGES_SUFFIX) == []


def test_damaged_changes_hide_those_behind_them(tmp_path: Path) -> None:
    snapshot(tmp_path, 10, b"all")
    snapshot(tmp_path, 15, b"all")
    path = changes(tmp_path, 20, 15)
    changes(tmp_path, 30, 20)
    path.write_bytes(path.read_bytes()[:-1])
    lines: list[str] = []
    assert [found.position for found in newest_chain(tmp_path, lines.append)] == [15]
    assert len(lines) == 1
    path.unlink()
    assert chain_of(tmp_path) == [15]


def test_an_older_full_one_has_no_use_for_changes_to_another(tmp_path: Path) -> None:
    snapshot(tmp_path, 10, b"all")
    path = snapshot(tmp_path, 15, b"all")
    changes(tmp_path, 20, 15)
    path.write_bytes(b"")
    assert chain_of(tmp_path) == [10]


def test_changes_beyond_a_cut_go(tmp_path: Path) -> None:
    snapshot(tmp_path, 10, b"all")
    changes(tmp_path, 20, 10)
    changes(tmp_path, 30, 20)
    discard_beyond(tmp_path, 25, print)
    assert chain_of(tmp_path) == [10, 20]
