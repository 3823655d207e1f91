"""Snapshots: files with the broker's state at an offset, as entries that only the broker understands.

`<data-dir>/journal/<position, 20 digits>.snapshot` is a full one, version 1; `....changes`, version 2, holds what changed
since the file before it, its parent. Little endian:

    header | entry | entry | ... | trailer

Header, 64 bytes:

     0   4  magic "HRSN"
     4   4  crc32 of bytes 8-63
     8   2  version, 1 or 2
    10   6  zero
    16   8  position: records from this offset on must be applied after loading
    24   8  time of creation, microseconds since 1970
    32   8  version 2: position of the parent, else zero
    40  24  zero

Entry: u32 length (below 0xFFFFFFFF), u32 crc32 of the length and the bytes, the bytes.

Trailer, 32 bytes:

     0   4  FF FF FF FF
     4   4  crc32 of bytes 8-31
     8   8  count of entries
    16   8  applied offset: no entry reflects a record at or above it. Entries of a fuzzy snapshot may be
    newer
            than the position; if the journal is cut back below this, the snapshot must go
    24   8  zero

The file is written under a temporary name, synced and renamed. Two full ones are kept, because the newest may be
damaged, and the changes behind the newest. A start loads the newest full one that is whole and the changes behind it as
far as they are whole: `newest_chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from time import time_ns
from zlib import crc32

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.segment import base_offset_of, file_name

SUFFIX = ".snapshot"
CHANGES_SUFFIX = ".changes"
VERSION = 2
_FULL_VERSION = 1
KEPT = 2
_MAGIC = b"HRSN"
_HEADER = Struct("<4sI56s")
_HEADER_REST = Struct("<H6xQQQ24x")
_LENGTH = Struct("<I")
_ENTRY = Struct("<II")
_TRAILER = Struct("<II24s")
_TRAILER_REST = Struct("<QQ8x")
_TRAILER_MARK = 0xFFFF_FFFF
_CHUNK_BYTES = 1 << 20
_MOVES_MAX = 5  # times in a row that the newest one goes before it is read


class SnapshotWriter:
    """Collects entries; the snapshot exists once `commit` returned. `add` writes to the page cache in chunks;
    `commit` syncs, so a caller on the loop hands it to another thread. One thread at a time."""

    def __init__(self, directory: Path, position: int, disk: Disk = DISK, parent: int | None = None) -> None:
        """Begin a snapshot at `position`. `parent`: position of the file whose changes these are; None for a full
        snapshot."""
        self.position = position
        self.parent = parent
        self.entries = 0
        self.size = 0
        self._directory = directory
        self._disk = disk
        self._path = directory / file_name(position, SUFFIX if parent is None else CHANGES_SUFFIX)
        self._temporary = directory / f"{self._path.name}.tmp"
        self._fd = disk.create(self._temporary)
        version = _FULL_VERSION if parent is None else VERSION
        rest = _HEADER_REST.pack(version, position, time_ns() // 1000, parent or 0)
        self._pending = [_HEADER.pack(_MAGIC, crc32(rest), rest)]
        self._pending_bytes = _HEADER.size

    def add(self, entry: bytes) -> None:
        length = _LENGTH.pack(len(entry))
        self._pending.append(_ENTRY.pack(len(entry), crc32(entry, crc32(length))) + entry)
        self._pending_bytes += _ENTRY.size + len(entry)
        self.entries += 1
        if self._pending_bytes >= _CHUNK_BYTES:
            self._write()

    def commit(self, applied_offset: int | None = None) -> Path:
        """Make the snapshot durable; after a full one all snapshots but the newest two go, and all changes.

        `applied_offset`: the end of what any entry reflects, if that is more than the position."""
        applied = self.position if applied_offset is None else max(applied_offset, self.position)
        rest = _TRAILER_REST.pack(self.entries, applied)
        self._pending.append(_TRAILER.pack(_TRAILER_MARK, crc32(rest), rest))
        self._write()
        self._disk.fsync(self._fd)
        self._close()
        self._disk.rename(self._temporary, self._path)
        self._disk.fsync_directory(self._directory)
        if self.parent is None:
            self._remove_older()
        return self._path

    def _remove_older(self) -> None:
        for position in positions(self._directory, self._disk)[:-KEPT]:
            self._disk.unlink(self._directory / file_name(position, SUFFIX))
        for position in positions(self._directory, self._disk, CHANGES_SUFFIX):
            self._disk.unlink(self._directory / file_name(position, CHANGES_SUFFIX))

    def abandon(self) -> None:
        """Abandon the snapshot, instead of `commit` or after one that failed."""
        self._close()
        with suppress(FileNotFoundError):
            self._disk.unlink(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def _write(self) -> None:
        self.size = self._disk.write_fully(self._fd, self._pending, self.size)
        self._pending = []
        self._pending_bytes = 0


class SnapshotFile:
    """A snapshot that passed all its checks when it was opened."""

    def __init__(self, path: Path, disk: Disk = DISK, whole: bool = True) -> None:
        """Read a snapshot through; its header alone if not `whole`. Raises CorruptFile, UnsupportedFormat."""
        self.path = path
        self._disk = disk
        self.position, self.created_us, self.parent = self._read_header()
        self.entry_count = 0
        self.applied_offset = self.position
        self.size = 0
        if whole:
            for _ in self._read():
                pass

    def entries(self) -> Iterator[bytes]:
        """Yield the entries in the order in which they were added."""
        return self._read()

    def _read_header(self) -> tuple[int, int, int | None]:
        fd = self._disk.open(self.path)
        try:
            data = self._disk.read_fully(fd, _HEADER.size, 0)
        finally:
            self._disk.close(fd)
        if len(data) < _HEADER.size or data[:4] != _MAGIC:
            raise CorruptFile(f"{self.path}: not a snapshot")
        _, crc, rest = _HEADER.unpack(data)
        if crc32(rest) != crc:
            raise CorruptFile(f"{self.path}: the header is damaged")
        version, position, created_us, parent = _HEADER_REST.unpack(rest)
        if version > VERSION:
            raise UnsupportedFormat(f"{self.path}: version {version}, this headrace reads up to {VERSION}")
        return position, created_us, parent if version > _FULL_VERSION else None

    def _read(self) -> Iterator[bytes]:
        fd = self._disk.open(self.path)
        try:
            yield from self._entries_in(_Input(self._disk, fd, _HEADER.size))
        finally:
            self._disk.close(fd)

    def _entries_in(self, source: _Input) -> Iterator[bytes]:
        count = 0
        while True:
            head = source.take(_ENTRY.size)
            if len(head) < _ENTRY.size:
                raise CorruptFile(f"{self.path}: ends without a trailer")
            length, crc = _ENTRY.unpack(head)
            if length == _TRAILER_MARK:
                break
            entry = source.take(length)
            if len(entry) < length or crc32(entry, crc32(head[:4])) != crc:
                raise CorruptFile(f"{self.path}: entry {count} is damaged")
            count += 1
            yield entry
        self._take_trailer(source.take(_TRAILER_REST.size), crc, count)
        self.size = source.position

    def _take_trailer(self, rest: bytes, crc: int, count: int) -> None:
        if len(rest) < _TRAILER_REST.size or crc32(rest) != crc or _TRAILER_REST.unpack(rest)[0] != count:
            raise CorruptFile(f"{self.path}: the trailer is damaged")
        self.entry_count, self.applied_offset = _TRAILER_REST.unpack(rest)


class _Input:
    """Reads a file front to back in chunks."""

    def __init__(self, disk: Disk, fd: int, position: int) -> None:
        self.position = position
        self._disk = disk
        self._fd = fd
        self._data = b""
        self._at = 0

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes; less at the end of the file."""
        if len(self._data) - self._at < length:
            wanted = max(length, _CHUNK_BYTES)
            self._data = self._disk.read_fully(self._fd, wanted, self.position)
            self._at = 0
        data = self._data[self._at : self._at + length]
        self._at += len(data)
        self.position += len(data)
        return data


