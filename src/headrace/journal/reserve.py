"""The reserve: space kept back, so that subscribers can drain when the disk is full (decision 22).

`<data-dir>/reserve` is preallocated blocks and no content. When a write finds no space, the file goes and the
journal lives on its blocks: what was handed over before is written, then the progress of subscribers and the
events of sessions, while publishers are held back. Space has returned once the reserve fits again.

It is made when a log is opened and found again at the next start. After that it belongs to the writer thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.journal.disk import Disk

NAME = "reserve"
SIZE_MIN = 256 << 10
SHARE_OF_DISK = 16  # on a small disk the reserve is no more than this part of what there is for a journal


class Reserve:
    """Space kept back on the disk. `size` 0: there is none, and the end of a full disk is found by trying to write."""

    def __init__(
        self, disk: Disk, data_dir: Path, size_max: int, kept_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        """Find the reserve, or say how large it is to be. `kept_bytes`: of the journal, which count like what is free:
        one that was given away is as large again after a start on the full disk; asked where there is none. Raises
        OSError."""
        self._disk = disk
        self._path = data_dir / NAME
        self.size, self.is_held = self._found(size_max)
        if not self.is_held:
            share = (disk.free_bytes(data_dir) + kept_bytes()) // SHARE_OF_DISK
            self.size = min(size_max, max(SIZE_MIN, share))

    def _found(self, size_max: int) -> tuple[int, bool]:
        """Return the size of the reserve of the last start and whether it is held, unless it is larger than what is
        wanted now."""
        try:
            fd = self._disk.open(self._path)
        except FileNotFoundError:
            return 0, False
        try:
            size = self._disk.size(fd)
        finally:
            self._disk.close(fd)
        if min(SIZE_MIN, size_max) <= size <= size_max and size:
            return size, True
        self._disk.unlink(self._path)
        return 0, False

    @property
    def wanted_bytes(self) -> int:
        """Return how many bytes must be free before a full disk counts as one with space again: with less it would soon
        be full anew."""
        return max(2 * self.size, SIZE_MIN)

    def hold(self) -> bool:
        """Take the space, if there is a quarter more than it takes: at the very edge a broker would be full and not
        full by turns."""
        if self.is_held or not self.size:
            return True
        try:
            self._allocate(self.size + self.size // 4)
        except OSError:
            return False
        self.is_held = True
        return True

    def _allocate(self, wanted: int) -> None:
        fd = self._disk.create(self._path)
        try:
            self._disk.allocate(fd, 0, wanted)
            self._disk.truncate(fd, self.size)
        except OSError:
            self._disk.unlink(self._path)
            raise
        finally:
            self._disk.close(fd)

    def release(self) -> bool:
        """Give the space to the journal. False if there is nothing to give, or it cannot be given now."""
        if not self.is_held:
            return False
        try:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path)
        except OSError:
            return False
        self.is_held = False
        return True
