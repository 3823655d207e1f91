"""One source: publishes what a topic of Kafka gets, partition by partition in order. Runs on a thread of its own.

Each partition is an idempotent producer of the broker: its id is Kafka's own name of the topic and the partition, the
sequence the offset. So what is read again, since the process was killed before Kafka had the position, is acknowledged
and not stored again. Each partition has a connection of its own, whose client id belongs to it: who takes the partition
over ends the connection of who had it. The position goes to Kafka when everything below it is acknowledged.

What the broker refuses for good (a topic that is none, a message that is too large, what the user may not do) is passed
over and counted: one record must not stop the others. Everything else is tried again, with all that is behind it.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.address import locate_remote
from headrace.backoff import Backoff
from headrace.clients.mqtt import MqttClient
from headrace.errors import HeadraceError
from headrace.kafka.figures import SourceFigures
from headrace.kafka.source_settings import PORTS, SourceSettings
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties

RECORDS_MAX: Final = 500  # that are published before the position goes to Kafka
POLL_S: Final = 0.5
WAIT_S: Final = 10.0  # for one answer of Kafka
PUBLISH_S: Final = 60.0  # for one round of records
PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
FAILED_BYTES: Final = 512  # beside topic, properties and payload of a PUBLISH: less than that
REFUSED_FOR_GOOD: Final = (
    rc.NOT_AUTHORIZED,
    rc.TOPIC_NAME_INVALID,
    rc.PAYLOAD_FORMAT_INVALID,
    rc.PACKET_TOO_LARGE,
)


class SourceTrouble(HeadraceError):
    """Kafka, or the broker, does not do what the source needs."""


class Source:
    """A source, with its consumer in Kafka and its connections to the broker."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.figures = SourceFigures(settings.name)
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Have `run` return soon: what is not acknowledged is published again by the next one."""
        self._is_stopping.set()

    def run(self) -> None:
        """Publish until `stop`."""
        pauses = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        while not self._is_stopping.is_set():
            began_s = time.monotonic()
            try:
                asyncio.run(self._follow())
            except KafkaException as error:
                first = error.args[0]
                self.figures.trouble = first.str() if isinstance(first, KafkaError) else str(first)
            except (HeadraceError, OSError, MemoryError) as error:
                self.figures.trouble = str(error) or type(error).__name__
            finally:
                self.figures.is_up = False
            pauses.lasted(time.monotonic() - began_s)
            self._is_stopping.wait(pauses.next_s())

    async def _follow(self) -> None:
        consumer = Consumer(consumer_of(self.settings))
        partitions: dict[int, Partition] = {}
        try:
            topic_id = self._topic_id()
            consumer.subscribe([self.settings.kafka_topic])
            while not self._is_stopping.is_set():
                found = consumer.consume(RECORDS_MAX, POLL_S)
                self.figures.is_up, self.figures.trouble = True, ""
                if found:
                    await self._round(consumer, _by_partition(found), partitions, topic_id)
                self.figures.lag_records = _lag(consumer)
        finally:
            for one in partitions.values():
                await one.close()
            consumer.close()

    async def _round(
        self,
        consumer: Consumer,
        records: dict[int, list[Any]],
        partitions: dict[int, Partition],
        topic_id: str,
    ) -> None:
        """Publish records, each partition beside the others, then have Kafka keep the positions."""
        for number in records:
            if number not in partitions:
                partitions[number] = Partition(self.settings, topic_id, number, self.figures)
        try:
            async with asyncio.timeout(PUBLISH_S):
                await asyncio.gather(*(partitions[n].publish(found) for n, found in records.items()))
        except TimeoutError:
            raise SourceTrouble(f"{self.settings.url} acknowledges nothing") from None
        topic = self.settings.kafka_topic
        behind = [TopicPartition(topic, n, found[-1].offset() + 1) for n, found in records.items()]
        await asyncio.to_thread(consumer.commit, offsets=behind, asynchronous=False)

    def _topic_id(self) -> str:
        """Return Kafka's own name of the topic: one that is made again has another one. Raises SourceTrouble."""
        topic = self.settings.kafka_topic
        common: dict[str, Any] = {"bootstrap.servers": ",".join(self.settings.servers), "log_level": 0}
        admin = AdminClient({**self.settings.client, **common})
        try:
            found = admin.describe_topics(TopicCollection([topic]), request_timeout=WAIT_S)[topic].result()
        except KafkaException as error:
            raise SourceTrouble(f"topic {topic} of Kafka: {error.args[0].str()}") from None
        return str(found.topic_id)


