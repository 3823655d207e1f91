"""Whose a new file is. What root makes in a directory of somebody else is theirs: a command that is run as root beside a
service must leave nothing that the service cannot open.

Only what this process has just made is given away, never what was there under its name: a directory that another user
may write can hold a link to anything.
"""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from contextlib import suppress
from errno import EPERM
from pathlib import Path


def open_new(path: Path, flags: int, mode: int) -> int:
    """Open a file, which is made if it is not there: one that root makes belongs to whom its directory belongs, and in
    the directory of another user root follows no link: what it leads to is written for that user. Returns the
    descriptor. Raises OSError."""
    if os.geteuid():
        return os.open(path, flags | os.O_CREAT, mode)
    while True:
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        except FileExistsError:
            with suppress(FileNotFoundError):  # it has gone meanwhile
                return _open_there(path, flags, mode)
            continue
        try:
            give(fd, path.parent)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open_there(path: Path, flags: int, mode: int) -> int:
    """Open a file that is there for root: in the directory of another user only if it is theirs, or has no other name.
    Raises OSError."""
    user = path.parent.stat().st_uid
    if not user:
        return os.open(path, flags | os.O_CREAT, mode)
    fd = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid != user and found.st_nlink > 1:
            raise PermissionError(EPERM, "a link that root does not follow", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def give(fd: int, directory: Path) -> None:
    """Give an open file or directory to whom `directory` belongs, if that is another user than root, who calls. Raises
    OSError."""
    found = directory.stat()
    if found.st_uid and not os.geteuid():
        os.fchown(fd, found.st_uid, found.st_gid)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory, and those above it that are missing; `mode` is of the directory itself. Those that root makes
    belong to whom the one above belongs, and so does a directory that is there and that root has left in somebody
    else's. Raises OSError."""
    if os.geteuid():
        path.mkdir(mode, parents=True, exist_ok=True)
        return
    missing = [one for one in (path, *path.absolute().parents) if not one.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for made in reversed(missing or [path]):
        give_directory(made)


def give_directory(path: Path) -> None:
    """Give a directory of root's to whom the one belongs in which it lies. Raises OSError."""
    if path.is_symlink():
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not os.fstat(fd).st_uid:
            give(fd, path.absolute().parent)
    finally:
        os.close(fd)


def share_secret(fd: int, directory: Path) -> None:
    """Let a service read a new file of secrets in a directory: what root makes belongs to whom the directory belongs,
    or in a directory of root's that has the group of the service, as `/etc/headrace` has, that group may read it.
    Nobody else may. Raises OSError."""
    found = directory.stat()
    if os.geteuid():
        return
    if found.st_uid:
        os.fchown(fd, found.st_uid, found.st_gid)
    elif found.st_gid:
        os.fchown(fd, -1, found.st_gid)
        os.fchmod(fd, 0o640)


def replace_secret(path: Path, text: str) -> None:
    """Replace a file of secrets as a whole, synced: one that is there keeps its owner and mode, a new one is for its
    owner alone, and the service. What stands under that name is never written to, so that a link in a directory of
    another user leads nowhere; a device or a pipe is not replaced. Raises OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            try:
                _become_like(out.fileno(), path.stat())
            except FileNotFoundError:
                share_secret(out.fileno(), path.parent)
            os.fsync(out.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        raise


def _become_like(fd: int, old: os.stat_result) -> None:
    """Give a file the owner and the mode of the old one, the owner first: giving a file away takes bits of its mode."""
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o777)


def is_roots_alone(path: Path) -> bool:
    """Return whether a file can be read by root and nobody else. Raises OSError."""
    found = path.stat()
    readable = found.st_mode & 0o004 or (found.st_gid and found.st_mode & 0o040)
    return found.st_uid == 0 and not readable


def hidden_from(user: int, group: int, path: Path) -> Path | None:
    """Return what keeps a user, of this group and those that the system knows, from reading a file: the file, or a
    directory above it; None if the user may, as far as modes say. Raises OSError."""
    groups = {group}
    with suppress(KeyError):
        entry = pwd.getpwuid(user)
        groups |= set(os.getgrouplist(entry.pw_name, entry.pw_gid))
    real = Path(os.path.realpath(path))
    for one, wanted in (*((above, 0o1) for above in reversed(real.parents)), (real, 0o4)):
        found = one.stat()
        shift = 6 if found.st_uid == user else 3 if found.st_gid in groups else 0
        if not found.st_mode >> shift & wanted:
            return one
    return None
