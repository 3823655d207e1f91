"""`manifest.json` of a backup: what it holds, who made it, how large each file is. Without it a backup is not complete.

Version 1 lacks `made_by` and `format`. Version 2 is that of a backup of several shards (`headrace.data.backup`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePath
from uuid import UUID
from zlib import crc32

from headrace import __version__
from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.watermark import STORES_VERSION

NAME = "manifest.json"
VERSION = 3
_ADDED = ("made_by", "format")  # by version 3
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds. `files`: path below the backup -> [size, crc32]. `made_by`: the headrace that made it, ""
    where nobody has said so; `format`: the version of the watermark file of its journal."""

    version: int
    uuid: str
    epoch: int
    start_offset: int
    high_watermark: int
    created_us: int
    files: dict[str, list[int]]
    made_by: str = ""
    format: int = 1

    def pack(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    def check(self, source: Path) -> None:
        """Read every file. Raises CorruptFile if one is not what was backed up."""
        for name, expected in self.files.items():
            try:
                found = checksum(source / name)
            except FileNotFoundError:
                raise CorruptFile(f"{source / name}: missing from the backup") from None
            if found != expected:
                raise CorruptFile(
                    f"{source / name}: not the file that was backed up (size, crc32 {found}, not {expected})"
                )


def read_manifest(source: Path) -> Manifest:
    """Read the manifest of a backup. Raises CorruptFile if there is no manifest or it makes no sense, UnsupportedFormat
    if it is newer."""
    path = source / NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CorruptFile(f"{path}: not a complete backup: there is no such file") from None
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path}: not a complete backup ({error})") from None
    if isinstance(found, dict) and isinstance(found.get("version"), int) and found["version"] > VERSION:
        raise UnsupportedFormat(newer(path, found["version"], VERSION, found.get("made_by")))
    wrong = _wrong(found)
    if wrong:
        raise CorruptFile(f"{path}: not a complete backup ({wrong})")
    manifest = Manifest(**found)
    if manifest.format > STORES_VERSION:
        raise UnsupportedFormat(
            newer(path, f"journal format {manifest.format}", STORES_VERSION, manifest.made_by)
        )
    return manifest


def newer(path: Path, found: object, known: int, made_by: object) -> str:
    """Return what is said of a backup that is newer than this headrace. `made_by`: as the backup says it, if it does."""
    by = f", made by headrace {made_by}" if isinstance(made_by, str) and made_by else ""
    what = f"version {found}" if isinstance(found, int) else found
    return (
        f"{path}: the backup is newer: {what}{by}; this headrace, {__version__}, reads up to {known}. Restore it with "
        "the version that made it, or a newer one"
    )


def _wrong(found: object) -> str:
    """Return why this is no manifest; "" if it is one."""
    if not isinstance(found, dict) or found.get("version") not in (1, VERSION):
        return f"version is {found.get('version')!r}" if isinstance(found, dict) else "it is no object"
    old = found["version"] == 1
    names = [field.name for field in fields(Manifest) if not old or field.name not in _ADDED]
    if sorted(found) != sorted(names):
        return f"it is no object with {', '.join(names)}"
    wrong = next((name for name in names if not _is_value(name, found[name])), "")
    if wrong:
        return f"{wrong} is {found[wrong]!r}"
    if found["start_offset"] > found["high_watermark"]:
        return "it ends before it begins"
    entries = found["files"].items()
    return next((f"files: {name!r}" for name, entry in entries if not _is_entry(name, entry)), "")


def _is_value(name: str, value: object) -> bool:
    """Return whether a field may have this value."""
    match name:
        case "uuid":
            return _is_uuid(value)
        case "files":
            return isinstance(value, dict)
        case "made_by":
            return isinstance(value, str)
        case _:
            return type(value) is int and value >= 0


def _is_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False


def _is_entry(name: str, entry: object) -> bool:
    """Return whether this is a path that stays below the backup, with two numbers."""
    path = PurePath(name)
    below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return below and isinstance(entry, list) and [type(number) for number in entry] == [int, int]


def checksums(target: Path) -> dict[str, list[int]]:
    """Return the checksums of all files below `target`."""
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): checksum(path) for path in paths}


def checksum(path: Path) -> list[int]:
    """Return [size, crc32] of a file. Raises FileNotFoundError."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc = crc32(chunk, crc)
    return [size, crc]
