"""Folders of a process below the one for temporary files, which another process removes when their owner was killed.

    headrace-<what>-<random>/.owner    locked by its owner for as long as that lives

The lock is that of the open file, so it ends with the process, however that ends, and no number of a process is compared
that another one may have by now. The file gets its name when it is locked: a folder without it is just being made, or is
not ours. Nothing that an owner starts has the open file.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import TracebackType
from typing import Final

_OURS: Final = "headrace-"
_OWNER: Final = ".owner"


class Scratch:
    """A folder that goes with the block, or with its process. Raises OSError where none can be made."""

    def __init__(self, what: str) -> None:
        self.path = Path(mkdtemp(prefix=f"{_OURS}{what}-"))
        self._lock = -1
        try:
            new = self.path / f"{_OWNER}.new"
            self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / _OWNER)
        except OSError:
            self.remove()
            raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and what is in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def folder_of_process(what: str) -> Path:
    """Return a new folder that goes with this process. Raises OSError."""
    made = Scratch(what)
    atexit.register(made.remove)
    return made.path


def sweep() -> None:
    """Remove the folders of this user whose owners are gone, as far as that can be done."""
    with suppress(OSError):
        for folder in Path(gettempdir()).glob(f"{_OURS}*/{_OWNER}"):
            with suppress(OSError):
                _sweep(folder.parent)


def _sweep(folder: Path) -> None:
    """Remove the folder if nobody holds it. Raises OSError."""
    about = folder.lstat()
    if about.st_uid != os.geteuid() or folder.is_symlink():
        return
    lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its owner lives
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
