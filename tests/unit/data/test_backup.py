"""A backup of several shards is of one moment, is restored as a whole, and what does not fit together is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.data.backup import backup_shards, is_interrupted, read_shards_manifest, restore_shards
from headrace.data.layout import Layout, UnusableLayout
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.inspect import verify
from headrace.journal.manifest import read_manifest
from headrace.journal.reader import JournalReader
from unit.data.journals import append, copy, followed, made, message


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Shard 0 has a copy of more than shard 1 has by now: what a backup of a running broker may find."""
    return made(
        tmp_path / "d",
        [
            [message("a"), copy(1, 1), copy(1, 2), message("late")],
            [message("b"), message("c")],
            [message("d")],
        ],
    )


def bodies(directory: Path) -> list[bytes]:
    return [bytes(batch.body) for batch in JournalReader(directory).scan(0)]


def test_each_shard_is_copied_up_to_where_it_fits_the_others(layout: Layout, tmp_path: Path) -> None:
    made_ = backup_shards(layout, tmp_path / "copy")
    assert [one.high_watermark for one in made_] == [2, 2, 1]
    found = read_shards_manifest(tmp_path / "copy")
    assert [shard.high_watermark for shard in found.shards] == [2, 2, 1]
    for directory in Layout.open(tmp_path / "copy").directories():
        assert verify(directory).ok
    assert all(ConsumerPosition.names(directory) == [] for directory in layout.directories())


def test_a_backup_is_restored_as_a_node_of_its_own(layout: Layout, tmp_path: Path) -> None:
    backup_shards(layout, tmp_path / "copy")
    before = [bodies(directory) for directory in layout.directories()]
    restored = restore_shards(tmp_path / "copy", tmp_path / "new")
    again = Layout.open(tmp_path / "new")
    assert (again.shards, again.node == layout.node) == (3, False)
    assert [bodies(directory) for directory in again.directories()] == [before[0][:2], before[1], before[2]]
    for one, directory, old in zip(restored, again.directories(), layout.directories(), strict=True):
        reader = JournalReader(directory)
        assert (reader.uuid, reader.epoch) == (one.uuid, one.epoch)
        assert (one.uuid, one.epoch > JournalReader(old).epoch) == (JournalReader(old).uuid, True)
        append(directory, [message("goes on")])
    assert not (tmp_path / "new" / "restore.tmp").exists()
    assert backup_shards(again, tmp_path / "copy-2")[2].high_watermark == 2


def test_neither_is_made_where_something_is(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        backup_shards(layout, tmp_path / "full")
    backup_shards(layout, tmp_path / "copy")
    for there, said in ((tmp_path / "full", "is not empty"), (layout.path, "already holds a journal")):
        with pytest.raises(FileExistsError, match=said):
            restore_shards(tmp_path / "copy", there)
    assert Layout.open(layout.path) == layout


def test_a_backup_that_fails_leaves_nothing(layout: Layout, tmp_path: Path) -> None:
    segment = next((layout.directory(2) / "journal").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[80] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Exception, match=r"\.log"):
        backup_shards(layout, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert all(ConsumerPosition.names(directory) == [] for directory in layout.directories())


def test_shards_of_two_backups_do_not_fit(layout: Layout, tmp_path: Path) -> None:
    backup_shards(layout, tmp_path / "old")
    append(layout.directory(1), [message("e"), followed(2, 0)])
    backup_shards(layout, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/shard-1")
    shutil.copytree(tmp_path / "old/shard-1", tmp_path / "copy/shard-1")
    with pytest.raises(CorruptFile, match="shard-1 is of another backup than the rest"):
        restore_shards(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("lost", ["manifest.json", "shards.json", "shard-1", "shard-0/manifest.json"])
def test_half_a_backup_is_refused(layout: Layout, tmp_path: Path, lost: str) -> None:
    backup_shards(layout, tmp_path / "copy")
    path = tmp_path / "copy" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(
        (CorruptFile, UnusableLayout), match=r"manifest\.json|shards\.json|shard-1 is missing"
    ):
        restore_shards(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_a_newer_headrace_made_is_refused_and_what_is_not_of_one_shard(
    layout: Layout, tmp_path: Path
) -> None:
    backup_shards(layout, tmp_path / "copy")
    with pytest.raises(CorruptFile):
        read_manifest(tmp_path / "copy")  # as if it were of one shard
    path = tmp_path / "copy" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    with pytest.raises(
        UnsupportedFormat, match=r"version 3, made by headrace .*; this headrace, .*, reads up to 2"
    ):
        restore_shards(tmp_path / "copy", tmp_path / "new")


@pytest.mark.parametrize("moved", [0, 1, 3])
def test_a_restore_that_was_killed_is_no_data_directory_and_is_done_anew(
    layout: Layout, tmp_path: Path, moved: int
) -> None:
    backup_shards(layout, tmp_path / "copy")
    restore_shards(tmp_path / "copy", tmp_path / "new")
    making = tmp_path / "new" / "restore.tmp"
    making.mkdir()
    (tmp_path / "new" / "shards.json").rename(making / "shards.json")
    for shard in range(moved, 3):
        (tmp_path / "new" / f"shard-{shard}").rename(making / f"shard-{shard}")
    assert is_interrupted(tmp_path / "new")
    if moved:
        with pytest.raises(UnusableLayout, match=r"shards\.json is missing"):
            Layout.open(tmp_path / "new")
    restore_shards(tmp_path / "copy", tmp_path / "new")
    assert [bodies(directory) for directory in Layout.open(tmp_path / "new").directories()] == [
        bodies(directory) for directory in Layout.open(tmp_path / "copy").directories()
    ]