def positions(directory: Path, disk: Disk = DISK, suffix: str = SUFFIX) -> list[int]:
    """Return the positions of the full snapshots there are, or of the changes, ascending; not checked."""
    found = (base_offset_of(name, suffix) for name in disk.names(directory))
    return sorted(position for position in found if position is not None)


def first_entries(directory: Path, disk: Disk = DISK) -> Iterator[bytes]:
    """Yield the entries of the newest full snapshot as they are read, as far as they are whole: whoever wants the first
    ones reads no more of it. Raises FileNotFoundError if they are removed again and again as fast as they are found."""
    for attempt in range(1, _MOVES_MAX + 1):
        try:
            found = _begun(directory, disk)
            entries = iter(()) if found is None else found.entries()
            first = next(entries, None)
        except FileNotFoundError:  # a newer one took its place meanwhile
            if attempt == _MOVES_MAX:
                raise
            continue
        except CorruptFile:
            return
        if first is not None:
            yield first
            with suppress(CorruptFile):
                yield from entries
        return


def _begun(directory: Path, disk: Disk) -> SnapshotFile | None:
    """Return the newest full snapshot that begins as one."""
    for position in reversed(positions(directory, disk)):
        with suppress(CorruptFile):
            return SnapshotFile(directory / file_name(position, SUFFIX), disk, whole=False)
    return None


