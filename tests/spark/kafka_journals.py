"""Journals in Kafka with known content, written by no node: what an owner appends, and what is void between."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

from confluent_kafka import Producer

from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.envelope import BATCH, NO_OWNER, Epoch, Mark, pack, pack_mark, pack_owned, uuid_of
from kafka_server import WITHIN_S, KafkaServer
from spark.journals import Made, of_a_shard


class KafkaWriter:
    """The partition of one shard. `places`: the MARKs that it has, each with the record offset that comes next."""

    def __init__(self, url: ClusterUrl, topic_id: str, shard: int) -> None:
        self._topic = url.journal
        self._shard = shard
        self._seed = seed_of(uuid_of(topic_id, shard))
        self._producer = Producer({"bootstrap.servers": url.bootstrap, "acks": "all", "log_level": 0})
        self._bits = count(1)
        self._tail = 0
        self.uuid = str(UUID(bytes=uuid_of(topic_id, shard)))
        self.made = Made()
        self.owner = NO_OWNER
        self.places: list[tuple[int, int]] = []
        self.own()

    def append(self, *values: bytes) -> int:
        """Append records; the Kafka offset of the last one."""
        for value in values:
            self._producer.produce(self._topic, value, partition=self._shard)
        assert self._producer.flush(WITHIN_S) == 0
        self._tail += len(values)
        return self._tail - 1

    def own(self) -> None:
        """Another owner takes the shard."""
        bits = next(self._bits).to_bytes(16, "little")
        self.owner = Epoch(self.append(pack_owned(self._seed, bits, self.owner, "n0/0")), bits)

    def mark(self) -> None:
        """A MARK, which is confirmed."""
        next_offset = len(self.made.records)
        self.places.append(
            (next_offset, self.append(pack_mark(self._seed, self.owner, Mark(next_offset, 0, -1))))
        )

    def write(self, made: Made, records_per_batch: int = 20) -> None:
        """Append all of `made`, each batch with a repeat behind it and a straggler of nobody, which are void."""
        base = len(self.made.records)
        for batch in made.batches([records_per_batch] * (len(made.records) // records_per_batch + 1)):
            first = base + batch.base_offset
            times = [record.timestamp_us for record in made.records[batch.base_offset : batch.end_offset]]
            data = (
                pack_batch_header(self._seed, batch.body, first, batch.count, 0, 0, min(times), max(times))
                + batch.body
            )
            value = pack(self._seed, BATCH, self.owner, data)
            self.append(value, value, pack(self._seed, BATCH, Epoch(0, b"x" * 16), data))
        self.made.records += made.records

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `messages` that it has."""
        return self.made.rows(self.uuid)


class KafkaShards:
    """A cluster of some shards, each with a journal."""

    def __init__(self, kafka: KafkaServer, shards: int = 2) -> None:
        self.url = kafka.make_cluster(shards)
        self.topic_id = kafka.state_of(self.url).topic_id
        url = ClusterUrl.parse(self.url)
        self.writers = [KafkaWriter(url, self.topic_id, shard) for shard in range(shards)]

    def write(self, records: int, seed: int = 1) -> None:
        """Append about so many records to each shard, by a new owner."""
        for number, writer in enumerate(self.writers):
            writer.write(of_a_shard(records, 100 * seed + number, (number + 1) % len(self.writers)))
            writer.own()

    def rows(self) -> list[dict[str, Any]]:
        """All rows of `messages`, by journal and offset."""
        rows = [row for writer in self.writers for row in writer.rows()]
        return sorted(rows, key=lambda row: (row["journal_uuid"], row["journal_offset"]))
