"""The shards of a data directory are where they were put, or the directory is refused with what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.data.layout import SHARDS_MAX, Layout, UnusableLayout, is_new
from headrace.errors import ConfigError
from headrace.journal.disk import DISK
from headrace.journal.errors import ShardedDirectory
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.watermark import _REST, _SLOT, VERSION


def opened(path: Path) -> SegmentedLog:
    return SegmentedLog.open(path, LogSettings(), print)


def made(path: Path, shards: int = 3) -> Layout:
    """A directory whose shards all have journals."""
    layout = Layout.make(path, shards)
    for directory in layout.directories():
        opened(directory).close()
    return layout


def test_one_shard_is_the_data_directory_itself(tmp_path: Path) -> None:
    layout = Layout.make(tmp_path / "d", 1)
    assert not (tmp_path / "d").exists()
    opened(layout.directory(0)).close()
    assert Layout.open(tmp_path / "d") == layout == Layout(tmp_path / "d", 1)
    assert layout.directories() == [tmp_path / "d"]
    assert not is_new(tmp_path / "d")


def test_several_shards_are_data_directories_below_it(tmp_path: Path) -> None:
    layout = made(tmp_path / "d")
    again = Layout.open(tmp_path / "d")
    assert again == layout
    assert len(layout.node) == 32
    assert layout.directory(2) == tmp_path / "d/shard-2"
    assert (tmp_path / "d/shard-2/journal").is_dir()
    assert not is_new(tmp_path / "d")
    assert Layout.make(tmp_path / "e", 2).node != layout.node


def test_a_worker_that_is_started_later_takes_no_other_directory_for_its_own(tmp_path: Path) -> None:
    layout, other, single = made(tmp_path / "d"), made(tmp_path / "e"), Layout.make(tmp_path / "f", 1)
    opened(single.directory(0)).close()
    (tmp_path / "g").mkdir()  # where its disk was mounted
    assert Layout.of_node(layout.path, layout.shards, layout.node) == layout
    for path in (other.path, single.path, tmp_path / "g", tmp_path / "h"):
        with pytest.raises(
            UnusableLayout, match=f"data_dir: {path} does not hold the 3 shards of node {layout.node}"
        ):
            Layout.of_node(path, layout.shards, layout.node)
    assert not list((tmp_path / "g").iterdir())


@pytest.mark.parametrize("shard", [-1, 3])
def test_a_shard_that_is_not_there_has_no_directory(tmp_path: Path, shard: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        Layout(tmp_path, 3, "ab" * 16).directory(shard)


@pytest.mark.parametrize("shards", [0, -1, SHARDS_MAX + 1])
def test_a_number_of_shards_that_cannot_be_is_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(ConfigError, match=f"shards: {shards} is not in 1 to {SHARDS_MAX}"):
        Layout.make(tmp_path, shards)


def test_a_headrace_without_shards_refuses_the_directory_and_writes_no_journal(tmp_path: Path) -> None:
    """The code of before read the version of each slot, and refused what is newer than 1."""
    layout = made(tmp_path / "d", 2)
    with pytest.raises(ShardedDirectory, match="shard-0"):
        opened(layout.path)
    with pytest.raises(ShardedDirectory, match="shard-0"):
        JournalReader(layout.path).high_watermark()
    page = (layout.path / "watermark").read_bytes()
    for at in (0, 512):
        magic, _, rest = _SLOT.unpack(page[at : at + _SLOT.size])
        assert magic == b"HRWM"
        assert _REST.unpack(rest)[5] > VERSION == 1
    assert DISK.names(layout.path / "journal") == []
    assert Layout.open(layout.path) == layout  # what the attempt has left harms nobody


def test_shards_may_lie_on_disks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "d/shard-1/lost+found").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "d/shard-0").symlink_to(tmp_path / "other")
    layout = made(tmp_path / "d", 2)
    assert (tmp_path / "other/journal").is_dir()
    assert Layout.open(tmp_path / "d") == layout


def test_a_directory_with_a_journal_gets_no_shards(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(UnusableLayout, match="holds a journal already"):
        Layout.make(tmp_path, 2)
    with pytest.raises(UnusableLayout, match="holds a journal already"):
        Layout.make(made(tmp_path / "d").path, 3)


@pytest.mark.parametrize("lost", ["shards.json", "shard-0/shard.json", "shard-1"])
def test_what_was_interrupted_is_made_anew(tmp_path: Path, lost: str) -> None:
    first = Layout.make(tmp_path, 2)
    for name in ("shards.json", lost):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert is_new(tmp_path)
    assert Layout.open(tmp_path).shards == 1
    second = Layout.make(tmp_path, 2)
    assert second.node != first.node
    assert Layout.open(tmp_path) == second


def test_shards_with_data_that_nothing_counts_are_left_alone(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "shards.json").unlink()
    with pytest.raises(UnusableLayout, match=r"data_dir: .*shards\.json is missing.*backup"):
        Layout.open(tmp_path)
    with pytest.raises(UnusableLayout, match=r"shards\.json is not there: put that back"):
        Layout.make(tmp_path, 3)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shutil.rmtree(made(tmp_path).directory(1))
    with pytest.raises(UnusableLayout, match="shard-1 is missing, the data of shard 1 of 3: mount it"):
        Layout.open(tmp_path)


def test_a_disk_that_is_not_mounted_is_not_begun_anew(tmp_path: Path) -> None:
    shutil.rmtree(made(tmp_path).directory(1))
    (tmp_path / "shard-1").mkdir()
    with pytest.raises(UnusableLayout, match="is its disk mounted"):
        Layout.open(tmp_path)


def test_shards_that_changed_places_or_were_copied_are_refused(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "shard-0").rename(tmp_path / "aside")
    (tmp_path / "shard-1").rename(tmp_path / "shard-0")
    (tmp_path / "aside").rename(tmp_path / "shard-1")
    with pytest.raises(UnusableLayout, match="shard-0 is shard 1 of 3, and should be shard 0 of 3"):
        Layout.open(tmp_path)
    shutil.rmtree(tmp_path / "shard-0")
    shutil.copytree(tmp_path / "shard-1", tmp_path / "shard-0")
    with pytest.raises(UnusableLayout, match="shard-1 is shard 0 of 3"):
        Layout.open(tmp_path)


def test_a_shard_of_another_node_is_refused(tmp_path: Path) -> None:
    ours, other = made(tmp_path / "a"), made(tmp_path / "b")
    shutil.rmtree(ours.directory(2))
    shutil.copytree(other.directory(2), ours.directory(2))
    with pytest.raises(UnusableLayout, match=f"belongs to another node, {other.node}"):
        Layout.open(ours.path)


def test_more_shard_directories_than_shards_are_refused(tmp_path: Path) -> None:
    layout = made(tmp_path, 2)
    shutil.copytree(layout.directory(1), tmp_path / "shard-2")
    with pytest.raises(UnusableLayout, match="shard-2 is there"):
        Layout.open(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("shards.json", "", "damaged"),
        ("shards.json", "[]", "no object"),
        ("shards.json", "[" * 100_000, "damaged"),
        ("shards.json", b"\xff\xfe", "damaged"),
        ("shards.json", {"shards": 1}, "shards is 1"),
        ("shards.json", {"shards": True}, "shards is True"),
        ("shards.json", {"shards": "3"}, "shards is '3'"),
        ("shards.json", {"shards": SHARDS_MAX + 1}, "shards is"),
        ("shards.json", {"shards": 2}, "shard-2 is there|is shard 0 of 3"),
        ("shards.json", {"node": "../.."}, "node is"),
        ("shards.json", {"node": 3}, "node is 3"),
        ("shards.json", {"format": 2}, "format 2, this headrace reads up to 1"),
        ("shards.json", {"format": 0}, "format is 0"),
        ("shard-1/shard.json", {"shard": -1}, "shard is -1"),
        ("shard-1/shard.json", {"shard": None}, "shard is None"),
        ("shard-1/shard.json", {"shards": 4}, "is shard 1 of 4, and should be shard 1 of 3"),
        ("shard-1/shard.json", {"format": 9}, "a newer one wrote it"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: object, said: str) -> None:
    path = made(tmp_path).path / file
    if isinstance(text, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | text))
    else:
        path.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    with pytest.raises(UnusableLayout, match=said) as raised:
        Layout.open(tmp_path)
    assert str(raised.value).startswith("data_dir: ")
    assert path.name in str(raised.value) or "shard-" in str(raised.value)
