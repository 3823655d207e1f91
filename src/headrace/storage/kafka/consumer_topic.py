"""The registered consumers of a cluster's journals: who reads them, and up to where each has processed a shard.

They lie in the compacted topic of owners, beside what nodes tell each other there (`roster`), which passes them over:

    consumer/SHARD/NAME   {"level": 1, "cluster": topic id of the journal, "epoch": 0, "offset": record offset below
                          which everything is processed, "updated_us", "registered_us": times, "owner": text}

The last record of a key counts; one without a value says that there is no such consumer any more. What was told of
another journal under the same name means nothing. A level that is not known counts as the offset 0: nothing is deleted
that a newer headrace may want.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from time import time_ns
from typing import Any, Final
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.journal.consumers import ConsumerPosition, check_name
from headrace.journal.errors import ConsumerTaken
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.envelope import uuid_of
from headrace.storage.kafka.partition_reader import TIMEOUT_S, PartitionReader
from headrace.storage.kafka.topics import KafkaUnusable

LEVEL: Final = 1
_KIND: Final = "consumer"


@dataclass(frozen=True, slots=True)
class Registered:
    """The shard of a record, and the position that it tells; None: there is none any more."""

    shard: int
    name: str
    position: ConsumerPosition | None


def consumer_key(shard: int, name: str) -> bytes:
    """Return the key of a consumer's record."""
    return f"{_KIND}/{shard}/{name}".encode()


def pack_position(topic_id: str, position: ConsumerPosition) -> bytes:
    """Return the value of a consumer's record."""
    return json.dumps(
        {
            "level": LEVEL,
            "cluster": topic_id,
            "epoch": position.epoch,
            "offset": position.offset,
            "updated_us": position.updated_us,
            "registered_us": position.registered_us,
            "owner": position.owner,
        },
        sort_keys=True,
    ).encode()


def registered_in(topic_id: str, key: bytes | None, value: bytes | None) -> Registered | None:
    """Return what a record tells of a consumer; None if it tells of nothing of this journal."""
    try:
        kind, number, name = (key or b"").decode().split("/", 2)
        shard, name = int(number), check_name(name)
        found = None if value is None else json.loads(value)
    except (UnicodeDecodeError, ValueError):
        return None
    if kind != _KIND or shard < 0:
        return None
    if found is None:
        return Registered(shard, name, None)
    if not isinstance(found, dict) or found.get("cluster") != topic_id:
        return None
    return Registered(shard, name, _position(topic_id, shard, name, found))


def _position(topic_id: str, shard: int, name: str, found: dict[str, Any]) -> ConsumerPosition:
    uuid = str(UUID(bytes=uuid_of(topic_id, shard)))
    try:
        if found["level"] == LEVEL:
            return ConsumerPosition(
                name,
                uuid,
                int(found["epoch"]),
                int(found["offset"]),
                int(found["updated_us"]),
                int(found["registered_us"]),
                0,
                str(found["owner"]),
            )
    except (KeyError, TypeError, ValueError):
        pass
    return ConsumerPosition(name, uuid, 0, 0, 0, 0)


