"""What /metrics tells of the disk and of the journal's consumers.

`JournalFigures.refresh` asks the disk, on a thread, before each scrape; `JournalCollector` turns what it found into
samples, on the loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
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
    """Holds the figures of disk and journal as of the last `refresh`. What cannot be found out then is left out. `shard`
    is the number of the shard that they are of, "" where there is one."""

    def __init__(self, log: Log, shard: str = "") -> None:
        self._log = log
        self.shard = shard
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
    """Bytes on the disk and what limits them, and how far behind each consumer is; of each shard where there are
    several, whose data may lie on disks of their own."""

    def __init__(self, figures: Sequence[JournalFigures], limits: Limits) -> None:
        self._figures = figures
        self._limits = limits
        self._labels = ["shard"] if any(one.shard for one in figures) else []

    def collect(self) -> Iterator[Metric]:
        yield from self._journal()
        yield from self._disk()
        yield from self._consumers()

    def _family(
        self, name: str, text: str, values: Sequence[tuple[JournalFigures, float]]
    ) -> Iterator[Metric]:
        """Return a metric with a value for each shard of which it is known; none at all where it is of no shard."""
        family = GaugeMetricFamily(name, text, labels=self._labels)
        for figures, value in values:
            family.add_metric([figures.shard] if self._labels else [], value)
        if values:
            yield family

    def _journal(self) -> Iterator[Metric]:
        columns = (
            ("size_bytes", "Bytes of all segments"),
            ("segments", "Segments of the journal"),
            ("start_offset", "The oldest offset there is"),
        )
        known = [(one, one.journal) for one in self._figures if one.journal is not None]
        for at, (name, text) in enumerate(columns):
            yield from self._family(
                f"headrace_journal_{name}", text, [(one, found[at]) for one, found in known]
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
            each = [(one, value) for one in self._figures]
            yield from self._family(f"headrace_journal_{name}_bytes", text, each)

    def _disk(self) -> Iterator[Metric]:
        known = [(one, one.disk) for one in self._figures if one.disk is not None]
        size = [(one, float(disk[0])) for one, disk in known]
        free = [(one, float(disk[1])) for one, disk in known]
        yield from self._family("headrace_disk_size_bytes", "Size of the data's file system", size)
        yield from self._family("headrace_disk_free_bytes", "Bytes of it that may be used", free)

    def _consumers(self) -> Iterator[Metric]:
        columns = (
            ("offset", "Position of a registered consumer", "offset"),
            ("lag_records", "Records of the journal that it has not processed", "records"),
            ("lag_bytes", "Their bytes", "bytes"),
            ("silent_seconds", "Time since its position last moved or its lease was renewed", "silent_s"),
        )
        for name, text, attribute in columns:
            family = GaugeMetricFamily(f"headrace_consumer_{name}", text, labels=["consumer", *self._labels])
            for one in self._figures:
                for lag in one.consumers:
                    shard = [one.shard] if self._labels else []
                    family.add_metric([lag.name, *shard], getattr(lag, attribute))
            yield family
