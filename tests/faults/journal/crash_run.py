"""Driving a log until something breaks, and what must hold afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from faults.journal.simulated_disk import PowerCut
from faults.journal.simulated_syncer import SimulatedSyncer
from headrace.journal.disk import DISK, Disk
from headrace.journal.log import LogSettings, SegmentedLog

if TYPE_CHECKING:
    from headrace.syscalls import Syncer

DATA_DIR = Path("/simulated")
SMALL = LogSettings(segment_bytes_max=4096, index_interval_bytes=256, reserve_bytes=4096)


class Run:
    """A log with its writer thread, and perhaps a syncer. `acknowledged` is what is durable by its own word, `failures`
    what went wrong."""

    def __init__(
        self,
        disk: Disk = DISK,
        data_dir: Path = DATA_DIR,
        settings: LogSettings = SMALL,
        syncer: bool = False,
    ) -> None:
        self.reports: list[str] = []
        self.failures: list[BaseException] = []
        self.acknowledged = 0
        self._changed = threading.Condition()
        self.log = SegmentedLog.open(data_dir, settings, self.reports.append, disk)
        self.acknowledged = self.log.high_watermark
        self.full: list[str] = []
        self.syncer = SimulatedSyncer(disk) if syncer else None
        self.log.start(self._durable, self._failed, self._full, cast("Syncer | None", self.syncer))

    def finish_writes(self) -> None:
        """What the loop does whenever the syncer has done a job, until it has none."""
        if self.syncer is None:
            return
        try:
            while self.syncer.has_job:
                self.syncer.wait()
                self.log.finish_write()
                self._durable(max(self.acknowledged, self.log.high_watermark))
        except PowerCut as error:
            self._failed(error)

    def append(self, bodies: Sequence[bytes]) -> int:
        """One batch a body, one record a batch; waits. Returns how many records are acknowledged now."""
        for body in bodies:
            self.log.append(body, 1, 1, 1)
        self.finish_writes()
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout=30)
        return self.acknowledged

    def _is_settled(self) -> bool:
        return bool(self.failures) or self.acknowledged >= self.log.next_offset

    def _durable(self, high_watermark: int) -> None:
        with self._changed:
            self.acknowledged = high_watermark
            self._changed.notify()

    def _full(self, reason: str) -> None:
        with self._changed:
            self.full.append(reason)
            self._changed.notify()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self.finish_writes()
        with self._changed:
            assert self._changed.wait_for(condition, timeout=30)

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify()


def content(log: SegmentedLog) -> list[bytes]:
    """All bodies in order; offsets are checked on the way."""
    bodies: list[bytes] = []
    for batch in log.scan(log.start_offset):
        assert batch.base_offset == log.start_offset + len(bodies)
        bodies.append(batch.body)
    assert log.start_offset + len(bodies) == log.next_offset == log.high_watermark
    return bodies


def reopened(disk: Disk = DISK, data_dir: Path = DATA_DIR) -> tuple[list[bytes], list[str], int]:
    """Opens, reads everything, closes: bodies, reports, epoch."""
    reports: list[str] = []
    log = SegmentedLog.open(data_dir, SMALL, reports.append, disk)
    try:
        return content(log), reports, log.epoch
    finally:
        log.close()