class Partition:
    """One partition of a source, and its connection to the broker."""

    def __init__(self, settings: SourceSettings, topic_id: str, number: int, figures: SourceFigures) -> None:
        self._settings = settings
        self._producer = f"{topic_id}-{number}"
        self._client_id = f"headrace-source-{settings.name}-{number}"
        self._figures = figures
        self._client: MqttClient | None = None

    async def publish(self, records: Sequence[Any]) -> None:
        """Publish records in order, and wait until each is acknowledged, or refused for good. Raises HeadraceError,
        OSError."""
        left = list(records)
        while left:
            client = await self._connected()
            done = await asyncio.gather(*(self._one(client, record) for record in left))
            refused = next((n for n, code in enumerate(done) if code >= rc.UNSPECIFIED_ERROR), None)
            if refused is None:
                self._figures.records += len(left)
                return
            code = done[refused]
            if code not in REFUSED_FOR_GOOD:
                raise SourceTrouble(f"{self._settings.url} takes nothing: {rc.name(code)}")
            self._figures.records += refused
            self._figures.refused += 1
            left = left[refused + 1 :]
            await self.close()  # what is behind a refused one is refused on this connection

    async def _one(self, client: MqttClient, record: Any) -> int:
        """Publish one record; returns the reason code of its acknowledgement."""
        topic, payload = self._settings.topic_of(record.key()), record.value() or b""
        if not topic:
            return rc.TOPIC_NAME_INVALID
        properties = self._properties(record).encode()
        size = len(topic) + len(payload) + len(properties) + FAILED_BYTES
        if size > (client.properties.maximum_packet_size or size):
            return rc.PACKET_TOO_LARGE
        return await client.publish(topic, payload, 1, self._settings.retain, properties)

    def _properties(self, record: Any) -> Properties:
        found = Properties()
        offset = record.offset()
        found.user_properties = [
            ("producer-id", self._producer),
            ("producer-sequence", str(offset + 1)),
            ("message-id", f"{self._producer}-{offset}"),
            ("kafka-topic", self._settings.kafka_topic),
            ("kafka-partition", str(record.partition())),
            ("kafka-offset", str(offset)),
        ]
        return found

    async def _connected(self) -> MqttClient:
        """Return the connection; one that is lost is opened again. Raises HeadraceError, OSError."""
        if self._client is not None and self._client.lost is None:
            return self._client
        settings = self._settings
        where = locate_remote(settings.url, PORTS)
        tls = ssl.create_default_context(cafile=settings.ca_file or None) if where.encrypted else None
        password = _first_line(settings.password_file) if settings.password_file else None
        connect = Connect(5, self._client_id, True, 0, settings.username or None, password)
        client = MqttClient(where.host, where.port, connect, tls=tls)
        await client.open()
        self._client = client
        return client

    async def close(self) -> None:
        """Say goodbye."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def consumer_of(settings: SourceSettings) -> dict[str, Any]:
    """Return the settings of a source's consumer."""
    return {
        **settings.client,
        "bootstrap.servers": ",".join(settings.servers),
        "group.id": settings.group,
        "enable.auto.commit": False,
        "auto.offset.reset": settings.start,
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 16 * 1024,
        "log_level": 0,
    }


def check_source(settings: SourceSettings) -> None:
    """Raise SourceTrouble unless the library can make a consumer with these settings. Connects to nobody for long."""
    try:
        Consumer(consumer_of(settings)).close()
    except (KafkaException, ValueError, TypeError) as error:
        first = error.args[0]
        raise SourceTrouble(first.str() if isinstance(first, KafkaError) else str(first)) from None


def _by_partition(found: Sequence[Any]) -> dict[int, list[Any]]:
    """Return records by partition. Raises KafkaException for an error that came in the place of one."""
    records = defaultdict[int, list[Any]](list)
    for one in found:
        error = one.error()
        if error is not None:
            raise KafkaException(error)
        records[one.partition()].append(one)
    return dict(records)


def _lag(consumer: Consumer) -> int:
    """Return how many records are behind where it is, as far as the consumer was told."""
    lag = 0
    for place in consumer.position(consumer.assignment()):
        _, end = consumer.get_watermark_offsets(place, cached=True)
        if place.offset >= 0 and end > place.offset:
            lag += end - place.offset
    return lag


def _first_line(file: str) -> bytes:
    """Return the first line of a password file. Raises OSError."""
    return Path(file).read_bytes().partition(b"\n")[0].rstrip(b"\r")
