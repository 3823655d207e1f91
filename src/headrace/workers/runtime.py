"""The runtime directory of a node: what its processes have between them, and nobody else may enter.

    config.toml      the configuration as it counts now, written by the supervisor
    counts, times, subscriptions, devices, kept
                     tables that all workers map (`services.node_table`)
    drain            whether the node is drained (`services.draining`)
    peer-<i>.sock, hand-<i>.sock, admin-<i>.sock
                     where worker i is reached

It goes with the supervisor; the workers of one that was killed remove it when they end. Where all were killed at once
the next supervisor on this machine does. What another program removes meanwhile, all of it or a file, its processes make
again within two seconds (`Runtime.keep`, `peers.reaching`): sockets are bound anew, links and connections stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

CONFIG: Final = "config.toml"
CONNECTIONS: Final = "counts"  # of connections, by listener and by user
TIMES: Final = "times"  # until when bans hold, and allowances are used up
SUBSCRIPTIONS: Final = "subscriptions"  # by user
DEVICES: Final = "devices"  # by user
KEPT: Final = "kept"  # retained messages, topic queues
TABLES: Final = (CONNECTIONS, TIMES, SUBSCRIPTIONS, DEVICES, KEPT)
_PREFIX: Final = "headrace-"
_CHARACTERS_MAX: Final = 80  # the address of a Unix socket has 108 bytes at most
_OURS: Final = re.compile(
    rf"config\.(toml|new)|drain(\.new)?|(peer|hand|admin)-[0-9]+\.sock|({'|'.join(TABLES)})(\.new-[0-9]+)?"
)


def make_runtime() -> Path:
    """Make the directory of the sockets between workers, which nobody else may enter. Raises OSError."""
    folder = tempfile.gettempdir()
    if len(folder) > _CHARACTERS_MAX - 20:
        folder = "/tmp"  # noqa: S108  the directory in it is ours alone
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))


def hold(folder: Path) -> int:
    """Keep a folder, which systemd-tmpfiles and other supervisors leave alone while somebody has locked it, however old.
    Returns the descriptor that holds it, for the workers too. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def identity(path: str | Path) -> tuple[int, int] | None:
    """Return which file is at a path, a link itself; None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Runtime:
    """The runtime directory as its supervisor keeps it. `held` is the descriptor that holds it, for the workers too."""

    def __init__(self, path: Path) -> None:
        """Keep a directory that `make_runtime` has made. Raises OSError."""
        self.path = path
        self.held = hold(path)

    @property
    def is_there(self) -> bool:
        """Return whether the directory is the one that is held, and nobody has removed it."""
        found = os.fstat(self.held)
        return identity(self.path) == (found.st_dev, found.st_ino)

    def missing(self, workers: Iterable[int], kinds: Iterable[str]) -> str:
        """Return what another program has removed of the directory, or of the sockets of these workers; "" if all is
        there."""
        if not self.is_there:
            return f"{self.path} was removed by another program"
        names = (f"{kind}-{worker}.sock" for worker in workers for kind in kinds)
        gone = next((name for name in names if identity(self.path / name) is None), "")
        return gone and f"{self.path / gone} was removed by another program"

    def keep(self) -> bool:
        """Make the directory again if another program has removed it, which is returned. Raises OSError, also where there
        is somebody else's now."""
        if self.is_there:
            return False
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise FileExistsError(errno.EEXIST, f"{self.path} is not ours")
        held, self.held = self.held, hold(self.path)
        os.close(held)
        return True

    def close(self) -> None:
        """Remove the directory, and hold it no more."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.held)


def write_config(runtime: Path, text: str) -> None:
    """Write the configuration as it counts now, with its passwords. One that is there already needs no room, where
    there may be none now. Raises OSError, which names the file: its disk is not that of the data."""
    file = runtime / CONFIG
    with suppress(OSError, UnicodeDecodeError):
        if file.read_text(encoding="utf-8") == text:
            return
    written = file.with_suffix(".new")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    except OSError as error:
        raise OSError(error.errno, f"{file}: {error.strerror}") from None


def remove_left_over(folder: Path) -> None:
    """Remove the runtime directories of supervisors that were killed with all of their workers: nobody holds them any
    more, and each has some MiB of tables in it."""
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _is_left_over(path):
                shutil.rmtree(path)


def _is_left_over(path: Path) -> bool:
    """Return whether a directory is ours, has what workers make there and nothing else, and nobody holds it. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found, names = os.fstat(descriptor), os.listdir(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return False
        if CONNECTIONS not in names or not all(_OURS.fullmatch(name) for name in names):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: held
        return True
    finally:
        os.close(descriptor)
