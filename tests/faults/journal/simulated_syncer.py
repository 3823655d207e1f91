"""A syncer whose jobs are calls of a simulated disk, done when the test says so or somebody waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from headrace.journal.disk import Disk

# What `begin` takes: fd, buffers, position, allocated, growth, index_fd, entries, index_position.
Job = tuple[int, Sequence[bytes], int, int, int, int, bytes, int]


class SimulatedSyncer:
    """What a log uses of a `syscalls.Syncer`. `done_at_once` counts the jobs that the disk took as they were."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.done_at_once = 0
        self.took_ns = 0  # of the last job: no time passes here
        self.waiting: Job | None = None
        self.found: int | BaseException | None = None

    def begin(self, *job: *Job) -> None:
        assert self.waiting is None, "one job at a time"
        assert self.found is None, "the result of the last job was not asked for"
        self.waiting = job

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
            self.found = self._outcome_of(job)
        except BaseException as error:
            self.found = error

    def _outcome_of(self, job: Job) -> int:
        fd, buffers, position, allocated, growth, index_fd, entries, index_position = job
        if growth:
            self.disk.allocate(fd, allocated, growth)
        written = self.disk.pwritev(fd, buffers, position)
        if written < sum(map(len, buffers)):
            return written
        try:
            self.disk.fdatasync(fd)
        except OSError as error:
            return -(error.errno or 0)
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
