"""What /metrics tells of the disk and of the journal's consumers.

`JournalFigures.refresh` asks the disk, on a thread, before each scrape; `JournalCollector` turns what it found into
samples, on the loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import JournalError


class Log(Protocol):
    """What is asked of a `journal.log.SegmentedLog`, on a thread."""

    uuid: str
    data_dir: Path

    @property
    def size_bytes(self) -> int: ...

    @property
    def segment_count(self) -> int: ...

    @property
    def start_offset(self) -> int: ...

    def behind(self, offset: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that the journal may have, without and with a consumer that waits, and that a full disk must get back."""

    retention_bytes: int
    consumer_retention_bytes: int
    reserve_bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    name: str
    offset: int
    records: int
    bytes: int
    silent_s: float


class JournalFigures:
    """Holds the figures of disk and journal as of the last `refresh`. What cannot be found out then is left out."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.consumers: list[ConsumerLag] = []
        self.disk: tuple[int, int] | None = None  # bytes in all, bytes that are free to us
        self.journal: tuple[int, int, int] | None = None  # bytes, segments, oldest offset

    def refresh(self) -> None:
        """Ask for the figures anew. Runs on a thread. Raises nothing for want of an answer."""
        self.consumers = list(self._lags())
        self.journal = (self._log.size_bytes, self._log.segment_count, self._log.start_offset)
        self.disk = None
        with suppress(OSError):
            usage = shutil.disk_usage(self._log.data_dir)
            self.disk = (usage.total, usage.free)

    def _lags(self) -> Iterator[ConsumerLag]:
        """Return the lags by the lease alone: to look at the lock of who is alive is to hold it for a moment, and it
        may be wanted."""
        data_dir, now_us = self._log.data_dir, time_ns() // 1000
        with suppress(OSError):
            for name in ConsumerPosition.names(data_dir):
                with suppress(JournalError):  # it has gone, or is damaged, which retention tells
                    position = ConsumerPosition.read(data_dir, name)
                    if position.uuid == self._log.uuid and not position.has_expired(now_us):
                        yield self._lag(position)

    def _lag(self, position: ConsumerPosition) -> ConsumerLag:
        records, size = self._log.behind(position.offset)
        silent_s = max(0.0, (time_ns() // 1000 - position.updated_us) / 1e6)
        return ConsumerLag(position.name, position.offset, records, size, silent_s)


class JournalCollector(Collector):
    """Bytes on the disk and what limits them, and how far behind each consumer is."""

    def __init__(self, figures: JournalFigures, limits: Limits) -> None:
        self._figures = figures
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        yield from self._journal()
        yield from self._disk()
        yield from self._consumers()

    def _journal(self) -> Iterator[Metric]:
        if self._figures.journal is not None:
            size, segments, start = self._figures.journal
            yield GaugeMetricFamily("headrace_journal_size_bytes", "Bytes of all segments", value=size)
            yield GaugeMetricFamily("headrace_journal_segments", "Segments of the journal", value=segments)
            yield GaugeMetricFamily(
                "headrace_journal_start_offset", "The oldest offset there is", value=start
            )
        limits = self._limits
        for name, text, value in (
            ("retention_limit", "Bytes beyond which the oldest segments go", limits.retention_bytes),
            (
                "consumer_retention_limit",
                "Bytes beyond which they go although a consumer has not read them",
                limits.consumer_retention_bytes,
            ),
            ("reserve", "Bytes that are kept back for a full disk", limits.reserve_bytes),
        ):
            yield GaugeMetricFamily(f"headrace_journal_{name}_bytes", text, value=value)

    def _disk(self) -> Iterator[Metric]:
        if self._figures.disk is not None:
            size, free = self._figures.disk
            yield GaugeMetricFamily("headrace_disk_size_bytes", "Size of the data's file system", value=size)
            yield GaugeMetricFamily("headrace_disk_free_bytes", "Bytes of it that may be used", value=free)

    def _consumers(self) -> Iterator[Metric]:
        columns = (
            ("offset", "Position of a registered consumer", "offset"),
            ("lag_records", "Records of the journal that it has not processed", "records"),
            ("lag_bytes", "Their bytes", "bytes"),
            ("silent_seconds", "Time since its position last moved or its lease was renewed", "silent_s"),
        )
        for name, text, attribute in columns:
            family = GaugeMetricFamily(f"headrace_consumer_{name}", text, labels=["consumer"])
            for lag in self._figures.consumers:
                family.add_metric([lag.name], getattr(lag, attribute))
            yield family