def newest_snapshot(
    directory: Path, report: Callable[[str], None] | None = None, disk: Disk = DISK
) -> SnapshotFile | None:
    """Return the newest full snapshot that is whole; damaged ones are skipped, and reported."""
    for position in reversed(positions(directory, disk)):
        try:
            return SnapshotFile(directory / file_name(position, SUFFIX), disk)
        except FileNotFoundError:
            continue  # a newer one took its place meanwhile
        except CorruptFile as error:
            if report:
                report(f"skipped a damaged snapshot: {error}")
    return None


def newest_chain(
    directory: Path, report: Callable[[str], None] | None = None, disk: Disk = DISK
) -> list[SnapshotFile]:
    """Return the newest full snapshot that is whole and the changes behind it, in order, as far as they are; [] without
    any."""
    full = newest_snapshot(directory, report, disk)
    if full is None:
        return []
    chain = [full]
    for position in positions(directory, disk, CHANGES_SUFFIX):
        try:
            found = SnapshotFile(directory / file_name(position, CHANGES_SUFFIX), disk)
        except FileNotFoundError:
            break  # a full one took its place meanwhile
        except CorruptFile as error:
            if report:
                report(f"skipped damaged changes, and those behind them: {error}")
            break
        if found.parent == chain[-1].position:
            chain.append(found)
    return chain


def discard_beyond(
    directory: Path, end_offset: int, report: Callable[[str], None], disk: Disk = DISK
) -> None:
    """Remove snapshots that reflect records which a cut took away. Reads only their ends."""
    for suffix in (SUFFIX, CHANGES_SUFFIX):
        for position in positions(directory, disk, suffix):
            path = directory / file_name(position, suffix)
            reaches = max(position, _applied_offset(disk, path))
            if reaches > end_offset:
                disk.unlink(path)
                report(
                    f"removed {path.name}: it reflects records up to {reaches}, but {end_offset} is the end now"
                )


def _applied_offset(disk: Disk, path: Path) -> int:
    """Return what the trailer says; 0 if it is damaged, since then nobody will load the snapshot."""
    fd = disk.open(path)
    try:
        data = disk.read_fully(fd, _TRAILER.size, max(0, disk.size(fd) - _TRAILER.size))
    finally:
        disk.close(fd)
    if len(data) < _TRAILER.size:
        return 0
    mark, crc, rest = _TRAILER.unpack(data)
    return int(_TRAILER_REST.unpack(rest)[1]) if mark == _TRAILER_MARK and crc32(rest) == crc else 0
