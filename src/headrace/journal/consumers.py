"""Positions of registered consumers: how far a reader in another process has got, which retention respects.

`<data-dir>/consumers/<name>`, 64 bytes or more, little endian, replaced atomically:

     0   4  magic "HRCO"
     4   4  crc32 of bytes 8-63
     8   2  version, 1
    10   2  zero
    12   4  epoch of the journal that the offset belongs to
    16  16  uuid of that journal
    32   8  offset: every record below it is processed
    40   8  time of the last commit, microseconds since 1970
    48   8  time of the registration
    56   4  lease in seconds: after so long without a commit nobody waits for it any more. 0: none, it counts until
            it is removed or reaches its limits
    60   4  zero
    64   4  crc32 of bytes 68 to the end, which are there only if it has an owner
    68   2  length of the owner, bytes
    70      owner, UTF-8

**Owner**: what the positions are of, as a job names it: a word that tells it from all others, and after a blank where it
is, for people. Only it may move the position: two jobs under one name would each take for read what only the other one
has. A consumer without an owner belongs to the first who comes. Readers of before do not look behind byte 63.

Whoever has a lease may hold a lock beside it, `.<name>.alive`, for as long as it lives (`Alive`). Then that says whether
it counts, at once and whatever the clock of the wall says, and the lease is for what cannot look at the lock.
"""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from time import time_ns
from uuid import UUID
from zlib import crc32

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import (
    ConsumerAtWork,
    ConsumerTaken,
    CorruptFile,
    UnknownConsumer,
    UnsupportedFormat,
)

