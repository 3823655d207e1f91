"""The journals of a cluster in Kafka, `kafka://HOST:PORT/NAME`: partitions are shards, each a log of the pipeline.

No node of the cluster is asked. What is void in a partition is left out by the same rule as at its owner
(`headrace.storage.kafka.journal_reader`); a log is called by the id of the topic in Kafka and the partition, so topics
that were made anew under an old name are another journal, and checkpoints of the old one are refused.

Connections, and how far each partition was read, are kept by each thread of a process for the next look: a stream looks
several times in each micro-batch.
"""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import ConsumerTaken
from headrace.journal.finished import FinishedSegment
from headrace.journal.reader import SegmentInfo
from headrace.journal.segment import Batch
from headrace.journal.selective import TimeRange
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.consumer_topic import ConsumerTopic
from headrace.storage.kafka.journal_reader import KafkaHasLost, KafkaJournalReader
from headrace.storage.kafka.partition_reader import shard_reader
from headrace.storage.kafka.topics import KafkaUnusable, Topics
from headrace_spark.base.errors import (
    BadOption,
    ForeignOffset,
    JournalMissing,
    JournalRefused,
    JournalUnreachable,
    LakeConflict,
)
from headrace_spark.base.stopping import STOPPING
from headrace_spark.source.kafka_address import KafkaAddress, Known, location_of
from headrace_spark.source.log_reader import DividedFrom

SETTLED_S: Final = 10.0
AGAIN_S: Final = 0.3
SEEN_S: Final = (
    120.0  # after so long whoever deletes has seen a consumer, and what it had let go before is deleted
)
_OF_THREAD: Final = threading.local()


