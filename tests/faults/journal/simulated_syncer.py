"""A syncer whose jobs are calls of a simulated disk, done when the test says so or somebody waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from headrace.journal.disk import Disk
from headrace.journal.errors import SyncFailed

Job = tuple[int, Sequence[bytes], int, int, int, int, bytes, int]


class SimulatedSyncer:
    """What a log uses of a `syscalls.Syncer`. `done_at_once` counts the jobs that the disk took as they were."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.done_at_once = 0
        self.waiting: Job | None = None
        self.found: int | BaseException | None = None

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
        assert self.waiting is None, "one job at a time"
        assert self.found is None, "the result of the last job was not asked for"
        self.waiting = (fd, buffers, position, allocated, growth, index_fd, entries, index_position)

    def serve(self) -> None:
        """It has no thread."""

    def stop(self) -> None:
        """It has no thread."""

    @property
    def has_job(self) -> bool:
        return self.waiting is not None

    def wait(self) -> None:
        job, self.waiting = self.waiting, None
        if job is None:
            return
        try:
            self.found = self.outcome_of(*job)
        except SyncFailed as error:
            self.found = -(error.errno or 0)
        except BaseException as error:
            self.found = error

    def outcome_of(
        self,
        fd: int,
        buffers: Sequence[bytes],
        position: int,
        allocated: int,
        growth: int,
        index_fd: int,
        entries: bytes,
        index_position: int,
    ) -> int:
        if growth:
            self.disk.allocate(fd, allocated, growth)
        written = self.disk.pwritev(fd, buffers, position)
        if written < sum(map(len, buffers)):
            return written
        try:
            self.disk.fdatasync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        if entries:
            with suppress(OSError):
                self.disk.pwritev(index_fd, [entries], index_position)
        self.done_at_once += 1
        return written

    def result(self) -> int | None:
        found, self.found = self.found, None
        if isinstance(found, BaseException):
            raise found
        return found
