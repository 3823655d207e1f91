"""The Python side of `scripted_calls.c`: which call of a running broker fails, where and how, and how often it was made.

A `Plan` is a file of memory shared with the broker it is preloaded into: counts are read and faults are chosen at any
time, without a system call of the broker's own.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

CALLS = (
    *("open", "read", "pread", "write", "pwrite", "pwritev", "fdatasync", "fsync", "fallocate", "ftruncate"),
    *("rename", "unlink", "mmap", "msync", "opendir", "stat", "fstat", "statvfs", "flock", "accept", "recv"),
    *("send", "socket", "setsockopt", "getpeername", "epoll_ctl", "epoll_wait", "eventfd", "malloc"),
)
KINDS = ("data", "sockets", "loop", "memory")
SHORT = -1
_HEAD = struct.Struct("=iiiiqqq256s")
_SIZE = _HEAD.size + 8 * len(CALLS) * len(KINDS)

# What the manual pages let each call fail with; "short" moves a part of the bytes.
_PASSING = (errno.EINTR,)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_RECEIVING = (errno.ECONNRESET, errno.ENOMEM, SHORT, *_PASSING)
_SENDING = (errno.EPIPE, errno.ENOBUFS, errno.ENOMEM, SHORT, *_PASSING)
ERRORS: dict[tuple[str, str], tuple[int, ...]] = {
    ("open", "data"): (*_NO_DESCRIPTOR, errno.EIO, errno.ENOSPC, *_PASSING),
    ("read", "data"): (errno.EIO, errno.ENOMEM, SHORT, *_PASSING),
    ("pread", "data"): (errno.EIO, errno.ENOMEM, SHORT, *_PASSING),
    ("write", "data"): (errno.EIO, errno.ENOSPC, SHORT, *_PASSING),
    ("pwrite", "data"): (errno.EIO, errno.ENOSPC, SHORT, *_PASSING),
    ("pwritev", "data"): (errno.EIO, errno.ENOSPC, errno.ENOMEM, SHORT, *_PASSING),
    ("fdatasync", "data"): (errno.EIO, errno.ENOSPC, *_PASSING),
    ("fsync", "data"): (errno.EIO, errno.ENOSPC, *_PASSING),
    ("fallocate", "data"): (errno.ENOSPC, errno.EIO, *_PASSING),
    ("ftruncate", "data"): (errno.EIO, *_PASSING),
    ("rename", "data"): (errno.EIO, errno.ENOSPC, errno.ENOMEM),
    ("unlink", "data"): (errno.EIO, errno.ENOMEM),
    ("mmap", "data"): (errno.ENOMEM, errno.ENFILE),
    ("msync", "data"): (errno.EIO,),
    ("opendir", "data"): (*_NO_DESCRIPTOR, errno.EIO),
    ("stat", "data"): (errno.EIO, errno.ENOMEM),
    ("fstat", "data"): (errno.EIO, errno.ENOMEM),
    ("statvfs", "data"): (errno.EIO, errno.ENOMEM),
    ("flock", "data"): (errno.ENOLCK, *_PASSING),
    ("accept", "sockets"): (*_NO_DESCRIPTOR, errno.ENOBUFS, errno.ECONNABORTED, *_PASSING),
    ("recv", "sockets"): _RECEIVING,
    ("send", "sockets"): _SENDING,
    ("read", "sockets"): _RECEIVING,  # the interpreted build uses sockets as files
    ("write", "sockets"): _SENDING,
    ("fstat", "sockets"): (errno.EIO, errno.ENOMEM),
    ("socket", "sockets"): _NO_DESCRIPTOR,
    ("setsockopt", "sockets"): (errno.EINVAL, errno.ENOBUFS),
    ("getpeername", "sockets"): (errno.ENOTCONN, errno.ENOBUFS),
    ("epoll_ctl", "loop"): (errno.ENOMEM, errno.ENOSPC),
    ("epoll_wait", "loop"): _PASSING,
    ("read", "loop"): (errno.EAGAIN, *_PASSING),
    (
        "write",
        "loop",
    ): _PASSING,  # EAGAIN says that the eventfd is full, and so that who waits for it will be woken
    ("mmap", "memory"): (errno.ENOMEM,),
    ("malloc", "memory"): (errno.ENOMEM,),
}


class Fault(NamedTuple):
    """The call number `place` (from 1) of this name and kind fails with `error`, and `times` - 1 more after it."""

    call: str
    kind: str
    place: int
    error: int
    times: int = 1

    def __str__(self) -> str:
        how = "short" if self.error == SHORT else errno.errorcode[self.error]
        return f"{self.call}/{self.kind}#{self.place}{f'x{self.times}' if self.times > 1 else ''}={how}"


def parse_fault(text: str) -> Fault:
    """A `Fault` from what `str` of one gives. Raises ValueError."""
    where, _, how = text.partition("=")
    name, _, place = where.partition("#")
    call, _, kind = name.partition("/")
    at, _, times = place.partition("x")
    error = SHORT if how == "short" else getattr(errno, how, 0)
    if call not in CALLS or kind not in KINDS or not at.isdecimal() or not error:
        raise ValueError(f"{text!r} is not CALL/KIND#PLACE[xTIMES]=ERROR")
    return Fault(call, kind, int(at), error, int(times or 1))


def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Raises FileNotFoundError where there is no C compiler."""
    source, target = Path(__file__).with_name("scripted_calls.c"), folder / "scripted_calls.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"]
        subprocess.run(command, check=True)
    return target


class Plan:
    """Memory shared with one broker over all its lives, whose files lie below `root`."""

    def __init__(self, library: Path, file: Path, root: Path) -> None:
        file.write_bytes(bytes(_SIZE))
        fd = os.open(file, os.O_RDWR)
        try:
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAULT_PLAN": str(file),
            "FAULT_ROOT": str(root),
            "UV_USE_IO_URING": "0",  # what goes around the C library goes around the faults
        }
        self.disarm()

    def close(self) -> None:
        self._memory.close()

    def count(self, *kinds: str) -> None:
        """From now on calls of these kinds are counted, and fail when they are due."""
        self._memory[0:4] = struct.pack("=i", sum(1 << KINDS.index(kind) for kind in kinds))

    def arm(self, fault: Fault) -> None:
        call, kind = CALLS.index(fault.call), KINDS.index(fault.kind)
        self._memory[4:32] = struct.pack("=iiiqq", call, kind, fault.error, fault.place, fault.times)

    def disarm(self) -> None:
        self._memory[4:8] = struct.pack("=i", -1)

    @property
    def failed(self) -> int:
        """How many calls were failed."""
        return int(_HEAD.unpack_from(self._memory)[6])

    @property
    def where(self) -> str:
        """The path or the socket that the first of them was about."""
        name: bytes = _HEAD.unpack_from(self._memory)[7]
        return name.split(b"\0", 1)[0].decode(errors="replace")

    def counts(self) -> dict[tuple[str, str], int]:
        """How often each call of each kind was made while it was counted."""
        values = struct.unpack_from(f"={len(CALLS) * len(KINDS)}q", self._memory, _HEAD.size)
        names = [(call, kind) for call in CALLS for kind in KINDS]
        return {name: count for name, count in zip(names, values, strict=True) if count}
