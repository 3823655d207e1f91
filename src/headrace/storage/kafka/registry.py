"""The topic of owners of a cluster, read to its end and then on, and written: what `roster` is made of.

A thread of its own talks to Kafka. Records are handed out in their order, a list at a time, on that thread; nobody waits
for what is told. What Kafka does not take is sent again, until it is or something newer is told under its key. Whoever
opens it waits for Kafka, and so does whoever closes it, not for long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.group import group_of
from headrace.storage.kafka.presence import NodeLives, Presence, UnknownNode, node_of, presence
from headrace.storage.kafka.roster import Roster, node_key
from headrace.storage.kafka.topics import TIMEOUT_S, KafkaUnusable

POLL_S: Final = 0.05
FLUSH_S: Final = 3.0
AT_ONCE: Final = 500
AGAIN_S: Final = 0.3

Record = tuple[int, bytes | None, bytes | None]  # Kafka offset, key, value
Deliver = Callable[[list[Record]], None]


@dataclass(eq=False, slots=True)
class _Told:
    """A record that Kafka is to take; told again, the same key is another one."""

    key: bytes
    value: bytes | None


class Registry:
    """One reader and writer of that topic."""

    def __init__(self, url: ClusterUrl) -> None:
        """Begin without a word to Kafka. Raises KafkaUnusable."""
        self._url = url
        config = url.client
        try:
            self._consumer = Consumer(
                {
                    **config,
                    "group.id": f"{url.owners}-readers",  # asked for by the client; no group is joined
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                }
            )
            self._producer = self._made()
        except (KafkaException, RuntimeError) as error:
            raise KafkaUnusable(f"{url.bootstrap}: a client of Kafka cannot be made: {error}") from error
        self._outbox: deque[_Told] = deque()
        self._newest: dict[bytes, _Told] = {}  # by key, until Kafka has it
        self._telling = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> list[Record]:
        """Return all records there are now. Raises KafkaUnusable."""
        self._consumer.assign([TopicPartition(self._url.owners, 0, OFFSET_BEGINNING)])
        found: list[Record] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaUnusable(f"{self._url.bootstrap} has no topic {self._url.owners}", True)
        raise KafkaUnusable(f"{self._url.bootstrap}: {self._url.owners} was not read in {TIMEOUT_S:.0f} s")

    def write(self, key: bytes, value: bytes | None) -> int:
        """Write a record; return its Kafka offset. Raises KafkaUnusable."""
        offsets: list[int] = []

        def written(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())

        self._producer.produce(self._url.owners, key=key, value=value, partition=0, on_delivery=written)
        self._producer.flush(TIMEOUT_S)
        if not offsets:
            raise KafkaUnusable(f"{self._url.bootstrap}: {self._url.owners} takes no record")
        return offsets[0]

    def start(self, deliver: Deliver) -> None:
        """Read on from where `read` has ended, on a thread, until `close`, and write what is told."""

        def run() -> None:
            while not self._is_over.is_set():
                self._turn(deliver)

        self._thread = threading.Thread(target=run, name="kafka-registry", daemon=True)
        self._thread.start()

    def _turn(self, deliver: Deliver) -> None:
        with suppress(KafkaException, RuntimeError):  # it is read on as soon as Kafka answers again
            messages = self._consumer.consume(AT_ONCE, POLL_S)
            found = [_record(message) for message in messages if message.error() is None]
            if found:
                deliver(found)
        self._send()

    def _made(self) -> Producer:
        return Producer({**self._url.client, "acks": "all", "enable.idempotence": True})

    def _send(self) -> None:
        """Send what was told; what cannot be sent for a moment stays in the outbox."""
        with suppress(KafkaException, RuntimeError, MemoryError):
            while self._outbox and self._is_taken(self._outbox[0]):
                self._outbox.popleft()
            self._producer.poll(0)

    def _is_taken(self, told: _Told) -> bool:
        """Return whether the client takes a record. Raises KafkaException where there is no other client for one that
        does not go on."""
        delivered = partial(self._on_delivered, told)
        try:
            self._producer.produce(
                self._url.owners, key=told.key, value=told.value, partition=0, on_delivery=delivered
            )
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].fatal():
                self._begin_anew()
            return False
        return True

    def _begin_anew(self) -> None:
        """Send what Kafka has not confirmed with another producer: an idempotent one does not go on after some errors."""
        self._producer = self._made()
        with self._telling:
            self._outbox = deque(self._newest.values())

    def _on_delivered(self, told: _Told, error: KafkaError | None, _message: object) -> None:
        """Send again what Kafka has not taken, as long as nothing newer was told. Runs on the thread that polls."""
        with self._telling:
            if self._newest.get(told.key) is not told:
                return
            if error is None:
                del self._newest[told.key]
            else:
                self._outbox.append(told)

    def tell(self, key: bytes, value: bytes | None) -> None:
        """Have a record written soon. May be called on any thread."""
        told = _Told(key, value)
        with self._telling:
            self._newest[key] = told
            self._outbox.append(told)

    def close(self) -> None:
        """Write what is left, and read no more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(FLUSH_S)
        self._send()
        self._producer.flush(FLUSH_S)
        self._consumer.close()


def roster_now(url: ClusterUrl, topic_id: str) -> Roster:
    """Return the roster of a cluster as it is now. Raises KafkaUnusable."""
    registry = Registry(url)
    try:
        return _roster_of(registry, topic_id)
    finally:
        registry.close()


def _roster_of(registry: Registry, topic_id: str) -> Roster:
    roster = Roster(topic_id)
    roster.take_all(registry.read())
    return roster


def remove_node(url: ClusterUrl, topic_id: str, name: str) -> str:
    """Take back what a node that does not come back has told of itself, and return where it was reached. Raises
    UnknownNode, NodeLives, KafkaUnusable."""
    registry = Registry(url)
    try:
        roster = _roster_of(registry, topic_id)
        known = roster.nodes.get(name)
        if known is None:
            raise UnknownNode(name, sorted(roster.nodes))
        if any(node_of(member) == name for member in members_of(url, group_of(url.shards))):
            raise NodeLives(name, known.entry.peer)
        registry.write(node_key(name), None)
        return known.entry.peer
    finally:
        registry.close()


def presence_now(url: ClusterUrl, topic_id: str, shards: int) -> Presence:
    """Return who is there and owns what, as of now. Raises KafkaUnusable."""
    return presence(roster_now(url, topic_id), shards, members_of(url, group_of(url.shards)))


def _record(message: Any) -> Record:
    return message.offset(), message.key(), message.value()


def members_of(url: ClusterUrl, group: str) -> dict[str, list[int]]:
    """Return the members of a group of Kafka, by the name that each has given itself, with the partitions that it is
    named for. A Kafka that has never had a group makes what it needs for one when it is asked first, and says meanwhile
    that it cannot answer: so it is asked again. Raises KafkaUnusable."""
    admin = AdminClient(url.client)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return _members(admin, group)
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            if time.monotonic() >= deadline:
                raise KafkaUnusable(
                    f"{url.bootstrap}: group {group}: {reason.str() or reason.name()}"
                ) from error
        time.sleep(AGAIN_S)


def _members(admin: AdminClient, group: str) -> dict[str, list[int]]:
    (future,) = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S).values()
    members: dict[str, list[int]] = {}
    for member in future.result().members:
        places = [] if member.assignment is None else member.assignment.topic_partitions
        members.setdefault(member.client_id, []).extend(place.partition for place in places)
    return members