DIRECTORY = "consumers"
VERSION = 1
_MAGIC = b"HRCO"
_FILE = Struct("<4sI56s")
_OWNER = Struct("<IH")
OWNER_BYTES_MAX = 1000
_REST = Struct("<H2xI16sQQQI4x")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """Every record below `offset`, in this journal and epoch, is processed by the consumer `name`."""

    name: str
    uuid: str
    epoch: int
    offset: int
    updated_us: int
    registered_us: int
    lease_s: int = 0
    owner: str = ""

    def has_expired(self, now_us: int) -> bool:
        """Return whether the consumer has a lease and let it run out: its process is gone."""
        return 0 < self.lease_s < (now_us - self.updated_us) / 1_000_000

    @staticmethod
    def register(
        data_dir: Path,
        name: str,
        uuid: str,
        epoch: int,
        offset: int,
        now_us: int = 0,
        disk: Disk = DISK,
        lease_s: int = 0,
        owner: str = "",
    ) -> ConsumerPosition:
        """Let retention wait for `name` from now on. A consumer that is registered keeps the position it has.

        Raises ValueError for a name that is no file name: letters, digits, `.`, `_`, `-`, at most 200.
        """
        path = _path(data_dir, name)
        try:
            return ConsumerPosition.read(data_dir, name, disk)
        except UnknownConsumer:
            now_us = now_us or _now_us()
        disk.make_directory(path.parent)
        position = ConsumerPosition(name, uuid, epoch, offset, now_us, now_us, lease_s, owner)
        disk.replace(path, position.pack())
        return position

    @staticmethod
    def read(data_dir: Path, name: str, disk: Disk = DISK) -> ConsumerPosition:
        """Read the position of a consumer. Raises UnknownConsumer, CorruptFile."""
        path = _path(data_dir, name)
        try:
            data = disk.read_file(path)
        except FileNotFoundError:
            raise UnknownConsumer(f"no consumer {name!r} is registered in {data_dir}") from None
        return _unpack(data, path)

    @staticmethod
    def commit(
        data_dir: Path, name: str, uuid: str, epoch: int, offset: int, now_us: int = 0, disk: Disk = DISK
    ) -> ConsumerPosition:
        """Move the position forward, durably; never back within an epoch. Raises UnknownConsumer.

        More than one process may commit: each file that appears is whole, and the later one wins.
        """
        current = ConsumerPosition.read(data_dir, name, disk)
        if (current.uuid, current.epoch) == (uuid, epoch) and offset <= current.offset:
            return current
        moved = replace(current, uuid=uuid, epoch=epoch, offset=offset, updated_us=now_us or _now_us())
        disk.replace(_path(data_dir, name), moved.pack())
        return moved

    @staticmethod
    def register_at(
        data_dir: Path, name: str, uuid: str, epoch: int, offset: int, disk: Disk = DISK, owner: str = ""
    ) -> ConsumerPosition:
        """Make retention wait for `name` at `offset` or below: a position ahead of it, or foreign, is replaced.

        Raises ConsumerTaken.
        """
        found = ConsumerPosition.register(data_dir, name, uuid, epoch, offset, disk=disk, owner=owner)
        found = found.owned_by(owner, data_dir, disk)
        if (found.uuid, found.epoch) == (uuid, epoch) and found.offset <= offset:
            return found
        ConsumerPosition.remove(data_dir, name, disk)
        return ConsumerPosition.register(data_dir, name, uuid, epoch, offset, disk=disk, owner=owner)

    @staticmethod
    def commit_or_register(
        data_dir: Path, name: str, uuid: str, epoch: int, offset: int, disk: Disk = DISK, owner: str = ""
    ) -> ConsumerPosition:
        """Do `commit`, for a consumer that may have been dropped meanwhile. Raises ConsumerTaken."""
        try:
            ConsumerPosition.read(data_dir, name, disk).owned_by(owner, data_dir, disk)
            return ConsumerPosition.commit(data_dir, name, uuid, epoch, offset, disk=disk)
        except UnknownConsumer:
            return ConsumerPosition.register(data_dir, name, uuid, epoch, offset, disk=disk, owner=owner)

    @staticmethod
    def hand_over(data_dir: Path, name: str, disk: Disk = DISK) -> ConsumerPosition:
        """Let the first who comes be its next owner; returns what it was. Raises UnknownConsumer."""
        found = ConsumerPosition.read(data_dir, name, disk)
        disk.replace(_path(data_dir, name), replace(found, owner="").pack())
        return found

    def owned_by(self, owner: str, data_dir: Path, disk: Disk = DISK) -> ConsumerPosition:
        """Return the same position, of that owner from now on. Raises ConsumerTaken if it has another one."""
        if self.owner and self.owner.partition(" ")[0] != owner.partition(" ")[0]:
            raise ConsumerTaken(self.name, self.owner, owner)
        if self.owner == owner:
            return self
        owned = replace(self, owner=owner)
        disk.replace(_path(data_dir, self.name), owned.pack())
        return owned

    @staticmethod
    def renew(data_dir: Path, name: str, disk: Disk = DISK) -> None:
        """Make the lease begin anew. Raises UnknownConsumer."""
        current = ConsumerPosition.read(data_dir, name, disk)
        disk.replace(_path(data_dir, name), replace(current, updated_us=_now_us()).pack())

    @staticmethod
    def remove(data_dir: Path, name: str, disk: Disk = DISK) -> None:
        """Remove a consumer: retention no longer waits for it. Raises UnknownConsumer."""
        try:
            disk.unlink(_path(data_dir, name))
        except FileNotFoundError:
            raise UnknownConsumer(f"no consumer {name!r} is registered in {data_dir}") from None
        disk.fsync_directory(data_dir / DIRECTORY)

    @staticmethod
    def drop(data_dir: Path, name: str, force: bool = False, disk: Disk = DISK) -> ConsumerPosition:
        """Remove a consumer on behalf of a person; returns what it was. Raises UnknownConsumer, and ConsumerAtWork,
        unless by force, where a process is known to read under this name: one with a lease."""
        found = ConsumerPosition.read(data_dir, name, disk)
        if not force and found.lease_s and found.counts(data_dir, disk):
            raise ConsumerAtWork(name)
        ConsumerPosition.remove(data_dir, name, disk)
        return found

    @staticmethod
    def list(data_dir: Path, disk: Disk = DISK) -> list[ConsumerPosition]:
        """Return all positions that count, by name: one with a lease does not when its process is gone. Raises
        CorruptFile."""
        found = []
        for name in ConsumerPosition.names(data_dir, disk):
            with suppress(UnknownConsumer):  # it was removed meanwhile
                found.append(ConsumerPosition.read(data_dir, name, disk))
        return [position for position in found if position.counts(data_dir, disk)]

    def counts(self, data_dir: Path, disk: Disk = DISK) -> bool:
        """Return whether anybody still waits for it."""
        if not self.lease_s:
            return True
        alive = is_alive(data_dir, self.name, disk)
        return not self.has_expired(_now_us()) if alive is None else alive

    @staticmethod
    def names(data_dir: Path, disk: Disk = DISK) -> builtins.list[str]:
        """Return the names of the files that should hold a position, sorted; what a crash left of writing one is none
        of them."""
        names = disk.names(data_dir / DIRECTORY)
        return [name for name in names if _NAME.fullmatch(name) and not name.endswith(".tmp")]

    def pack(self) -> bytes:
        uuid = UUID(self.uuid).bytes
        rest = _REST.pack(
            VERSION, self.epoch, uuid, self.offset, self.updated_us, self.registered_us, self.lease_s
        )
        return _FILE.pack(_MAGIC, crc32(rest), rest) + _pack_owner(self.owner)


