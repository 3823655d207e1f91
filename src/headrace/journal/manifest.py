"""`manifest.json` of a backup: what it holds, and how large each file is. Without it a backup is not complete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePath
from uuid import UUID
from zlib import crc32

from headrace.journal.errors import CorruptFile, UnsupportedFormat

NAME = "manifest.json"
VERSION = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds. `files`: path below the backup -> [size, crc32]."""

    version: int
    uuid: str
    epoch: int
    start_offset: int
    high_watermark: int
    created_us: int
    files: dict[str, list[int]]

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
        raise UnsupportedFormat(f"{path}: version {found['version']}, this headrace reads up to {VERSION}")
    wrong = _wrong(found)
    if wrong:
        raise CorruptFile(f"{path}: not a complete backup ({wrong})")
    return Manifest(**found)


def _wrong(found: object) -> str:
    """Return why this is no manifest; "" if it is one."""
    names = [field.name for field in fields(Manifest)]
    if not isinstance(found, dict) or sorted(found) != sorted(names):
        return f"it is no object with {', '.join(names)}"
    for name in names:
        value = found[name]
        if name not in ("uuid", "files") and (type(value) is not int or value < 0):
            return f"{name} is {value!r}"
    if not _is_uuid(found["uuid"]):
        return f"uuid is {found['uuid']!r}"
    if found["start_offset"] > found["high_watermark"]:
        return "it ends before it begins"
    if not isinstance(found["files"], dict):
        return "files is no object"
    wrong = (name for name, entry in found["files"].items() if not _is_entry(name, entry))
    return next((f"files: {name!r}" for name in wrong), "")


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