class Cluster:
    """One cluster, as a thread knows it."""

    def __init__(self, url: ClusterUrl, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._topics = Topics(url, timeout_s)
        self.topic_id = ""
        self.shards = 0
        self._readers: dict[int, KafkaJournalReader] = {}
        self.consumers = ConsumerTopic(url, "", timeout_s)

    def look(self) -> None:
        """Ask whose journal there is by now. A broker of Kafka that has just begun may not know of topics that were there
        before, so it is asked again about those. Raises KafkaUnusable."""
        until = time.monotonic() + min(SETTLED_S, self._timeout_s)
        while True:
            try:
                topic_id, self.shards = self._topics.identity()
                break
            except KafkaUnusable as error:
                if not (error.is_missing and self.topic_id) or time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self._readers.clear()
            self.consumers = ConsumerTopic(self._url, topic_id, self._timeout_s)

    def reader(self, shard: int) -> KafkaJournalReader:
        """Return the reader of a shard's journal, which knows how far it was read before."""
        if shard not in self._readers:
            self._readers[shard] = shard_reader(self._url, self.topic_id, shard, self._timeout_s)
        return self._readers[shard]


def _cluster(url: ClusterUrl, timeout_s: float) -> Cluster:
    """Return what this thread knows of a cluster; a process that was forked begins anew."""
    known: dict[object, Cluster] = _OF_THREAD.__dict__.setdefault(f"of {os.getpid()}", {})
    found = known.get((url, timeout_s))
    if found is None:  # a client of Kafka is made for it
        found = known[url, timeout_s] = Cluster(url, timeout_s)
    return found


def kafka_journals(location: str, timeout_s: float) -> list[KafkaLog]:
    """Return the journals of a cluster, one for each of its shards, or the one that is named. Raises BadOption,
    JournalMissing, JournalUnreachable."""
    address = KafkaAddress.parse(location)
    if address.known is not None and address.shard is not None:
        return [_planned(address, address.shard, address.known, timeout_s)]
    cluster = _cluster(address.url, timeout_s)
    with translated(location):
        cluster.look()
    shards = range(cluster.shards) if address.shard is None else [address.shard]
    if shards[-1] >= cluster.shards:
        raise BadOption("path", location, f"the cluster has {cluster.shards} shards, from 0 on")
    return [
        KafkaLog(address.url, shard, cluster.topic_id, cluster.reader(shard), cluster.consumers)
        for shard in shards
    ]


def _planned(address: KafkaAddress, shard: int, known: Known, timeout_s: float) -> KafkaLog:
    """Return the journal for a task, which looks for nothing that is known."""
    reader = shard_reader(address.url, known.topic_id, shard, timeout_s)
    reader.pin(known.begin, known.end)
    return KafkaLog(
        address.url, shard, known.topic_id, reader, ConsumerTopic(address.url, known.topic_id, timeout_s)
    )


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Say of a Kafka that does not answer, or lacks something, what the pipeline knows: JournalUnreachable,
    JournalMissing, ForeignOffset. A stop ends the waiting."""
    try:
        with STOPPING.ends():
            yield
    except KafkaUnusable as error:
        if error.is_missing:
            raise JournalMissing(f"{location}: there is no such cluster: {error}") from None
        raise JournalUnreachable(f"{location} does not answer: {error}") from None
    except KafkaHasLost as error:
        raise ForeignOffset(
            f"{location}: {error}. What is written from here on has offsets of records that were read: "
            "`headrace cluster status` says how Kafka is"
        ) from None


class KafkaConsumers:
    """The registered consumers of one shard's journal, which are records in Kafka: the owner of the shard deletes
    nothing that one of them has not read."""

    def __init__(self, location: str, shard: int, reader: KafkaJournalReader, topic: ConsumerTopic) -> None:
        self._location = location
        self._shard = shard
        self._reader = reader
        self._topic = topic

    def register(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        """Register. Whoever deletes says so in the journal before it looks for consumers a last time: so after the
        registration the journal tells what may go all the same; but nothing of that goes, if it is still there, for one
        that has long been registered. Raises LakeConflict, JournalRefused."""
        before = self.read(name)
        self._write(lambda: self._topic.register(self._shard, name, offset, owner))
        with translated(self._location):
            start, kept = self._reader.start_offset(), self._reader.kept_from()
        if start <= offset < kept and not _is_seen(before, offset):
            raise JournalRefused(
                f"{self._location}: the records below offset {kept} are being deleted just now, and {name!r} was to "
                f"begin at {offset}: start it again in {SEEN_S:.0f} s"
            )

    def commit(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        self._write(lambda: self._topic.commit(self._shard, name, offset, owner))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            with translated(self._location):
                write()
        except ConsumerTaken as error:
            raise LakeConflict(str(error)) from None

    def read(self, name: str) -> ConsumerPosition | None:
        with translated(self._location):
            return self._topic.get(self._shard, name)

    def list(self) -> builtins.list[ConsumerPosition]:
        with translated(self._location):
            return self._topic.of_shard(self._shard)


def _is_seen(before: ConsumerPosition | None, offset: int) -> bool:
    """Return whether a consumer has long been registered at or below an offset."""
    return before is not None and before.offset <= offset and time.time() - before.updated_us / 1e6 > SEEN_S


class KafkaLog:
    """The journal of one shard of a cluster, as a log of the pipeline."""

    token: Final = ""
    tenant: Final = ""

    def __init__(
        self, url: ClusterUrl, shard: int, topic_id: str, reader: KafkaJournalReader, consumers: ConsumerTopic
    ) -> None:
        self.location = location_of(url, shard)
        self._url = url
        self._shard = shard
        self._topic_id = topic_id
        self._reader = reader
        self.consumers = KafkaConsumers(self.location, shard, reader, consumers)

    @property
    def uuid(self) -> str:
        return self._reader.uuid

    @property
    def epoch(self) -> int:
        return self._reader.epoch

    def location_from(self, start: int) -> str:
        with translated(self.location):
            known = Known(self._topic_id, *self._reader.standings(start))
        return location_of(self._url, self._shard, known)

    def high_watermark(self) -> int:
        with translated(self.location):
            return self._reader.high_watermark()

    def start_offset(self) -> int:
        with translated(self.location):
            return self._reader.start_offset()

    def complete_offset(self) -> int:
        with translated(self.location):
            return self._reader.complete_offset()

    def divided_from(self) -> DividedFrom | None:
        return None

    def check(self, uuid: str, epoch: int) -> None:
        self._reader.check(uuid, epoch)

    def segments(self) -> list[SegmentInfo]:
        with translated(self.location):
            return self._reader.segments()

    def scan(
        self,
        start: int,
        end: int | None = None,
        *,
        uuid: str | None = None,
        epoch: int | None = None,
        times: TimeRange | None = None,
    ) -> Iterator[Batch]:
        with translated(self.location):
            batches = self._reader.scan(start, end, uuid=uuid, epoch=epoch, times=times)
        while True:
            with translated(self.location):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def finished(self, base_offset: int) -> FinishedSegment:
        return self._reader.finished(base_offset)
