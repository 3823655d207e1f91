"""Backup and restore of a data directory of several shards.

A backup holds `shards.json` and, below `shard-<n>`, a backup of each shard as that of one shard is, up to an end that
fits those of the others (`positions`). Its own `manifest.json` is written last: version 2, which a headrace that knows of
no shards refuses.

    {"version": 2, "shards": [{"uuid", "epoch", "high_watermark"}, ...], "created_us"}

Restore makes all shards or none: it builds them in `<data-dir>/restore.tmp` and moves them up, `shards.json` last,
without which no broker starts. Shards of different backups do not fit each other and are refused.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from time import time_ns
from typing import Final

import msgspec

from headrace import __version__
from headrace.data import building
from headrace.data.building import built
from headrace.data.layout import NAME as SHARDS
from headrace.data.layout import SHARD_NAME, Layout
from headrace.data.positions import Positions, consistent_ends
from headrace.journal.backup import Copying, Hold, complete, emptied
from headrace.journal.copying import Likeness
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.lock import NAME as LOCK
from headrace.journal.manifest import NAME as MANIFEST
from headrace.journal.manifest import Manifest, newer, read_manifest
from headrace.journal.reader import JournalReader
from headrace.journal.restore import MAKING, restore
from headrace.journal.watermark import NAME as WATERMARK

VERSION: Final = 2


class ShardEnd(msgspec.Struct, frozen=True):
    """What a backup has of one shard."""

    uuid: str
    epoch: int
    high_watermark: int


class ShardsManifest(msgspec.Struct, frozen=True):
    """What a backup of several shards holds."""

    version: int
    shards: list[ShardEnd]
    created_us: int
    made_by: str = ""


def backup_shards(layout: Layout, target: Path, disk: Disk = DISK) -> list[Manifest]:
    """Copy all shards to `target`, a directory that is empty or not there yet; a broker may be running. All that was
    acknowledged when it began is in it. Raises what `backup` of one shard does; `target` is as it was then."""
    directories = layout.directories()
    readers = [JournalReader(directory, disk) for directory in directories]
    likeness = Likeness.of(directories[0])
    with emptied(target) as is_new_target, ExitStack() as holding:
        holds = [
            holding.enter_context(Hold(directory, reader, disk))
            for directory, reader in zip(directories, readers, strict=True)
        ]
        copying = []
        for directory, reader, hold in zip(directories, readers, holds, strict=True):
            below = target / directory.name
            disk.make_directory(below)
            copying.append(Copying(directory, below, reader, hold, disk))
            copying[-1].snapshots()
        made = []
        for one, end in zip(copying, _ends(readers, disk), strict=True):
            for hold in holds:
                hold.renew()
            made.append(complete(one.target, one.records(end), likeness, disk))
            disk.replace(one.target / SHARD_NAME, (one.data_dir / SHARD_NAME).read_bytes())
        disk.replace(target / SHARDS, (layout.path / SHARDS).read_bytes())
        _finish(target, made, likeness, disk)
        if is_new_target:
            target.chmod(likeness.directory_mode)
        disk.fsync_directory(target.absolute().parent)
    return made


def _ends(readers: list[JournalReader], disk: Disk) -> list[int]:
    """Return up to where each shard is copied: once every high watermark has been read, so that each is as far as the
    notes of the others, or is cut to fit."""
    ends = [reader.high_watermark() for reader in readers]
    found = [Positions.read(reader, end, disk) for reader, end in zip(readers, ends, strict=True)]
    return consistent_ends(found, ends)


def _finish(target: Path, made: list[Manifest], likeness: Likeness, disk: Disk) -> None:
    shards = [ShardEnd(each.uuid, each.epoch, each.high_watermark) for each in made]
    text = msgspec.json.encode(ShardsManifest(VERSION, shards, time_ns() // 1000, __version__))
    for path in (target / SHARDS, *(target / f"shard-{shard}" / SHARD_NAME for shard in range(len(made)))):
        path.chmod(likeness.file_mode)
    disk.replace(target / MANIFEST, msgspec.json.format(text, indent=1) + b"\n")
    (target / MANIFEST).chmod(likeness.file_mode)


def holds_shards(source: Path) -> bool:
    """Return whether a backup is one of several shards."""
    return (source / SHARDS).exists()


def read_shards_manifest(source: Path) -> ShardsManifest:
    """Read what a backup of several shards holds, checked against its shards. Raises CorruptFile, UnsupportedFormat."""
    path = source / MANIFEST
    try:
        text = path.read_bytes()
        about = json.loads(text)
        version = about["version"]
        if type(version) is int and version > VERSION:
            raise UnsupportedFormat(newer(path, version, VERSION, about.get("made_by")))
        found = msgspec.json.decode(text, type=ShardsManifest)
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise CorruptFile(f"{path}: not a complete backup ({error})") from None
    if found.version != VERSION or len(found.shards) != Layout.open(source).shards:
        raise CorruptFile(f"{path}: not a complete backup of the shards that {source / SHARDS} names")
    for shard, expected in enumerate(found.shards):
        one = read_manifest(source / f"shard-{shard}")
        if ShardEnd(one.uuid, one.epoch, one.high_watermark) != expected:
            raise CorruptFile(
                f"{source / f'shard-{shard}'} is of another backup than the rest: its journal {one.uuid} ends at "
                f"{one.high_watermark}, and {path} says {expected.uuid} and {expected.high_watermark}. Shards of two "
                "backups do not fit each other; take all of them from one"
            )
    return found


def restore_shards(source: Path, data_dir: Path, disk: Disk = DISK) -> list[Manifest]:
    """Make `data_dir`, which is empty or not there yet, from a backup of several shards; the epoch of each rises. Raises
    CorruptFile, JournalLocked, FileExistsError, and what `restore` of one shard does."""
    manifest = read_shards_manifest(source)
    likeness = Likeness.of(source / "shard-0")
    with built(data_dir, MAKING, likeness, data_dir, disk) as making:
        made = [
            restore(source / f"shard-{shard}", making / f"shard-{shard}", disk=disk)
            for shard in range(len(manifest.shards))
        ]
        _lay_out(making, len(made), disk)
    return made


def is_interrupted(data_dir: Path) -> bool:
    """Return whether a restore of shards into it was begun and did not get as far as `shards.json`."""
    return building.is_interrupted(data_dir, MAKING)


def _lay_out(making: Path, shards: int, disk: Disk) -> None:
    """Give shards that were restored a layout of their own."""
    layout = Layout.make(making / "layout", shards, disk)
    for directory in layout.directories():
        disk.rename(directory / SHARD_NAME, making / directory.name / SHARD_NAME)
        (making / directory.name / LOCK).unlink(missing_ok=True)
    for name in (WATERMARK, SHARDS):
        disk.rename(layout.path / name, making / name)
    shutil.rmtree(layout.path)
