"""System calls of the hot path on plain descriptors. The compiled build takes `syscalls.pyx`, which gives the reasons.

Both builds behave alike; the difference is when the interpreter lock is let go.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Sequence

READ_BYTES_MAX = 64 << 10
READY_MAX = 256  # descriptors of one `ready`


def read(fd: int) -> bytes | None:
    """What lies ready on a non-blocking descriptor, at most `READ_BYTES_MAX`; b"" at the end of the stream, None when
    nothing is there. Raises OSError."""
    try:
        return os.read(fd, READ_BYTES_MAX)
    except BlockingIOError:
        return None


def write(fd: int, data: bytes | bytearray) -> int:
    """How many bytes the system took of `data`, 0 when it has no room. Raises OSError."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


def ready(epoll: select.epoll) -> bytes:
    """Which descriptors are ready now, at most `READY_MAX`: descriptor and events, i32 in native order, of each.

    Raises OSError.
    """
    return b"".join(struct.pack("=ii", fd, events) for fd, events in epoll.poll(0, READY_MAX))


def write_and_sync(fd: int, buffers: Sequence[bytes], position: int) -> int:
    """pwritev, then fdatasync: how many bytes were written; all of them, and then they are synced, or fewer, and then
    nothing is. Minus the error number if the sync failed. Raises OSError if the write did."""
    written = os.pwritev(fd, buffers, position)
    if written == sum(map(len, buffers)):
        try:
            os.fdatasync(fd)
        except OSError as error:
            return -(error.errno or 0)
    return written
