"""Short cuts for tests: a log in a directory, filled and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition

from headrace.journal.disk import DISK, Disk
from headrace.journal.log import LogSettings, SegmentedLog

SMALL = LogSettings(segment_bytes_max=4096, index_interval_bytes=256, reserve_bytes=0)


def silent(line: str) -> None:
    """A report nobody reads."""


def filled(data_dir: Path, bodies: Sequence[bytes], settings: LogSettings = SMALL, disk: Disk = DISK) -> None:
    """Writes one batch of one record a body, times 1000, 2000, ..., then closes."""
    log = SegmentedLog.open(data_dir, settings, silent, disk)
    for i, body in enumerate(bodies):
        log.append(body, 1, 1000 * (i + 1), 1000 * (i + 1))
    log.close()


def opened(
    data_dir: Path, settings: LogSettings = SMALL, report: Callable[[str], None] = silent
) -> SegmentedLog:
    return SegmentedLog.open(data_dir, settings, report)


class Started:
    """A log with its thread, and a way to wait for it."""

    def __init__(self, data_dir: Path, settings: LogSettings = SMALL, disk: Disk = DISK) -> None:
        self.log = SegmentedLog.open(data_dir, settings, silent, disk)
        self.said: list[object] = []
        self._changed = Condition()
        self.log.start(self._durable, self._durable)

    def _durable(self, said: object) -> None:
        with self._changed:
            self.said.append(said)
            self._changed.notify()

    def wait(self) -> None:
        """Waits until the log has said something more, or already has."""
        with self._changed:
            self._changed.wait(timeout=0.1)

    def append(self, body: bytes, count: int = 1, time_us: int = 1) -> int:
        """Waits until it is durable."""
        offset = self.log.append(body, count, time_us, time_us)
        self.reach(offset + count)
        return offset

    def reach(self, end: int) -> None:
        """Waits until everything below that offset is durable."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.log.high_watermark >= end, timeout=30)
