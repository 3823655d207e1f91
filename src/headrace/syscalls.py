"""System calls of the hot path on plain descriptors. The compiled build takes `syscalls.pyx`, which gives the reasons.

Both builds behave alike; the difference is when the interpreter lock is let go.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from collections.abc import Sequence
from contextlib import suppress
from threading import Semaphore
from time import monotonic_ns

READ_BYTES_MAX = 64 << 10
READY_MAX = 256  # descriptors of one `ready`
BUFFERS_MAX = 1024  # IOV_MAX of Linux


def read(fd: int) -> bytes | None:
    """Return what lies ready on a non-blocking descriptor, at most `READ_BYTES_MAX`; b"" at the end of the stream, None
    when nothing is there. Raises OSError."""
    try:
        return os.read(fd, READ_BYTES_MAX)
    except BlockingIOError:
        return None


def write(fd: int, data: bytes | bytearray) -> int:
    """Write, and return how many bytes the system took of `data`, 0 when it has no room. Raises OSError."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


def ready(epoll: select.epoll) -> bytes:
    """Return which descriptors are ready now, at most `READY_MAX`: descriptor and events, i32 in native order, of each.

    Raises OSError.
    """
    return b"".join(struct.pack("=ii", fd, events) for fd, events in epoll.poll(0, READY_MAX))


def write_and_sync(fd: int, buffers: Sequence[bytes], position: int) -> int:
    """Write and sync by pwritev, then fdatasync; return how many bytes were written; all of them, and then they are
    synced, or fewer, and then nothing is. Minus the error number if the sync failed. Raises OSError if the write
    did."""
    written = os.pwritev(fd, buffers, position)
    if written == sum(map(len, buffers)):
        try:
            os.fdatasync(fd)
        except OSError as error:
            return -(error.errno or 0)
    return written


class Syncer:
    """Writes with a sync, one job at a time, on the thread that runs `serve`. `begin` and `result` are for one other."""

    def __init__(self) -> None:
        """Begin the thread of the syncer. Raises OSError. Linux only."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # each job that is done writes to it
        self._begun = Semaphore(0)
        self._done = Semaphore(0)
        self._job: tuple[int, Sequence[bytes], int, int, int] = (-1, (), 0, 0, 0)
        self._index: tuple[int, bytes, int] = (-1, b"", 0)
        self._outcome: int | OSError | MemoryError = 0
        self._stopping = False
        self.took_ns = 0  # write and sync of the last job

    def __del__(self) -> None:
        os.close(self.fd)

    def serve(self) -> None:
        """Serve until `stop`."""
        while True:
            self._begun.acquire()
            if self._stopping:
                return
            try:
                self._outcome = self._execute()
            except (OSError, MemoryError) as error:
                self._outcome = error
            self._done.release()
            os.eventfd_write(self.fd, 1)

    def _execute(self) -> int:
        fd, buffers, position, allocated, growth = self._job
        if growth:
            os.posix_fallocate(fd, allocated, growth)
        began_ns = monotonic_ns()
        done = write_and_sync(fd, buffers, position)
        self.took_ns = monotonic_ns() - began_ns
        index_fd, entries, index_position = self._index
        if done == sum(map(len, buffers)) and entries:
            with suppress(OSError):
                os.pwrite(index_fd, entries, index_position)
        return done

    def begin(
        self,
        fd: int,
        buffers: Sequence[bytes],
        position: int,
        allocated: int,
        growth: int,
        index_fd: int,
        entries: bytes,
        index_position: int,
    ) -> None:
        """Hand over a job: blocks for `growth` bytes at `allocated` if that is not 0, then `write_and_sync`, and if that
        did it all, `entries` into another file, without a sync and whether that works or not. The last job is done.

        Raises OSError for too many buffers, and then there is no job.
        """
        if len(buffers) > BUFFERS_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._job = (fd, buffers, position, allocated, growth)
        self._index = (index_fd, entries, index_position)
        self._begun.release()

    def result(self) -> int | None:
        """Return what `write_and_sync` returns or raises, once a job; None while it is not done. Raises OSError,
        MemoryError."""
        if not self._done.acquire(blocking=False):
            return None
        if isinstance(self._outcome, OSError | MemoryError):
            raise self._outcome
        return self._outcome

    def wait(self) -> None:
        """Wait until the job is done that was begun, before its `result` is asked for."""
        self._done.acquire()
        self._done.release()

    def stop(self) -> None:
        """End `serve`. No job is under way."""
        self._stopping = True
        self._begun.release()