class ConsumerTopic:
    """The consumers of one cluster, read and written. Every method waits for Kafka, and may raise KafkaUnusable."""

    def __init__(self, url: ClusterUrl, topic_id: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._topic_id = topic_id
        self._timeout_s = timeout_s
        self._reader = PartitionReader(url.client, url.owners, 0, timeout_s)
        self._producer: Producer | None = None
        self._at = 0
        self._found: dict[tuple[int, str], ConsumerPosition] = {}

    def look(self) -> dict[tuple[int, str], ConsumerPosition]:
        """Return all consumers as they are now, by shard and name."""
        start, end = self._reader.bounds()
        if end < self._at:  # another topic under this name
            self._at, self._found = 0, {}
        for offset, key, value in self._reader.keyed(max(start, self._at), end):
            self._at = offset + 1
            record = registered_in(self._topic_id, key, value)
            if record is None:
                continue
            if record.position is None:
                self._found.pop((record.shard, record.name), None)
            else:
                self._found[record.shard, record.name] = record.position
        self._at = max(self._at, end)
        return self._found

    def of_shard(self, shard: int) -> list[ConsumerPosition]:
        """Return the consumers of a shard, by name."""
        found = self.look()
        return [found[key] for key in sorted(found) if key[0] == shard]

    def get(self, shard: int, name: str) -> ConsumerPosition | None:
        """Return the position of a consumer, None if it has none."""
        return self.look().get((shard, name))

    def register(self, shard: int, name: str, offset: int, owner: str = "") -> None:
        """Have nothing from `offset` on deleted: a position that is ahead of it goes back. Raises ConsumerTaken."""
        now_us, found = time_ns() // 1000, self._owned(shard, name, owner)
        if found is None:
            self._write(shard, self._new(shard, name, offset, owner, now_us))
        elif found.offset > offset:
            self._write(shard, replace(found, offset=offset, updated_us=now_us))

    def commit(self, shard: int, name: str, offset: int, owner: str = "") -> None:
        """Note that everything below `offset` is processed; a consumer that was removed is registered again. Raises
        ConsumerTaken."""
        now_us, found = time_ns() // 1000, self._owned(shard, name, owner)
        if found is None:
            self._write(shard, self._new(shard, name, offset, owner, now_us))
        elif found.offset < offset:
            self._write(shard, replace(found, offset=offset, updated_us=now_us))

    def _new(self, shard: int, name: str, offset: int, owner: str, now_us: int) -> ConsumerPosition:
        uuid = str(UUID(bytes=uuid_of(self._topic_id, shard)))
        return ConsumerPosition(check_name(name), uuid, 0, offset, now_us, now_us, 0, owner)

    def _owned(self, shard: int, name: str, owner: str) -> ConsumerPosition | None:
        """Return a consumer as this owner's, which it is from now on; None if there is none. Raises ConsumerTaken."""
        found = self.get(shard, name)
        if found is None or found.owner == owner:
            return found
        if found.owner and found.owner.partition(" ")[0] != owner.partition(" ")[0]:
            raise ConsumerTaken(name, found.owner, owner)
        owned = replace(found, owner=owner)
        self._write(shard, owned)
        return owned

    def hand_over(self, shard: int, name: str) -> None:
        """Let the first who comes be the next owner of a consumer."""
        found = self.get(shard, name)
        if found is not None:
            self._write(shard, replace(found, owner=""))

    def remove(self, shard: int, name: str) -> bool:
        """Remove a consumer: nobody waits for it any more. Returns whether there was one."""
        if self.get(shard, name) is None:
            return False
        self._put(consumer_key(shard, name), None)
        return True

    def _write(self, shard: int, position: ConsumerPosition) -> None:
        self._put(consumer_key(shard, position.name), pack_position(self._topic_id, position))

    def _put(self, key: bytes, value: bytes | None) -> None:
        """Write a record, and wait until it is on all replicas in sync."""
        failed: list[str] = ["it takes no record"]

        def written(error: KafkaError | None, _: Any) -> None:
            failed[:] = [] if error is None else [error.str()]

        try:
            if self._producer is None:
                config: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "log_level": 0}
                limit = {"message.timeout.ms": int(self._timeout_s * 1000)}
                self._producer = Producer({**self._url.client, **config, **limit})
            self._producer.produce(self._url.owners, key=key, value=value, partition=0, on_delivery=written)
            self._producer.flush(self._timeout_s + 1)
        except (KafkaException, BufferError, RuntimeError) as error:
            raise KafkaUnusable(f"{self._url.bootstrap}: {self._url.owners}: {error}") from error
        if failed:
            raise KafkaUnusable(f"{self._url.bootstrap}: {self._url.owners}: {failed[0]}")

    def close(self) -> None:
        """End what reads and writes."""
        self._reader.close()
        self._producer = None


def consumed_up_to(url: ClusterUrl, topic_id: str, shard: int) -> int | None:
    """Return the offset below which all registered consumers of a shard have read everything; None if there are none.
    Raises KafkaUnusable."""
    topic = ConsumerTopic(url, topic_id)
    try:
        return min((position.offset for position in topic.of_shard(shard)), default=None)
    finally:
        topic.close()
