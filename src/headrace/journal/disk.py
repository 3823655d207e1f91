"""The system calls of the journal, behind one class that tests replace by a simulated disk.

`Disk` is injected, never patched. Methods are the calls themselves, without policy; what is made out of
several calls (`write_fully`, `replace`) is built on those, so that a simulated disk need not repeat it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_native_id
from typing import Protocol

from headrace.journal.errors import SyncFailed
from headrace.ownership import make_directory, open_new

BUFFERS_MAX = 1024  # IOV_MAX of Linux
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Identity = tuple[int, int]  # device and inode: of one file, whatever it is called


class Mapped(Protocol):
    """The first bytes of a file, mapped shared: what is stored is at once visible to other processes."""

    def __setitem__(self, index: slice, data: bytes, /) -> None: ...
    def flush(self) -> object: ...
    def close(self) -> None: ...


class Disk:
    """The local file system."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, for whom that belongs in which they are made."""
        make_directory(path)

    def create(self, path: Path) -> int:
        """Create an empty file, for whom the directory belongs, and open it for reading and writing."""
        return open_new(path, os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o640)

    def open(self, path: Path, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def open_or_create(self, path: Path) -> int:
        """Open a file for reading and writing, keeping what is there; a new one is for whom the directory belongs."""
        return open_new(path, os.O_RDWR | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return os.pread(fd, length, position)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Sync a file. Raises SyncFailed."""
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def fsync_directory(self, path: Path) -> None:
        """Sync a directory. Raises SyncFailed if it was the sync that failed, OSError if the directory cannot be
        opened: try again."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def allocate(self, fd: int, position: int, length: int) -> None:
        """Reserve zeroed blocks. Without support of the file system the file just grows by writing."""
        try:
            os.posix_fallocate(fd, position, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def identity(self, path: Path) -> Identity | None:
        """Return which file has this name, None if none has. Raises OSError where that cannot be told."""
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno in _NOWHERE:
                return None
            raise
        return found.st_dev, found.st_ino

    def identity_of(self, fd: int) -> Identity:
        """Return which file is open."""
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def free_bytes(self, directory: Path) -> int:
        """Return how many bytes the file system would still give to this process."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def may_write(self, path: Path) -> bool:
        """Return whether this process may read and write a file; True for what is gone."""
        return os.access(path, os.R_OK | os.W_OK, effective_ids=True) or not os.path.lexists(path)

    def owner(self, path: Path) -> int:
        return os.stat(path).st_uid

    def map(self, fd: int, length: int) -> Mapped:
        return mmap.mmap(fd, length)

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of the file without waiting, and return whether it was free; the lock ends with the
        descriptor."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read_fully(self, fd: int, length: int, position: int) -> bytes:
        """Return `length` bytes, usually by one call; fewer at the end of the file alone."""
        data = self.pread(fd, length, position)
        while data and len(data) < length:
            more = self.pread(fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write_fully(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """Write all buffers, usually by one call; return the position after them."""
        for first in range(0, len(buffers), BUFFERS_MAX):
            part = buffers[first : first + BUFFERS_MAX]
            wanted = sum(map(len, part))
            written = self.pwritev(fd, part, position)
            while written < wanted:
                more = self.pwritev(fd, [b"".join(part)[written:]], position + written)
                if not more:
                    raise OSError(errno.EIO, "a write took nothing and gave no reason")
                written += more
            position += wanted
        return position

    def write_and_sync(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Do `write_fully`, then `fdatasync`. Raises SyncFailed if it was the latter that failed, else OSError."""
        self.write_fully(fd, buffers, position)
        try:
            self.fdatasync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def read_file(self, path: Path) -> bytes:
        """Read the whole of a small file. Raises FileNotFoundError."""
        fd = self.open(path)
        try:
            return self.read_fully(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def replace(self, path: Path, data: bytes) -> None:
        """Write a small file so that after a crash either the old or the new one is there, whole. Raises OSError, and
        leaves nothing of what could not be written."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_native_id()}.tmp")
        fd = self.create(temporary)
        try:
            try:
                self.write_fully(fd, [data], 0)
                self.fsync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except (OSError, MemoryError):
            with suppress(OSError):
                self.unlink(temporary)
            raise
        self.fsync_directory(path.parent)


DISK = Disk()
