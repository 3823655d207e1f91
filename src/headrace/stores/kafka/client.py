"""Kafka's clients for the topics of a store: one producer, one reader for what is read back, one for what is looked at.

Nothing here holds up the loop. The library calls back on threads of its own, from where answers are passed on to it; a
reader reads on one thread, by one consumer that is assigned to one topic at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.stores.kafka.address import KafkaAddress
from headrace.stores.kafka.record import Found, Headers, found_in

ASKED_S: Final = 10.0  # for an answer about topics
REPORTED_S: Final = 10.0  # for what is put
READ_S: Final = 5.0  # for the next records of a reading
RESTS_AFTER_S: Final = 1.0
POLL_S: Final = 0.2
RECORDS_MAX: Final = 2000  # of one reading
BYTES_MAX: Final = 4 << 20
RECORD_BYTES_MAX: Final = 4 << 20
PARTITION: Final = 0
SETTLING: Final = 50  # times that a topic is asked for again that not all brokers know yet
SETTLING_S: Final = 0.1
_SETTLING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
Record = tuple[bytes | None, bytes | None, Headers]


def settings_of(address: KafkaAddress, **more: object) -> dict[str, Any]:
    """Return the settings of a client."""
    return {
        **dict(address.properties),
        "bootstrap.servers": address.bootstrap,
        "log_level": 0,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        **more,
    }


class Batch:
    """Records that are put together; `offsets` has where each one is, -1 for one that is not known to be anywhere."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.offsets = [-1] * count
        self.errors: list[KafkaError] = []
        self.done: asyncio.Future[None] = loop.create_future()
        self._left = count
        self._loop = loop
        self._lock = threading.Lock()

    def delivered(self, at: int, error: KafkaError | None, offset: int | None) -> None:
        """Note what became of one record. Runs on the thread of the producer."""
        if error is not None:
            self.errors.append(error)
        elif offset is not None:
            self.offsets[at] = offset
        self.less(1)

    def less(self, count: int) -> None:
        """Wait for so many fewer."""
        with self._lock:
            self._left -= count
            if self._left:
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class TopicProducer:
    """A producer for all topics, and the thread that waits for its reports."""

    def __init__(self, address: KafkaAddress) -> None:
        self._is_over = False
        self._producer = Producer(
            settings_of(
                address,
                **{
                    "acks": "all",
                    "enable.idempotence": True,
                    "linger.ms": 3,
                    "message.timeout.ms": int(REPORTED_S * 1000),
                    "message.max.bytes": RECORD_BYTES_MAX,
                    "queue.buffering.max.kbytes": 64 * 1024,
                    "topic.metadata.propagation.max.ms": 5000,
                },
            )
        )
        self._thread = threading.Thread(target=self._serve, name="kafka-store", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over:
            self._producer.poll(POLL_S)
        self._producer.poll(0)

    def put(self, topic: str, records: Sequence[Record]) -> Batch:
        """Append records to a topic, in order. What cannot be handed to the library counts as an error."""
        batch = Batch(len(records), asyncio.get_running_loop())
        for at, (key, value, headers) in enumerate(records):

            def delivered(error: KafkaError | None, message: Any, at: int = at) -> None:
                batch.delivered(at, error, message.offset())

            try:
                self._producer.produce(
                    topic, value, key, partition=PARTITION, headers=list(headers), on_delivery=delivered
                )
            except (BufferError, KafkaException) as error:
                reason = error.args[0] if isinstance(error, KafkaException) else None
                batch.errors.append(
                    reason if isinstance(reason, KafkaError) else KafkaError(KafkaError._QUEUE_FULL)
                )
                batch.less(len(records) - at)
                break
        return batch

    def close(self) -> None:
        """Forget what is not sent; the thread ends by itself."""
        self._is_over = True
        self._producer.purge(blocking=False)


class TopicReader:
    """A consumer that belongs to no group, and the thread that it reads on."""

    def __init__(self, address: KafkaAddress, name: str) -> None:
        self._settings = settings_of(
            address,
            **{
                "group.id": f"{address.prefix}-headrace",  # the library wants one, and never joins it
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 5,  # it asks while something is read, and a while longer
                "fetch.message.max.bytes": BYTES_MAX,
                "queued.max.messages.kbytes": 16 * 1024,
                "allow.auto.create.topics": False,
            },
        )
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._consumer: Consumer | None = None
        self._at: tuple[str, int] | None = None  # where it would go on by itself
        self._heard_of: set[str] = set()  # topics that the consumer knows of
        self._readings = 0
        self._is_over = False

    async def read(
        self, topic: str, start: int, end: int, wanted: bool, most: int = RECORDS_MAX
    ) -> list[Found]:
        """Read some records between two offsets: one at least. `wanted`: with their entries. Raises KafkaException,
        TimeoutError."""
        loop = asyncio.get_running_loop()
        self._readings += 1
        loop.call_later(RESTS_AFTER_S, self._rest_after, self._readings)
        return await loop.run_in_executor(self._executor, self._read, topic, start, end, wanted, most)

    def _rest_after(self, readings: int) -> None:
        """Have the consumer ask for nothing, if nothing was read since so many readings."""
        if readings == self._readings and not self._is_over:
            self._executor.submit(self._rest)

    def _rest(self) -> None:
        self._at = None
        if self._consumer is not None:
            self._consumer.unassign()

    def _read(self, topic: str, start: int, end: int, wanted: bool, most: int) -> list[Found]:
        try:
            return self._read_at(topic, start, end, wanted, most)
        except Exception:
            self._leave()
            raise

    def _read_at(self, topic: str, start: int, end: int, wanted: bool, most: int) -> list[Found]:
        consumer = self._consumer = self._consumer or Consumer(self._settings)
        if topic not in self._heard_of:  # else the library hears of it with its next round, a second later
            consumer.list_topics(topic, timeout=READ_S)
            self._heard_of.add(topic)  # as the consumer does, for as long as it lives
        if self._at != (topic, start):
            consumer.assign([TopicPartition(topic, PARTITION, start)])
        self._at = None
        end = min(end, start + most)
        found: list[Found] = []
        size, at, waited_s = 0, start, 0.0
        while at < end and size < BYTES_MAX:
            messages = consumer.consume(min(256, end - at), POLL_S)
            for message in messages:
                size += _add(found, message, end, wanted)
            at = found[-1].offset + 1 if found else start
            if not messages and found:
                break
            waited_s = 0.0 if messages else waited_s + POLL_S
            if waited_s >= READ_S or self._is_over:
                raise TimeoutError(f"{topic} gave nothing within {READ_S:g} s")
        self._at = topic, at
        return found

    def _leave(self) -> None:
        """Give the consumer up: the next reading has another one."""
        consumer, self._consumer, self._at = self._consumer, None, None
        self._heard_of.clear()
        if consumer is not None:
            consumer.close()

    def close(self) -> None:
        """Read nothing more; the thread ends by itself."""
        self._is_over = True
        with contextlib.suppress(RuntimeError):
            self._executor.submit(self._leave)
        self._executor.shutdown(wait=False)


def _add(found: list[Found], message: Message, end: int, wanted: bool) -> int:
    """Add what a record below the offset `end` is, and return how long it is. Raises KafkaException."""
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    value: Any = message.value()
    headers: Any = message.headers()
    offset = message.offset()
    if offset is None or offset >= end:
        return 0
    found.append(found_in(offset, headers, value, wanted))
    return len(value or b"")


class TopicAdmin:
    """What is asked about topics, and done to them. All of it raises KafkaException."""

    def __init__(self, address: KafkaAddress, config: dict[str, str]) -> None:
        """Begin; topics that are made get the settings `config`."""
        self._replication = address.replication
        self._config = config
        self._admin = AdminClient(settings_of(address))

    async def reach(self) -> None:
        """Return once Kafka has answered."""
        await asyncio.wrap_future(self._admin.describe_cluster(request_timeout=ASKED_S / 2))

    async def describe(self, topic: str) -> tuple[str, int] | None:
        """Return the id of a topic and how many partitions it has, None if there is none:
        whoever makes topics says so."""
        for _ in range(SETTLING):
            futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ASKED_S)
            try:
                described = await asyncio.wrap_future(futures[topic])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                return str(described.topic_id), len(described.partitions)
            if not await self._exists(topic):
                return None
            await asyncio.sleep(SETTLING_S)  # whoever was asked has not heard of it yet
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    async def _exists(self, topic: str) -> bool:
        """Return whether making a topic would find one of its name."""
        new = NewTopic(topic, 1, self._replication)
        futures = self._admin.create_topics([new], request_timeout=ASKED_S, validate_only=True)
        try:
            await asyncio.wrap_future(futures[topic])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return True
            raise
        return False

    async def make(self, topics: list[str]) -> None:
        """Make topics; one that is there already is left as it is."""
        new = [NewTopic(topic, 1, self._replication, config=self._config) for topic in topics]
        futures = self._admin.create_topics(new, operation_timeout=ASKED_S, request_timeout=ASKED_S)
        for future in futures.values():
            try:
                await asyncio.wrap_future(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    async def ends(self, topic: str) -> tuple[int, int]:
        """Return the first offset of a topic, and the one behind its last."""
        return await self._offset(topic, OffsetSpec.earliest()), await self._offset(
            topic, OffsetSpec.latest()
        )

    async def _offset(self, topic: str, spec: Any) -> int:
        for left in reversed(range(SETTLING)):
            futures = self._admin.list_offsets(
                {TopicPartition(topic, PARTITION): spec}, request_timeout=ASKED_S
            )
            (future,) = futures.values()
            try:
                return int((await asyncio.wrap_future(future)).offset)
            except KafkaException as error:
                if error.args[0].code() not in _SETTLING or not left:
                    raise
            await asyncio.sleep(SETTLING_S)
        raise AssertionError("unreachable")

    async def delete_records(self, topic: str, offset: int) -> None:
        """Delete what is below an offset."""
        futures = self._admin.delete_records([TopicPartition(topic, PARTITION, offset)])
        for future in futures.values():
            await asyncio.wrap_future(future)

    async def delete(self, topic: str) -> None:
        """Delete a topic, if it is there."""
        futures = self._admin.delete_topics([topic], request_timeout=ASKED_S)
        try:
            await asyncio.wrap_future(futures[topic])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    async def named(self) -> list[str]:
        """Return the names of all topics."""
        loop = asyncio.get_running_loop()
        listed = await loop.run_in_executor(None, self._list)
        return sorted(listed.topics)

    def _list(self) -> Any:
        return self._admin.list_topics(timeout=ASKED_S)
