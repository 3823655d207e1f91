"""A partition of Kafka to read, by consumers without a group: where it lies, and ranges of it.

Waits for Kafka, on the thread of whoever asks. A consumer reads one range at a time, and is kept for the next one; it
ends with the reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.storage.kafka.cluster_url import Client, ClusterUrl
from headrace.storage.kafka.envelope import uuid_of
from headrace.storage.kafka.journal_reader import KafkaJournalReader
from headrace.storage.kafka.log_fold import MissingRecords
from headrace.storage.kafka.topics import KafkaUnusable

TIMEOUT_S: Final = 30.0
ASK_S: Final = 5.0  # for one answer about the ends of the partition
POLL_S: Final = 0.5
READ_RECORDS: Final = 256  # that one call takes at most
MIB: Final = 1 << 20
_OUT_OF_RANGE: Final = (
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
)


class PartitionReader:
    """One partition of a topic, read by clients with the settings `client`. Connects when something is asked.
    `timeout_s`: for so long Kafka may say nothing."""

    def __init__(self, client: Client, topic: str, partition: int, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._bootstrap = client["bootstrap.servers"]
        self._topic = topic
        self._partition = partition
        self._timeout_s = timeout_s
        self._idle: list[Consumer] = []

    def _consumer(self) -> Consumer:
        if self._idle:
            return self._idle.pop()
        config: dict[str, Any] = {
            **self._client,
            "group.id": f"{self._topic}-readers",  # the library wants one, and never joins it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # nothing in a journal is of a transaction
            "fetch.wait.max.ms": 5,  # nobody waits for what is not there yet, and the next range would wait for that
            "fetch.message.max.bytes": 4 * MIB,  # a larger record comes all the same, alone
            "queued.max.messages.kbytes": 32 * 1024,
        }
        try:
            return Consumer(config)
        except (KafkaException, RuntimeError) as error:
            raise KafkaUnusable(f"{self._bootstrap}: a client of Kafka cannot be made: {error}") from error

    def bounds(self) -> tuple[int, int]:
        """Return the Kafka offset of the oldest record, and the one behind the newest that all replicas in sync have.
        Raises KafkaUnusable."""
        consumer = self._consumer()
        try:
            return self._bounds(consumer)
        finally:
            self._idle.append(consumer)

    def _bounds(self, consumer: Consumer) -> tuple[int, int]:
        place = TopicPartition(self._topic, self._partition)
        deadline, reason = time.monotonic() + self._timeout_s, "it does not answer"
        while True:
            try:
                found = consumer.get_watermark_offsets(
                    place, timeout=min(ASK_S, self._timeout_s), cached=False
                )
            except KafkaException as error:
                found, reason = None, error.args[0].str()
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise self._unusable(reason)
            time.sleep(0.1)

    def records(self, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield the records of [start, end), of which the end is below `bounds`, with their Kafka offsets: all of them,
        but for those that compaction has taken. A new leader that knows of fewer than the one before it is waited for.
        Raises MissingRecords if the partition begins behind `start` by now, KafkaUnusable."""
        for message in self._messages(start, end):
            yield message.offset(), message.value()

    def keyed(self, start: int, end: int) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield the same with their keys: offset, key, value."""
        for message in self._messages(start, end):
            yield message.offset(), message.key(), message.value()

    def _messages(self, start: int, end: int) -> Iterator[Any]:
        if start >= end:
            return
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(self._topic, self._partition, start)])
            yield from self._read(consumer, start, end)
        finally:
            consumer.unassign()
            self._idle.append(consumer)

    def _read(self, consumer: Consumer, at: int, end: int) -> Iterator[Any]:
        heard_at, reason = time.monotonic(), "it does not answer"
        while at < end:
            for message in consumer.consume(min(READ_RECORDS, end - at), POLL_S):
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    at = offset + 1
                    yield message
                    heard_at = time.monotonic()  # whoever takes the records may have taken long
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= end:
                        return  # what lacks then was compacted
                    reason = (
                        f"it has nothing behind offset {message.offset()}, and has had records up to {end}"
                    )
                elif error.code() in _OUT_OF_RANGE:
                    raise MissingRecords(at, self._bounds(consumer)[0])
                else:
                    reason = error.str()
            if time.monotonic() - heard_at > self._timeout_s:
                raise self._unusable(reason)

    def _unusable(self, reason: str) -> KafkaUnusable:
        """Return what to raise. A client says of a Kafka that is away, too, that it has no such partition; whether there
        is one was asked before (`Topics.identity`)."""
        return KafkaUnusable(f"{self._bootstrap}: {self._topic}, partition {self._partition}: {reason}")

    def close(self) -> None:
        """End the consumers that read nothing now."""
        while self._idle:
            self._idle.pop().close()


def shard_reader(
    url: ClusterUrl, topic_id: str, shard: int, timeout_s: float = TIMEOUT_S
) -> KafkaJournalReader:
    """Return a reader of the journal of one shard of a cluster, whose journal has this id in Kafka. Asks nothing yet."""
    return KafkaJournalReader(
        uuid_of(topic_id, shard),
        PartitionReader(url.client, url.journal, shard, timeout_s),
        PartitionReader(url.client, url.snapshots, shard, timeout_s),
    )
