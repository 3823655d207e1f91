"""A partition without Kafka, for tests of a storage over it: in memory, it outlives its owners, and answers at once
unless it is told not to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.storage.kafka.log_fold import MissingRecords
from headrace.storage.kafka.mailbox import Hearer
from headrace.storage.kafka.storage import KafkaSettings


class FakePartition:
    """The records. `answers`: whether appends are reported; `is_away`: nothing is read or appended."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.start = 0
        self.answers = True
        self.refuses = ""  # appends, with this error
        self.before_reading: Callable[[], None] = lambda: None
        self.is_away = False
        self.holes: set[int] = set()  # offsets that no reader is given, as of a transaction's marker

    def connect(self, hearer: Hearer) -> FakeClients:
        """Clients of one owner."""
        return FakeClients(self, hearer)


class FakeShard(FakePartition):
    """The journal's partition of a shard, with that of its snapshots beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots = FakePartition()

    def settings(self, worker: str = "n0/0", topic: str = "topic", **more: Any) -> KafkaSettings:
        """What a storage over it is told."""
        return KafkaSettings(topic, 0, worker, self.connect, self.snapshots.connect, **more)


class FakeClients:
    """What stands in the place of a `PartitionClient`."""

    def __init__(self, partition: FakePartition, hearer: Hearer) -> None:
        self._partition = partition
        self._hearer = hearer
        self.reading = 0
        self.purges = 0
        self.is_closed = False

    def append(self, token: int, value: bytes) -> None:
        partition = self._partition
        if partition.is_away:
            return
        if partition.refuses:
            self._hearer.on_report(token, None, partition.refuses)
            return
        partition.values.append(value)
        if partition.answers:
            self._hearer.on_report(token, len(partition.values) - 1, "")

    def purge(self) -> None:
        self.purges += 1

    def read(self, reading: int, offset: int) -> None:
        partition = self._partition
        self.reading = reading
        partition.before_reading()
        if partition.is_away:
            return
        if offset < partition.start:
            self._hearer.on_missing(reading, partition.start)
            return
        records = [
            one for one in enumerate(partition.values) if one[0] >= offset and one[0] not in partition.holes
        ]
        if records:
            self._hearer.on_records(reading, [(at, value) for at, value in records])
        self._hearer.on_end(reading, len(partition.values))

    def taken(self) -> None: ...

    def delete(self, offset: int) -> None:
        self._partition.start = max(self._partition.start, offset)

    def close(self) -> None:
        self.is_closed = True


class ShownPartition:
    """The same as a reader sees it (`journal_reader.Partition`)."""

    def __init__(self, partition: FakePartition) -> None:
        self._partition = partition

    def bounds(self) -> tuple[int, int]:
        return self._partition.start, len(self._partition.values)

    def records(self, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        if start < self._partition.start:
            raise MissingRecords(start, self._partition.start)
        yield from enumerate(self._partition.values[start:end], start)
