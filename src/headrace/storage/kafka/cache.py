"""What this machine keeps of a journal in Kafka, to read from and to begin with: confirmed batches alone, never synced.

`<base offset, 20 digits>.cache`, a stretch of the journal. Little endian:

     0   4  magic "HRKC"
     4   4  crc32 of bytes 8-63
     8   2  version, 1
    10   6  zero
    16  16  uuid of the journal
    32  16  the machine's boot (`/proc/sys/kernel/random/boot_id`) in which the file was written
    48   8  base offset: the offset of the first record
    56   1  1: the cache begins with this file, 0: with an older one
    57   7  zero

and then entries, one a batch:

     0   4  magic D7 "HRC"
     4   4  crc32 of bytes 8-143, seeded with crc32(uuid)
     8   8  Kafka offset behind the last record of the batch
    16   8  epoch of its owner: the Kafka offset of the OWNED, signed
    24  16  and its random bits
    40   2  length of what follows at 48
    42   6  zero
    48  96  how that record begins (`log_fold.Standing`)
   144      the batch as a segment file holds it

What the system has not written is lost with the power, and not with the process: so files of another boot are thrown
away, and of this one all but the last entry is whole. Whether the newest entry still stands in the partition is the
owner's to find out. Nothing here is needed: where something is missing or damaged, everything is read from Kafka once
more. So the header of the oldest file is overwritten when that shows, for whoever opens the cache next.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID, uuid4
from zlib import crc32

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalError, OffsetOutOfRange
from headrace.journal.index import OffsetIndex
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    Batch,
    base_offset_of,
    batch_range_at,
    batch_size_at,
    file_name,
    seed_of,
    unpack_batch,
)
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.log_fold import Standing

DIRECTORY: Final = "kafka-cache"
SUFFIX: Final = ".cache"
VERSION: Final = 1
FILE_BYTES: Final = 64 << 20
INDEX_BYTES: Final = 64 << 10
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FILE_MAGIC: Final = b"HRKC"
_MAGIC: Final = b"\xd7HRC"
_FILE: Final = Struct("<4sI56s")
_FILE_REST: Final = Struct("<H6x16s16sQ?7x")
_ENTRY: Final = Struct("<4sI136s")
_ENTRY_REST: Final = Struct("<qq16sH6x96s")
FILE_HEADER_SIZE: Final = _FILE.size
ENTRY_HEADER_SIZE: Final = _ENTRY.size


class CacheDamaged(JournalError):
    """A batch of the cache does not pass its checks, or is gone. Kafka has it, and whoever opens the shard next reads it
    from there."""

    retry_helps = True


@dataclass(slots=True)
class _File:
    """One file: the batches from `base_offset` up to `end_offset`, in `size` bytes."""

    path: Path
    base_offset: int
    end_offset: int
    size: int = FILE_HEADER_SIZE
    is_first: bool = False
    index: OffsetIndex = field(default_factory=OffsetIndex)
    indexed_to: int = 0

    def note(self, base_offset: int, end_offset: int, size: int) -> None:
        """Note a batch that lies at the end now, with its entry of `size` bytes."""
        if not len(self.index) or self.size - self.indexed_to >= INDEX_BYTES:
            self.index.add(base_offset, self.size)
            self.indexed_to = self.size
        self.size += size
        self.end_offset = end_offset


class Cache:
    """The batches of one journal that lie here, without a gap. `standing` is where a fold stands behind the newest of
    them, None if there is none."""

    def __init__(self, directory: Path, uuid: bytes, disk: Disk = DISK, boot: bytes | None = None) -> None:
        """Open the cache of the journal with these 16 bytes as its name; throw away what cannot be used.
        Raises OSError."""
        self.directory = directory
        self._uuid = uuid
        self._seed = seed_of(uuid)
        self._disk = disk
        self._boot = boot_id() if boot is None else boot
        self._files: list[_File] = []
        self._fd = -1  # of the newest file, for writing
        self.standing: Standing | None = None
        disk.make_directory(directory)
        if not self._open():
            self.clear()

    @property
    def start_offset(self) -> int:
        """Return the offset of the oldest record that is here; 0 if there is none."""
        return self._files[0].base_offset if self._files else 0

    @property
    def next_offset(self) -> int:
        """Return the offset behind the newest record that is here; 0 if there is none."""
        return self._files[-1].end_offset if self._files else 0

    # Opening

    def _open(self) -> bool:
        """Read what there is. Returns False where it is of no use."""
        names = [
            name for name in self._disk.names(self.directory) if base_offset_of(name, SUFFIX) is not None
        ]
        for name in names:
            file = self._opened(self.directory / name)
            if file is None or not self._goes_on(file):
                return False
            if file.end_offset > file.base_offset:
                self._files.append(file)
            else:  # the process ended before its first entry was written
                self._disk.unlink(file.path)
        if self._files:
            self._fd = self._disk.open(self._files[-1].path, write=True)
            self._disk.truncate(self._fd, self._files[-1].size)
        return True

    def _goes_on(self, file: _File) -> bool:
        """Return whether nothing is missing before a file: somebody may have removed old ones."""
        return file.base_offset == self.next_offset if self._files else file.is_first

    def _opened(self, path: Path) -> _File | None:
        fd = self._disk.open(path)
        try:
            file = self._file_of(path, self._disk.read_fully(fd, FILE_HEADER_SIZE, 0))
            if file is not None:
                self._walk(fd, file)
            return file
        finally:
            self._disk.close(fd)

    def _file_of(self, path: Path, header: bytes) -> _File | None:
        """Return what a file header says; None if the file is of no use."""
        if len(header) < FILE_HEADER_SIZE:
            return None
        magic, crc, rest = _FILE.unpack(header)
        if magic != _FILE_MAGIC or crc32(rest) != crc:
            return None
        version, uuid, boot, base_offset, is_first = _FILE_REST.unpack(rest)
        if (version, uuid, boot) != (VERSION, self._uuid, self._boot):
            return None
        if path.name != file_name(base_offset, SUFFIX):
            return None
        return _File(path, base_offset, base_offset, is_first=is_first)

    def _walk(self, fd: int, file: _File) -> None:
        """Find the entries of a file, up to the first that is not whole."""
        end = self._disk.size(fd)
        while True:
            head = self._disk.read_fully(fd, ENTRY_HEADER_SIZE + BATCH_HEADER_SIZE, file.size)
            standing = self._standing_in(head)
            size = ENTRY_HEADER_SIZE + batch_size_at(head, ENTRY_HEADER_SIZE)
            if standing is None or size == ENTRY_HEADER_SIZE or file.size + size > end:
                return
            if file.size + size == end:  # the last one, which may be there in part
                data = self._disk.read_fully(fd, size, file.size)
                if unpack_batch(data, ENTRY_HEADER_SIZE, self._seed) is None:
                    return
            base_offset, end_offset = batch_range_at(head, ENTRY_HEADER_SIZE)
            if base_offset != file.end_offset:
                return
            file.note(base_offset, end_offset, size)
            self.standing = standing._replace(next_offset=end_offset)

    def _standing_in(self, head: bytes) -> Standing | None:
        """Return where a fold stands behind an entry, but for the next offset, which is 0; None if it does not pass."""
        if len(head) < ENTRY_HEADER_SIZE + BATCH_HEADER_SIZE:
            return None
        magic, crc, rest = _ENTRY.unpack_from(head)
        if magic != _MAGIC or crc32(rest, self._seed) != crc:
            return None
        tail, offset, bits, length, last = _ENTRY_REST.unpack(rest)
        return Standing(tail, Epoch(offset, bits), 0, last[:length])

    # Writing

    def append(self, data: bytes, standing: Standing) -> None:
        """Add a batch behind the newest one, or the first one. `standing` is where a fold stands behind it. Raises
        OSError, and then it is not here."""
        base_offset, end_offset = batch_range_at(data, 0)
        if self._files and base_offset != self.next_offset:
            raise ValueError(f"records from {base_offset} on, and {self.next_offset} comes next")
        if not self._files or self._files[-1].size >= FILE_BYTES:
            self._begin(base_offset)
        file = self._files[-1]
        rest = _ENTRY_REST.pack(
            standing.tail, standing.owner.offset, standing.owner.bits, len(standing.last), standing.last
        )
        head = _ENTRY.pack(_MAGIC, crc32(rest, self._seed), rest)
        self._disk.write_fully(self._fd, [head, data], file.size)
        file.note(base_offset, end_offset, ENTRY_HEADER_SIZE + len(data))
        self.standing = standing

    def _begin(self, base_offset: int) -> None:
        file = _File(self.directory / file_name(base_offset, SUFFIX), base_offset, base_offset)
        file.is_first = not self._files
        fd = self._disk.create(file.path)
        try:
            self._write_header(fd, file)
        except OSError:
            self._disk.close(fd)
            raise
        self._let_go()
        self._fd = fd
        self._files.append(file)

    def _write_header(self, fd: int, file: _File) -> None:
        rest = _FILE_REST.pack(VERSION, self._uuid, self._boot, file.base_offset, file.is_first)
        self._disk.write_fully(fd, [_FILE.pack(_FILE_MAGIC, crc32(rest), rest)], 0)

    def clear(self) -> None:
        """Throw everything away. Raises OSError."""
        self._let_go()
        self._files = []
        self.standing = None
        for name in self._disk.names(self.directory):
            if name.endswith(SUFFIX):
                self._disk.unlink(self.directory / name)

    def drop_below(self, offset: int) -> None:
        """Remove the files that hold nothing from `offset` on; the newest stays. Raises OSError."""
        while len(self._files) > 1 and self._files[0].end_offset <= offset:
            self._make_first(self._files[1])
            self._disk.unlink(self._files[0].path)
            del self._files[0]

    def _make_first(self, file: _File) -> None:
        """Note in a file that nothing is missing if nothing is before it."""
        file.is_first = True
        fd = self._disk.open(file.path, write=True)
        try:
            self._write_header(fd, file)
        finally:
            self._disk.close(fd)

    def close(self) -> None:
        """Give up the open file."""
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    # Reading

    def bytes_from(self, offset: int) -> int:
        """Return about how many bytes there are from `offset` on."""
        found = 0
        for file in self._files:
            if file.end_offset > offset:
                share = (file.end_offset - max(offset, file.base_offset)) / (
                    file.end_offset - file.base_offset
                )
                found += int(file.size * share)
        return found

    def read_batch(self, offset: int) -> Batch:
        """Return the batch that holds `offset`. Raises OffsetOutOfRange, CacheDamaged, OSError."""
        found = next(self.scan(offset, offset + 1), None)
        if found is None:
            raise self._damaged(self.directory, 0, f"no batch holds offset {offset}")
        return found

    def scan(self, start: int, end: int | None = None) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` up to `end` (default: the newest). The first may begin
        before `start` and the last end after `end`. Raises OffsetOutOfRange, CacheDamaged, OSError."""
        until = self.next_offset if end is None else min(end, self.next_offset)
        if not self.start_offset <= start <= self.next_offset or (end is not None and start >= until):
            raise OffsetOutOfRange(start, self.start_offset, self.next_offset)
        at = max(0, bisect.bisect_right([file.base_offset for file in self._files], start) - 1)
        for file in self._files[at:]:
            if file.base_offset >= until:
                return
            yield from self._batches_in(file, start, until)

    def _batches_in(self, file: _File, start: int, until: int) -> Iterator[Batch]:
        """Yield the batches of a file that hold offsets from `start` up to `until`."""
        _, position, _ = file.index.span(max(start, file.base_offset), file.size)
        try:
            fd = self._disk.open(file.path)
        except FileNotFoundError as error:
            raise self._damaged(file.path, 0, "it is gone") from error
        try:
            following = file.base_offset
            while position < file.size and following < until:
                head = self._disk.read_fully(fd, ENTRY_HEADER_SIZE + BATCH_HEADER_SIZE, position)
                size = batch_size_at(head, ENTRY_HEADER_SIZE)
                if not size:
                    raise self._damaged(file.path, position, "no batch begins there")
                following = batch_range_at(head, ENTRY_HEADER_SIZE)[1]
                if following > start:
                    data = self._disk.read_fully(fd, size, position + ENTRY_HEADER_SIZE)
                    batch = unpack_batch(data, 0, self._seed)
                    if batch is None:
                        raise self._damaged(file.path, position, "a batch does not pass its checks")
                    yield batch
                position += ENTRY_HEADER_SIZE + size
        finally:
            self._disk.close(fd)

    def _damaged(self, path: Path, position: int, what: str) -> CacheDamaged:
        """Have whoever opens the cache next throw it away; return the error that says why. The files serve as they are
        until then."""
        with suppress(OSError):
            fd = self._disk.open(self._files[0].path, write=True)
            try:
                self._disk.write_fully(fd, [bytes(FILE_HEADER_SIZE)], 0)
            finally:
                self._disk.close(fd)
        return CacheDamaged(f"{path}, byte {position}: {what}")


def boot_id() -> bytes:
    """Return 16 bytes that name the machine's boot; other ones at each call where the system has no name for it, so that
    a cache counts for this run alone."""
    try:
        return UUID(BOOT.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return uuid4().bytes
