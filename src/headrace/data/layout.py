"""Where the shards of a data directory lie on disk, and that they belong together (ADR 0019).

One shard: the data directory itself, `D`, is the shard. Several: each is a directory below it, a whole data directory
with a lock, a journal and consumers of its own, and may be a mount point or a symbolic link.

    D/lock                 held by the one supervisor, or by the one worker
    D/watermark            no high watermark, but what makes a headrace that knows of no shards refuse the directory
    D/shards.json          {"format": 1, "shards": S, "node": NODE}, written last, so without it nothing was begun
    D/shard-<n>/shard.json {"format": 1, "shards": S, "node": NODE, "shard": n}, n = 0 ... S-1

NODE is the UUID of the directory, 32 hexadecimal digits. A shard directory that is missing, was copied from another one,
changed its place with one, or belongs to another node is refused: each client would find another one's session in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from headrace.errors import ConfigError
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import ShardedDirectory
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import read_slots, sharded_page

NAME = "shards.json"
SHARD_NAME = "shard.json"
FORMAT = 1
SHARDS_MAX = 1024
_OF_ONE_SHARD = ("journal", WATERMARK, "restore.tmp")
_PASSED_OVER = {"lost+found", SHARD_NAME}  # what a shard directory may hold before it is made one
_NODE = re.compile(r"[0-9a-f]{32}")
_DIRECTORY = re.compile(r"shard-(0|[1-9][0-9]*)")


class UnusableLayout(ConfigError):
    """The shards of a data directory are not what they should be; the message names `data_dir` and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(f"data_dir: {message}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A data directory with its shards. `node`: its UUID in 32 hexadecimal digits, "" where there is one shard."""

    path: Path
    shards: int
    node: str = ""

    def directory(self, shard: int) -> Path:
        """Return the data directory of a shard. Raises ValueError if there is no such shard."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"shard {shard} of {self.shards}")
        return self.path / f"shard-{shard}" if self.shards > 1 else self.path

    def directories(self) -> list[Path]:
        """Return the data directories of all shards, in their order."""
        return [self.directory(shard) for shard in range(self.shards)]

    @classmethod
    def open(cls, path: Path, disk: Disk = DISK) -> Layout:
        """Return the layout of a data directory; one shard where nothing says that there are more. Reads only. Raises
        UnusableLayout, OSError."""
        names = disk.names(path)
        if NAME not in names:
            _check_single(path, names, disk)
            return cls(path, 1)
        found = _read(path / NAME, disk)
        layout = cls(path, found.shards, found.node)
        for shard in range(layout.shards):
            _check_shard(layout, shard, disk)
        _check_others(layout, names)
        return layout

    @classmethod
    def of_node(cls, path: Path, shards: int, node: str) -> Layout:
        """Return the layout of a directory that was opened before, by whoever has started this worker: what is there
        now may be another one, or nothing. Reads only. Raises UnusableLayout, OSError."""
        layout = cls.open(path)
        if (layout.shards, layout.node) != (shards, node):
            raise UnusableLayout(
                f"{path} does not hold the {shards} shards of node {node} any more, with which this node was started: "
                "was it moved, or its disk unmounted? Put it back, or stop the node and start it where its data is"
            )
        return layout

    @classmethod
    def make(cls, path: Path, shards: int, disk: Disk = DISK) -> Layout:
        """Make a data directory of so many shards, each still without a journal, out of one that is empty or not there.
        One that was interrupted is made anew. With one shard nothing is written. Raises UnusableLayout, OSError."""
        _check_number(shards)
        _check_empty(path, disk)
        if shards == 1:
            return cls(path, 1)
        layout = cls(path, shards, uuid4().hex)
        disk.make_directory(path)
        disk.replace(path / WATERMARK, sharded_page(bytes.fromhex(layout.node)))
        for shard in range(shards):
            directory = layout.directory(shard)
            disk.make_directory(directory)
            disk.replace(directory / SHARD_NAME, _packed(layout, shard))
        disk.replace(path / NAME, _packed(layout))
        return layout


def check_is_whole(path: Path, disk: Disk = DISK) -> None:
    """Refuse a directory that is one shard of several: most clients are at home in the others, which follow its journal
    and count on being followed. Raises UnusableLayout, OSError."""
    names = disk.names(path)
    if SHARD_NAME in names and NAME not in names:
        raise UnusableLayout(
            f"{path} is one shard of several, which serve together: name the directory of all, {path.absolute().parent}"
        )


def is_shard(name: str) -> bool:
    """Return whether this is the name of the directory of a shard."""
    return _DIRECTORY.fullmatch(name) is not None


def is_new(path: Path, disk: Disk = DISK) -> bool:
    """Return whether nothing was begun in a data directory, so that it may still get any number of shards."""
    names = disk.names(path)
    if NAME in names:
        return False
    return _has_marker(path, disk) or not any(_begun(path / name, disk) for name in _OF_ONE_SHARD)


def _begun(path: Path, disk: Disk) -> bool:
    """Return whether this is there; a folder without anything in it was left by a start that failed."""
    return bool(disk.names(path)) if path.is_dir() else path.exists()


def _has_marker(path: Path, disk: Disk) -> bool:
    """Return whether the directory says that its journals lie in directories below it."""
    try:
        read_slots(disk, path)
    except ShardedDirectory:
        return True
    except Exception:  # noqa: BLE001  whoever opens the journal says what is wrong with it
        return False
    return False


def _packed(layout: Layout, shard: int | None = None) -> bytes:
    said: dict[str, object] = {"format": FORMAT, "shards": layout.shards, "node": layout.node}
    if shard is not None:
        said["shard"] = shard
    return json.dumps(said).encode() + b"\n"


def _check_number(shards: int) -> None:
    if not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(f"shards: {shards} is not in 1 to {SHARDS_MAX}")


def _check_empty(path: Path, disk: Disk) -> None:
    """Refuse what holds data already. Raises UnusableLayout."""
    if not is_new(path, disk):
        raise UnusableLayout(f"{path} holds a journal already; shards are made in a directory without one")
    for name in disk.names(path):
        others = set(disk.names(path / name)) - _PASSED_OVER if _DIRECTORY.fullmatch(name) else set()
        if others:
            raise UnusableLayout(
                f"{path / name} holds {sorted(others)[0]}, and {path / NAME} is not there: put that back from a backup, "
                "or take the directory away if it is of no use"
            )


def _check_single(path: Path, names: list[str], disk: Disk) -> None:
    """Refuse a directory of several shards that does not say how many. Raises UnusableLayout."""
    if _has_marker(path, disk) and any(_holds_data(path / name, disk) for name in names):
        raise UnusableLayout(
            f"{path / NAME} is missing, and says how many shards there are: put it back from a backup"
        )


def _holds_data(path: Path, disk: Disk) -> bool:
    return bool(_DIRECTORY.fullmatch(path.name)) and bool(set(disk.names(path)) - _PASSED_OVER)


def _check_shard(layout: Layout, shard: int, disk: Disk) -> None:
    """Refuse a directory that is not this shard of this node. Raises UnusableLayout."""
    directory = layout.directory(shard)
    if not directory.is_dir():
        raise UnusableLayout(
            f"{directory} is missing, the data of shard {shard} of {layout.shards}: mount it, or restore all shards "
            "from one backup"
        )
    if SHARD_NAME not in disk.names(directory):
        raise UnusableLayout(
            f"{directory / SHARD_NAME} is missing, so nothing says which shard this is: is its disk mounted? "
            "Otherwise restore all shards from one backup"
        )
    found = _read(directory / SHARD_NAME, disk)
    if found.node != layout.node:
        raise UnusableLayout(
            f"{directory} belongs to another node, {found.node}, and not to {layout.node}: put back the directory "
            "that was made here"
        )
    if found.shard != shard or found.shards != layout.shards:
        raise UnusableLayout(
            f"{directory} is shard {found.shard} of {found.shards}, and should be shard {shard} of "
            f"{layout.shards}: directories were copied or changed places; put each back where it was"
        )


def _check_others(layout: Layout, names: list[str]) -> None:
    for name in names:
        match = _DIRECTORY.fullmatch(name)
        if match and int(match.group(1)) >= layout.shards:
            raise UnusableLayout(
                f"{layout.path / name} is there, and {layout.path / NAME} says that there are {layout.shards} shards: "
                "put that file back as it was, or take the directory away"
            )


@dataclass(frozen=True, slots=True)
class _Said:
    """What one of the files says. `shard`: -1 in `shards.json`."""

    shards: int
    node: str
    shard: int


def _read(path: Path, disk: Disk) -> _Said:
    """Read what such a file says, checked. Raises UnusableLayout, OSError."""
    try:
        found = json.loads(disk.read_file(path))
    except (ValueError, RecursionError) as error:
        raise UnusableLayout(f"{path} is damaged ({error}): put it back from a backup") from None
    if not isinstance(found, dict):
        raise UnusableLayout(f"{path} is damaged (it is no object): put it back from a backup")
    newer = found.get("format")
    if type(newer) is int and newer > FORMAT:
        raise UnusableLayout(
            f"{path}: format {newer}, this headrace reads up to {FORMAT}: a newer one wrote it"
        )
    wrong = _wrong(found, path.name == SHARD_NAME)
    if wrong:
        raise UnusableLayout(f"{path} is damaged ({wrong}): put it back from a backup")
    return _Said(found["shards"], found["node"], found.get("shard", -1))


def _wrong(found: dict[str, object], of_shard: bool) -> str:
    """Return which value makes no sense; "" if all do."""
    shards, node, shard = found.get("shards"), found.get("node"), found.get("shard")
    if found.get("format") != FORMAT:
        return f"format is {found.get('format')!r}"
    if type(shards) is not int or not 2 <= shards <= SHARDS_MAX:
        return f"shards is {shards!r}"
    if not isinstance(node, str) or not _NODE.fullmatch(node):
        return f"node is {node!r}"
    if of_shard and (type(shard) is not int or shard < 0):
        return f"shard is {shard!r}"
    return ""
