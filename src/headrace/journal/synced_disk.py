"""The local file system as the writer has it: a write and its sync are one wait for the interpreter lock and not two."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import syscalls
from headrace.journal.disk import BUFFERS_MAX, Disk
from headrace.journal.errors import synced


class SyncedDisk(Disk):
    """The local file system with writes and syncs in one call. Stands apart from `disk`, since those who only read get
    by with the standard library."""

    def write_and_sync(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if len(buffers) > BUFFERS_MAX:
            super().write_and_sync(fd, buffers, position)
            return
        wanted = sum(map(len, buffers))
        done = synced(syscalls.write_and_sync(fd, buffers, position))
        if done < wanted:
            super().write_and_sync(fd, [b"".join(buffers)[done:]], position + done)


SYNCED_DISK = SyncedDisk()
