"""The producer of one sink at one shard, whose transactions hold the records and the position behind them.

A producer lives until something goes wrong, whatever it is, and the next one begins with what Kafka says: to begin fences
the one before, ends the transaction that it has left, and only then the position is read. So nobody has to know what
became of a transaction whose answer did not come. All calls wait, for `WAIT_S` at most each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka.errors import SinkFenced, SinkTrouble
from headrace.kafka.position import Position
from headrace.kafka.rendering import Rendered
from headrace.kafka.settings import SinkSettings

WAIT_S: Final = 10.0  # for one answer of Kafka
TRANSACTION_S: Final = 30.0  # after so long Kafka gives up the transaction of who is gone, and readers go on
POSITION_S: Final = 2 * TRANSACTION_S  # another sink's transaction may stand before the position
_POLL_S: Final = 0.5
_PARTITION: Final = 0  # of the positions' topic: it has one
_ROOM: Final = 1 << 16  # beside what the largest record has
_FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)


def client_of(settings: SinkSettings) -> dict[str, Any]:
    """Return the settings of every client that a sink makes."""
    return {**settings.client, "bootstrap.servers": ",".join(settings.servers), "log_level": 0}


def check_client(settings: SinkSettings) -> None:
    """Raise SinkTrouble unless the library can make a client with these settings. Connects to nobody."""
    try:
        AdminClient(client_of(settings))
    except (KafkaException, ValueError, TypeError) as error:
        raise SinkTrouble(reason_of(error)) from None


class Transactions:
    """One producer. `position` is where Kafka has the sink, None where it has never been."""

    def __init__(self, settings: SinkSettings, transactional_id: str) -> None:
        """Begin, and fence who was there before. Raises SinkTrouble."""
        self._settings = settings
        self._id = transactional_id
        self._failed: KafkaError | None = None
        with _told():
            self._producer = Producer(
                client_of(settings)
                | {
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": int(TRANSACTION_S * 1000),
                    "partitioner": "murmur2_random",  # as Java's clients divide keys
                    "linger.ms": 5,
                    "message.max.bytes": settings.record_bytes_max + _ROOM,
                }
            )
            self._require_topics()
            self._producer.init_transactions(WAIT_S)
            self.position = self._read_position()

    def _require_topics(self) -> None:
        """Raise SinkTrouble unless there is the topic of the sink; make that of positions where there is none."""
        wanted = self._settings.kafka_topic
        error = self._producer.list_topics(wanted, WAIT_S).topics[wanted].error
        if error is not None:
            raise SinkTrouble(f"topic {wanted} of Kafka: {error.str()}")
        positions = self._settings.positions_topic
        admin = AdminClient(client_of(self._settings))
        found = admin.list_topics(positions, WAIT_S).topics[positions]
        if found.error is None:
            if len(found.partitions) != 1:
                raise SinkTrouble(
                    f"topic {positions} of Kafka has {len(found.partitions)} partitions, not one"
                )
            return
        config = {"cleanup.policy": "compact", "segment.ms": str(3_600_000)}
        made = admin.create_topics([NewTopic(positions, num_partitions=1, config=config)])
        for future in made.values():
            try:
                future.result(WAIT_S)
            except KafkaException as fault:
                if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _read_position(self) -> Position | None:
        """Return the newest position under our id. Nobody writes another one: we have fenced who might."""
        place = TopicPartition(self._settings.positions_topic, _PARTITION, OFFSET_BEGINNING)
        common = client_of(self._settings) | {"group.id": "headrace-sinks", "enable.auto.commit": False}
        asking = Consumer(common | {"isolation.level": "read_uncommitted"})
        reading = Consumer(common | {"isolation.level": "read_committed", "enable.partition.eof": True})
        try:
            _, end = asking.get_watermark_offsets(place, timeout=WAIT_S)
            reading.assign([place])
            return self._newest(reading, end) if end else None
        finally:
            asking.close()
            reading.close()

    def _newest(self, reading: Consumer, end: int) -> Position | None:
        newest: bytes | None = None
        deadline = time.monotonic() + POSITION_S
        while time.monotonic() < deadline:
            record = reading.poll(_POLL_S)
            if record is None:
                continue
            error = record.error()
            if error is None:
                if record.key() == self._id.encode():
                    newest = record.value()
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif (record.offset() or 0) >= end:
                return None if newest is None else _unpacked(newest)
        raise SinkTrouble(f"topic {self._settings.positions_topic} of Kafka is not read to its end")

    def send(self, records: Sequence[Rendered], position: Position) -> None:
        """Write records, and the position behind them, in one transaction: when this returns, readers have all of it.
        Raises SinkTrouble, and then this is over: whether it was written is for the next one to find out."""
        with _told():
            self._producer.begin_transaction()
            for one in records:
                self._produce(
                    topic=self._settings.kafka_topic,
                    key=one.key,
                    value=one.value,
                    headers=one.headers,
                    timestamp=one.timestamp_ms,
                )
            self._produce(
                topic=self._settings.positions_topic,
                partition=_PARTITION,
                key=self._id.encode(),
                value=position.pack(),
            )
            left = self._producer.flush(WAIT_S)
            if self._failed is not None:
                raise KafkaException(self._failed)
            if left:
                raise SinkTrouble(f"Kafka has not taken {left} records within {WAIT_S:.0f} s")
            self._producer.commit_transaction(WAIT_S)

    def _produce(self, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(on_delivery=self._delivered, **record)
                return
            except BufferError:
                self._producer.poll(_POLL_S)
                if self._failed is not None:
                    raise KafkaException(self._failed) from None

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def close(self) -> None:
        """Give up whatever is under way; the next one fences it."""
        self._producer.purge()
        self._producer.poll(0)


def _unpacked(value: bytes) -> Position:
    try:
        return Position.unpack(value)
    except ValueError as error:
        raise SinkTrouble(str(error)) from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise what Kafka says as SinkTrouble."""
    try:
        yield
    except KafkaException as error:
        fault = error.args[0]
        if isinstance(fault, KafkaError) and fault.code() in _FENCED:
            raise SinkFenced(f"somebody else writes for this sink and shard: {fault.str()}") from error
        raise SinkTrouble(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """Return what an error of the library says, for people."""
    first = error.args[0] if error.args else error
    return str(first.str() if isinstance(first, KafkaError) else first)
