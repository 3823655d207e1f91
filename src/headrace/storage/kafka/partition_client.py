"""Kafka's clients for one shard's partition: a producer that can be given up, a reader, deletions.

`PartitionClient` does what an owner wants done (`actions`): its methods are called on the loop, or on the thread that
recovers a shard, and never wait for Kafka. What Kafka answers is told on threads of their own: one for each producer,
which does nothing but wait for reports, and one that reads when it is asked to. Whoever is told passes it on to the loop.

A client that cannot be made, for want of threads or memory, is made later: the append that needed it is reported as
failed, and the reading begins again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.backoff import Backoff
from headrace.storage.kafka.cluster_state import RECORD_BYTES_MAX
from headrace.storage.kafka.cluster_url import Client
from headrace.storage.kafka.mailbox import Hearer, Records
from headrace.storage.kafka.owner import REPORTED_WITHIN_S, TOO_LARGE

POLL_S: Final = 0.2  # after so long a producer that was given up is gone
ASK_S: Final = 5.0  # for one answer about the ends of the partition
PAUSE_S: Final = 0.1  # after one that did not come
LONGEST_PAUSE_S: Final = 5.0
READ_S: Final = 0.5  # for so long one call waits for records
READ_RECORDS: Final = 64  # that one call takes at most
HANDED_OVER_MAX: Final = 2  # calls whose records nobody has taken yet
ENDS_WITHIN_S: Final = 5.0
MIB: Final = 1 << 20


class PartitionClient:
    """The clients of one partition."""

    def __init__(self, client: Client, topic: str, partition: int, hearer: Hearer) -> None:
        """Reach `partition` of `topic` by clients with the settings `client`. Connects when something is to be done."""
        self._client = client
        self._topic = topic
        self._partition = partition
        self._hearer = hearer
        self._appender: _Appender | None = None
        self._reader = _Reader(client, topic, partition, hearer)
        self._admin: AdminClient | None = None

    def append(self, token: int, value: bytes) -> None:
        """Append a record."""
        try:
            if self._appender is None:
                self._appender = _Appender(self._client, self._topic, self._partition, self._hearer)
        except _NOT_NOW as error:
            self._hearer.on_report(token, None, f"a client of Kafka cannot be made now: {error}")
            return
        self._appender.append(token, value)

    def purge(self) -> None:
        """Give up the producer with everything that it has under way; some of it may still be appended."""
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.give_up()

    def read(self, reading: int, offset: int) -> None:
        """Read from `offset` to the end of the partition. An earlier reading ends."""
        self._reader.read(reading, offset)

    def taken(self) -> None:
        """Note that the records of one call of `on_records` are taken."""
        self._reader.taken()

    def delete(self, offset: int) -> None:
        """Delete what the partition has below `offset`. What fails is told, and is done with the next one."""
        place = TopicPartition(self._topic, self._partition, offset)
        try:
            if self._admin is None:
                self._admin = AdminClient(dict(self._client))
            futures = self._admin.delete_records([place]).values()
        except _NOT_NOW as error:
            self._not_deleted(error)
            return
        for future in futures:
            future.add_done_callback(self._deleted)

    def _deleted(self, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self._not_deleted(error)

    def _not_deleted(self, error: BaseException) -> None:
        self._hearer.on_trouble(f"records that nobody needs were not deleted: {error}")

    def close(self) -> None:
        """End all threads; those that wait for Kafka end a little later."""
        self.purge()
        self._reader.stop()


class _Appender:
    """One producer, and the thread that waits for its reports."""

    def __init__(self, client: Client, topic: str, partition: int, hearer: Hearer) -> None:
        self._topic = topic
        self._partition = partition
        self._hearer = hearer
        self._is_given_up = False
        self._producer = Producer(
            {
                **client,
                "acks": "all",
                "enable.idempotence": True,  # the library sends again in order, and hardly ever twice
                "linger.ms": 0,
                "message.timeout.ms": int(REPORTED_WITHIN_S * 1000),
                "message.max.bytes": RECORD_BYTES_MAX + MIB,  # what the topic takes is the topic's to say
                "queue.buffering.max.kbytes": 64 * 1024,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 1000,
                "socket.nagle.disable": True,
            }
        )
        self._thread = threading.Thread(
            target=_wait_for_reports,
            args=(self._producer, lambda: self._is_given_up),
            name="kafka-producer",
            daemon=True,
        )
        self._thread.start()

    def append(self, token: int, value: bytes) -> None:
        """Hand a record to the library, which sends it at once."""
        try:
            self._producer.produce(
                self._topic, value, partition=self._partition, on_delivery=partial(self._delivered, token)
            )
        except BufferError as error:
            self._hearer.on_report(token, None, str(error))
        except KafkaException as error:
            self._hearer.on_report(token, None, _reason_of(error.args[0]))

    def _delivered(self, token: int, error: KafkaError | None, message: Any) -> None:
        """Tell what became of a record. Runs on the thread of the producer."""
        if error is not None:
            self._hearer.on_report(token, None, _reason_of(error))
            return
        offset = message.offset()
        self._hearer.on_report(token, None if offset is None or offset < 0 else offset, "")

    def give_up(self) -> None:
        """Let the library forget what it has not sent, and what it waits for; its thread ends."""
        self._is_given_up = True
        self._producer.purge(blocking=False)


def _wait_for_reports(producer: Producer, is_given_up: Callable[[], bool]) -> None:
    """Call back for each report until the producer is given up. Runs on a thread of its own, which holds the producer to
    its end: to take it down may take a moment, and nobody else is to wait for that."""
    while not is_given_up():
        producer.poll(POLL_S)
    producer.poll(0)  # what was forgotten is told too, and lets go of what it holds


class _Reader:
    """A consumer without a group, and the thread that reads by it when it is asked to."""

    def __init__(self, client: Client, topic: str, partition: int, hearer: Hearer) -> None:
        self._topic = topic
        self._partition = partition
        self._hearer = hearer
        self._config: dict[str, Any] = {
            **client,
            "group.id": f"{topic}-readers",  # the library wants one, and never joins it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 4 * MIB,  # a larger record comes all the same, alone
            "queued.max.messages.kbytes": 32 * 1024,
        }
        self._condition = threading.Condition()
        self._wanted: tuple[int, int] | None = None
        self._under_way: tuple[int, int] | None = None
        self._pauses = Backoff(
            PAUSE_S, LONGEST_PAUSE_S
        )  # before another client takes the place of one that failed
        self._newest = 0
        self._is_stopped = False
        self._room = threading.Semaphore(HANDED_OVER_MAX)
        self._thread: threading.Thread | None = None

    def read(self, reading: int, offset: int) -> None:
        """Begin a reading, and end the one before."""
        with self._condition:
            self._wanted = reading, offset
            self._newest = reading
            self._condition.notify()
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._serve, name="kafka-reader", daemon=True)
        try:
            thread.start()
        except _NOT_NOW as error:  # whoever waits for this reading asks for another one
            self._hearer.on_trouble(f"the partition cannot be read now: {error}")
        else:
            self._thread = thread

    def taken(self) -> None:
        """Let one more call's records be handed over."""
        self._room.release()

    def stop(self) -> None:
        """End the thread."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()

    def _serve(self) -> None:
        """Read what is wanted until the end. A client that fails is given up, and the reading that it had begins anew by
        another one."""
        while not self._is_stopped:
            try:
                self._serve_by(Consumer(self._config))
            except Exception as error:  # noqa: BLE001  the thread is all there is to read by
                self._hearer.on_trouble(f"the partition cannot be read now: {error}")
                with self._condition:
                    self._wanted = self._wanted or self._under_way
                    self._condition.wait_for(lambda: self._is_stopped, self._pauses.next_s())

    def _serve_by(self, consumer: Consumer) -> None:
        try:
            while (wanted := self._next()) is not None:
                self._under_way = wanted
                self._run(consumer, *wanted)
                self._under_way = None
                self._pauses.lasted(LONGEST_PAUSE_S)
        finally:
            consumer.close()

    def _next(self) -> tuple[int, int] | None:
        """Wait for what is to be read next; None at the end."""
        with self._condition:
            while self._wanted is None and not self._is_stopped:
                self._condition.wait()
            wanted, self._wanted = self._wanted, None
            return None if self._is_stopped else wanted

    def _is_wanted(self, reading: int) -> bool:
        return reading == self._newest and not self._is_stopped

    def _pause(self, reading: int) -> None:
        """Wait a little, unless something else is wanted meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: not self._is_wanted(reading), PAUSE_S)

    def _run(self, consumer: Consumer, reading: int, offset: int) -> None:
        """Tell the records from `offset` on, up to what is the end now."""
        ends = self._ends(consumer, reading)
        if ends is None:
            return
        start, end = ends
        if offset < start:
            self._hearer.on_missing(reading, start)
            return
        if offset < end:
            consumer.assign([TopicPartition(self._topic, self._partition, offset)])
            try:
                is_read = self._read_on(consumer, reading, offset, end)
            finally:
                consumer.unassign()
            if not is_read:
                return
        self._hearer.on_end(reading, end)

    def _ends(self, consumer: Consumer, reading: int) -> tuple[int, int] | None:
        """Ask Kafka where the partition begins and ends, until it says so; None once something else is wanted. The end is
        the high watermark, and a new leader that does not know it yet gives no answer."""
        place = TopicPartition(self._topic, self._partition)
        while self._is_wanted(reading):
            try:
                found = consumer.get_watermark_offsets(place, timeout=ASK_S, cached=False)
            except KafkaException:
                found = None
            if found is not None:
                return found
            self._pause(reading)
        return None

    def _read_on(self, consumer: Consumer, reading: int, at: int, end: int) -> bool:
        """Tell the records from `at` up to `end`. Returns False once something else is wanted, or they are gone."""
        while at < end:
            if not self._is_wanted(reading):
                return False
            records: Records = []
            for message in consumer.consume(min(READ_RECORDS, end - at), READ_S):
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    records.append((offset, message.value()))
                    at = offset + 1
                elif error.code() in _OUT_OF_RANGE:
                    self._hearer.on_trouble(f"offset {at} of the partition cannot be read: {error.str()}")
                    return self._lacks(consumer, reading, at)
            if records and not self._hand_over(reading, records):
                return False
        return True

    def _lacks(self, consumer: Consumer, reading: int, at: int) -> bool:
        """Tell how the partition lies by now, which does not have `at`: deleted below it, or cut. Returns False."""
        ends = self._ends(consumer, reading)
        if ends is not None:
            start, end = ends
            if at < start:
                self._hearer.on_missing(reading, start)
            else:
                self._hearer.on_end(reading, end)
        return False

    def _hand_over(self, reading: int, records: Records) -> bool:
        """Tell records once there is room for them. Returns False if something else is wanted before."""
        while not self._room.acquire(timeout=PAUSE_S):
            if not self._is_wanted(reading):
                return False
        self._hearer.on_records(reading, records)
        return True


_NOT_NOW: Final = (
    KafkaException,
    RuntimeError,
    OSError,
    MemoryError,
)  # RuntimeError: no thread can be started
_OUT_OF_RANGE: Final = (
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
)


def _reason_of(error: KafkaError) -> str:
    """Return why a record was not appended, in the words that the owner knows."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return TOO_LARGE
    return f"Kafka has not taken a record: {error.str()}"
