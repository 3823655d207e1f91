"""A disk in memory that can lose power, run full and fail to sync.

It keeps for every file what the page cache holds and what the medium holds. `crash` keeps an arbitrary part of what
was not synced: any subset of the dirty sectors, and the first few of the pending changes of a directory.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

from headrace.journal.disk import Disk

SECTOR = 512
WANT_OF_MEMORY = -1  # MemoryError in the place of an OSError


class PowerCut(BaseException):
    """Nothing is executed after this."""


class _File:
    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        if end > len(self.cached):
            self.cached.extend(bytes(end - len(self.cached)))
        self.cached[position:end] = data
        self.dirty.update(range(position // SECTOR, (end + SECTOR - 1) // SECTOR))

    def resize(self, size: int) -> None:
        """Cut off, or filled up with zeros."""
        shorter, longer = sorted((size, len(self.cached)))
        del self.cached[size:]
        self.cached.extend(bytes(size - len(self.cached)))
        self.dirty.update(range(shorter // SECTOR, (longer + SECTOR - 1) // SECTOR))

    def sync(self) -> None:
        """What is dirty goes to the medium, and only that."""
        size = len(self.cached)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for sector in self.dirty:
            part = slice(sector * SECTOR, min((sector + 1) * SECTOR, size))
            if part.start < part.stop:
                self.durable[part] = self.cached[part]
        self.dirty.clear()

    def fail_sync(self) -> None:
        """As Linux does: the pages count as clean afterwards, but the medium never got them."""
        self.dirty.clear()

    def crash(self, rng: Random) -> None:
        """The size is metadata and may be the old or the new one; each dirty sector stays or goes."""
        size = rng.choice((len(self.durable), len(self.cached)))
        kept = bytearray(self.durable[:size].ljust(size, b"\0"))
        for sector in self.dirty:
            start, end = sector * SECTOR, min((sector + 1) * SECTOR, size, len(self.cached))
            if start < end and rng.random() < 0.5:
                kept[start:end] = self.cached[start:end]
        self.cached = kept
        self.durable = bytearray(kept)
        self.dirty.clear()


class _Mapped:
    def __init__(self, file: _File) -> None:
        self._file = file

    def __setitem__(self, index: slice, data: bytes) -> None:
        self._file.write(data, index.start)

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        pass


class SimulatedDisk(Disk):
    """`cut_after` counts changing calls down to the power cut; `failures` maps a call's name to an errno, or to
    WANT_OF_MEMORY."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.cut_after = -1
        self.failures: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._pending: list[tuple[Path, _File | None]] = []
        self._open: dict[int, _File] = {}
        self._locked: set[int] = set()
        self._next_fd = 1000

    def crash(self) -> None:
        """Power comes back: what was synced is there, and an arbitrary part of the rest."""
        for path, file in self._pending[: self.rng.randint(0, len(self._pending))]:
            self._rename_durably(path, file)
        self._pending.clear()
        self._names = dict(self._durable_names)
        for file in set(self._names.values()):
            file.crash(self.rng)
        self._open.clear()
        self._locked.clear()
        self.cut_after = -1
        self.failures.clear()

    def lose_clean_pages(self) -> None:
        """The page cache is dropped: what a failed sync left in it is gone."""
        for file in set(self._names.values()):
            file.cached = bytearray(file.durable)

    def kill(self) -> None:
        """The process is gone, the page cache stays."""
        self._open.clear()
        self._locked.clear()
        self.cut_after = -1
        self.failures.clear()

    def content(self, path: Path) -> bytearray:
        """What is in the page cache, to be damaged."""
        return self._names[path].cached

    def _step(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        if self.cut_after == 0:
            raise PowerCut
        self.cut_after -= 1
        if call in self.failures:
            code = self.failures[call]
            if code == WANT_OF_MEMORY:
                raise MemoryError
            raise OSError(code, errno.errorcode[code])

    def _sync(self, call: str, fd: int) -> None:
        try:
            self._step(call)
        except OSError:
            self._open[fd].fail_sync()
            raise
        self._open[fd].sync()

    def _rename_durably(self, path: Path, file: _File | None) -> None:
        if file is None:
            self._durable_names.pop(path, None)
        else:
            self._durable_names[path] = file

    def _opened(self, file: _File) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = file
        return self._next_fd

    def make_directory(self, path: Path) -> None:
        pass

    def create(self, path: Path) -> int:
        self._step("create")
        file = self._names[path] = _File()
        self._pending.append((path, file))
        return self._opened(file)

    def open_or_create(self, path: Path) -> int:
        return self._opened(self._names[path]) if path in self._names else self.create(path)

    def open(self, path: Path, write: bool = False) -> int:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._opened(self._names[path])

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        self._locked.discard(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._open[fd].cached[position : position + length])

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        data = b"".join(buffers)
        try:
            self._step("pwritev")
        except PowerCut:
            self._open[fd].write(data[: self.rng.randint(0, len(data))], position)
            raise
        self._open[fd].write(data, position)
        return len(data)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fsync_directory(self, path: Path) -> None:
        self._step("fsync_directory")
        for changed, file in self._pending:
            if changed.parent == path:
                self._rename_durably(changed, file)
        self._pending = [change for change in self._pending if change[0].parent != path]

    def allocate(self, fd: int, position: int, length: int) -> None:
        self._step("allocate")
        file = self._open[fd]
        file.resize(max(position + length, len(file.cached)))

    def truncate(self, fd: int, length: int) -> None:
        self._step("truncate")
        self._open[fd].resize(length)

    def size(self, fd: int) -> int:
        return len(self._open[fd].cached)

    def identity(self, path: Path) -> tuple[int, int] | None:
        return (0, id(self._names[path])) if path in self._names else None

    def identity_of(self, fd: int) -> tuple[int, int]:
        return 0, id(self._open[fd])

    def free_bytes(self, directory: Path) -> int:
        return 1 << 30

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        file = self._names.pop(source)
        self._names[target] = file
        self._pending += [(target, file), (source, None)]

    def unlink(self, path: Path) -> None:
        if path not in self._names:
            raise FileNotFoundError(path)
        self._step("unlink")
        del self._names[path]
        self._pending.append((path, None))

    def may_write(self, path: Path) -> bool:
        return True

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._names if path.parent == directory)

    def map(self, fd: int, length: int) -> _Mapped:
        return _Mapped(self._open[fd])

    def lock(self, fd: int) -> bool:
        if any(self._open[other] is self._open[fd] for other in self._locked):
            return False
        self._locked.add(fd)
        return True