class Alive:
    """Says that the process behind a position lives: a lock that the system takes away with the process."""

    def __init__(self, data_dir: Path, name: str, disk: Disk = DISK) -> None:
        """Take the lock, before the position is registered. Without locks in this file system the lease decides."""
        self._disk = disk
        self._path = _alive_path(data_dir, name)
        disk.make_directory(self._path.parent)
        self._fd = disk.create(self._path)
        try:
            if not disk.lock(self._fd):
                self.end()
        except OSError:
            self.end()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let go of the lock, after the position was removed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path)


def is_alive(data_dir: Path, name: str, disk: Disk = DISK) -> bool | None:
    """Return whether the process behind a position lives; None if there is no lock that tells."""
    try:
        fd = disk.open(_alive_path(data_dir, name))
    except OSError:
        return None
    try:
        return not disk.lock(fd)
    except OSError:
        return None
    finally:
        disk.close(fd)


def remove_dead(data_dir: Path, name: str, disk: Disk = DISK) -> None:
    """Remove what a process left that was killed: its position, and the lock behind that."""
    with suppress(UnknownConsumer):
        ConsumerPosition.remove(data_dir, name, disk)
    with suppress(FileNotFoundError):
        disk.unlink(_alive_path(data_dir, name))


def _alive_path(data_dir: Path, name: str) -> Path:
    return data_dir / DIRECTORY / f".{name}.alive"


def _unpack(data: bytes, path: Path) -> ConsumerPosition:
    if len(data) < _FILE.size or data[:4] != _MAGIC:
        raise CorruptFile(
            f"{path}: not a consumer position. Remove it: who reads under this name registers again"
        )
    _, crc, rest = _FILE.unpack_from(data)
    if crc32(rest) != crc:
        raise CorruptFile(
            f"{path}: the consumer position is damaged. Remove it: who reads under this name registers again"
        )
    version, epoch, uuid, offset, updated_us, registered_us, lease_s = _REST.unpack(rest)
    if version > VERSION:
        raise UnsupportedFormat(f"{path}: version {version}, this headrace reads up to {VERSION}")
    return ConsumerPosition(
        path.name,
        str(UUID(bytes=uuid)),
        epoch,
        offset,
        updated_us,
        registered_us,
        lease_s,
        _unpack_owner(data[_FILE.size :], path),
    )


def _pack_owner(owner: str) -> bytes:
    if not owner:
        return b""
    text = owner.encode()[:OWNER_BYTES_MAX]
    rest = len(text).to_bytes(2, "little") + text
    return crc32(rest).to_bytes(4, "little") + rest


def _unpack_owner(data: bytes, path: Path) -> str:
    if not data:
        return ""
    if len(data) < _OWNER.size or _OWNER.unpack_from(data) != (crc32(data[4:]), len(data) - _OWNER.size):
        raise CorruptFile(f"{path}: the owner of the consumer is damaged")
    return data[_OWNER.size :].decode("utf-8", "replace")


def check_name(name: str) -> str:
    """Return the name of a consumer, which is that of a file. Raises ValueError for one that no consumer can have."""
    if not _NAME.fullmatch(name) or name.endswith(".tmp"):
        raise ValueError(
            f"consumer {name[:200]!r}: only letters, digits, '.', '_' and '-', at most 200, first no '.'"
        )
    return name


def _path(data_dir: Path, name: str) -> Path:
    return data_dir / DIRECTORY / check_name(name)


def _now_us() -> int:
    return time_ns() // 1000
