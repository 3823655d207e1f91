"""The store of queues in Kafka: a topic a client, a record a message, which any consumer of Kafka reads too (T2).

Kafka has no append on a condition. So what is in a topic is found out by reading it (`topic_log`), and each put is to
begin exactly at the end that is known; where it did not, or nobody knows whether it was done, the topic is read on before
anything else. All that is asked of one topic is done in order, one after the other. Deleting is deleting records from the
beginning of the topic, up to what some stream still needs; the topic goes once its session has ended and nothing was put
for `IDLE_S`. Runs on the loop. No answer is given from within a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from confluent_kafka import KafkaException

from headrace.backoff import Backoff
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    SAME,
    THERE,
    UNSURE,
    Context,
    Primary,
    QueueName,
    QueueStore,
    StoreCapabilities,
    StoreListener,
)
from headrace.core.ports.queue_store import Found as FoundInStream
from headrace.stores.kafka.address import KafkaAddress
from headrace.stores.kafka.client import RECORD_BYTES_MAX, Record, TopicAdmin, TopicProducer, TopicReader
from headrace.stores.kafka.record import Found, StreamKey, record_of
from headrace.stores.kafka.topic_log import StreamLog, TopicLog
from headrace.stores.names import KafkaNames

UNDER_WAY_MAX: Final = 8 << 20  # bytes of entries without an answer
READ_MAX: Final = 128  # entries of one read
SCAN_TOPICS: Final = 20  # of one scan
IDLE_S: Final = 60.0  # behind the end of a session, until its topic goes
LOOK_S: Final = 5.0  # between two looks whether Kafka answers
AGAIN_S: Final = (0.1, 1.0)
JOB_S: Final = 25.0  # then whoever asked has given it up
NAMED_MAX: Final = 3  # topics that `doubt` names

KAFKA_CAPABILITIES: Final = StoreCapabilities(
    "kafka",
    atomic_put=False,
    dense_ids=True,
    tells_primary=False,
    waits_for_replicas=True,
    forgets_ms=0,  # what min.insync.replicas lose together is another matter: no time bounds that
    entry_bytes_max=1 << 20,
    put_bytes_max=256 << 10,
    put_entries_max=128,
    keeps_context=False,
)

Job = Callable[["Topic"], Coroutine[Any, Any, None]]


class RefusedTopic(Exception):
    """A topic that must not be put into. `fault` is a word for the metrics."""

    def __init__(self, fault: str, why: str, of: str) -> None:
        super().__init__(why)
        self.fault = fault
        self.of = of  # what it is true of: a topic, or a tenant


class KafkaCounters:
    """What went wrong, by its name, since the start."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.unsettled: dict[str, int] = {}
        self.commands = 0

    def note(self, fault: str) -> None:
        """Count a fault."""
        self.faults[fault] = self.faults.get(fault, 0) + 1


class Topic:
    """The topic of a client: what is known of it, and what is still to be done in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: TopicLog | None = None
        self.is_known = False  # `log` is all that there is; None: there is no topic
        self.is_served = False
        self.jobs: deque[tuple[Job, Callable[[int], None]]] = deque()


class KafkaStore(QueueStore):
    """The store. Made on the loop; it connects by itself, and while Kafka does not answer `room` is 0 and the journal
    keeps what waits. `why_not` says why that is so. `contain` gets what should not have been raised."""

    def __init__(
        self,
        address: KafkaAddress,
        contain: Callable[[Exception], None],
        *,
        tenants: bool = False,
        keep: str = "acknowledged",
        idle_s: float = IDLE_S,
    ) -> None:
        """Begin to connect. `keep`: "acknowledged": what the client has acknowledged is deleted here; "retention": Kafka
        alone deletes. Raises ValueError for properties that its client does not take."""
        super().__init__(KAFKA_CAPABILITIES)
        self.counters = KafkaCounters()
        self.contain = contain
        self._address = address
        self._names = KafkaNames(address.prefix, tenants=tenants)
        self._tenants = tenants
        self._deletes = keep == "acknowledged"
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._primary = Primary("kafka")
        try:
            self._admin = TopicAdmin(address, _config(self._deletes))
        except KafkaException as error:
            raise ValueError(f"properties_file: {error.args[0].str()}") from None
        self._producer = TopicProducer(address)
        self._reader = TopicReader(address, "kafka-store-read")
        self._scanner = TopicReader(address, "kafka-store-look")
        self._topics: dict[str, Topic] = {}
        self._counts: dict[str, int] = {}  # topics that were made, by tenant
        self._leaving: dict[str, float] = {}  # topics of sessions that have ended, and when they go
        self._made_again: list[str] = []  # topics that were not what they had been
        self._refused: dict[str, str] = {}
        self._why_not = "it was not reached yet"
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._look_now = asyncio.Event()
        self._watching = self._loop.create_task(self._watch())

    def close(self) -> None:
        """End all connections. What is under way fails."""
        self._watching.cancel()
        for task in self._tasks:
            task.cancel()
        self._producer.close()
        self._reader.close()
        self._scanner.close()

    @property
    def commands(self) -> int:
        """Return how many records were put and requests made."""
        return self.counters.commands

    def why_not(self) -> str:
        """Return why Kafka cannot be used now, in words; "" if it can."""
        return self._why_not

    def doubt(self) -> str:
        """Return what is wrong with topics though Kafka can be used, in words; "" if nothing is."""
        found = list(self._refused.values())
        if self._made_again:
            named = ", ".join(self._made_again[-NAMED_MAX:])
            found.append(f"deleted, cut or made again by somebody else since the start: {named}")
        return "; ".join(found[:NAMED_MAX])

    def up(self) -> int:
        """Return 1 while Kafka answers."""
        return int(not self._why_not)

    def room(self) -> int:
        return max(0, UNDER_WAY_MAX - self._bytes) if self.up() else 0

    def place(self, name: str, tenant: str, client_id: str) -> str:
        start = name.rpartition("/")[0]
        return f"{start}/{self._names.topic(tenant, client_id)}"

    # Requests

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        listener = self._listener()
        size = sum(map(len, entries))
        self._bytes += size

        async def job(topic: Topic) -> None:
            outcome = await self._put(topic, name, first, entries, begins)
            answered(outcome)

        def answered(outcome: int) -> None:
            nonlocal size
            self._bytes -= size
            size = 0  # also where whoever is told raises, and is told again that it has failed
            listener.took(number, outcome, self._primary if outcome == DONE else None)

        self._do(name, job, answered)

    def look(self, number: int, name: QueueName) -> None:
        listener = self._listener()

        async def job(topic: Topic) -> None:
            found = await self._look(topic, _key(name))
            listener.looked(number, ABSENT if found is None else DONE, found, self._primary)

        self._do(name, job, lambda outcome: listener.looked(number, outcome, None, None))

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        listener = self._listener()
        up_to = first + min(count, READ_MAX) - 1

        async def job(topic: Topic) -> None:
            found = await self._read(topic, _key(name), first, up_to)
            if found is None:
                listener.read_back(number, ABSENT, 0, [], [])
            else:
                listener.read_back(number, DONE, up_to, list(found), list(found.values()))

        self._do(name, job, lambda outcome: listener.read_back(number, outcome, 0, [], []))

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        async def job(topic: Topic) -> None:
            log = await self._known(topic)
            stream = None if log is None else log.streams.get(_key(name))
            if log is not None and stream is not None:
                stream.trim(floor)
                await self._delete_needless(topic, log)

        self._finish(number, name, job)

    def delete(self, number: int, name: QueueName) -> None:
        async def job(topic: Topic) -> None:
            log = await self._known(topic)
            if log is not None:
                log.delete(_key(name))
                await self._delete_needless(topic, log)

        self._finish(number, name, job)

    def sight(self, number: int, primary: Primary) -> None:
        outcome = SAME if primary is self._primary else ANOTHER
        self._loop.call_soon(self._listener().seen, number, outcome)

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        """Keep nothing of a client; `None` says that its session has ended: its topic goes, once nothing is put."""
        if context is None and self._deletes:
            topic = self._names.topic(name.tenant, name.client_id)
            self._leaving[topic] = self._loop.time() + self._idle_s
        self._loop.call_soon(self._listener().finished, number, DONE)

    def scan(self, number: int, cursor: str) -> None:
        listener = self._listener()

        async def scan() -> None:
            try:
                names, then = await self._scan(cursor)
            except (KafkaException, TimeoutError, OSError) as error:
                self._note_fault(error)
                listener.scanned(number, REFUSED, [], "")
            else:
                listener.scanned(number, DONE, names, then)

        self._start(scan())

    def _finish(self, number: int, name: QueueName, work: Job) -> None:
        """Do something of which only is asked whether it was done."""
        listener = self._listener()

        async def job(topic: Topic) -> None:
            await work(topic)
            listener.finished(number, DONE)

        self._do(name, job, lambda outcome: listener.finished(number, outcome))

    def _listener(self) -> StoreListener:
        assert self.listener is not None
        return self.listener

    # One topic

    def _do(self, name: QueueName, job: Job, failed: Callable[[int], None]) -> None:
        """Have something done in the topic of a client, behind what was asked for before; `failed` answers if it could
        not be done."""
        topic = self._topic(self._names.topic(name.tenant, name.client_id))
        topic.jobs.append((job, failed))
        if not topic.is_served:
            topic.is_served = True
            self._start(self._serve(topic))

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name)
        return topic

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, topic: Topic) -> None:
        """Do what is asked for in a topic until nothing is left."""
        while topic.jobs:
            job, failed = topic.jobs.popleft()
            self.counters.commands += 1
            try:
                await asyncio.wait_for(job(topic), JOB_S)
            except RefusedTopic as error:
                self.counters.note(error.fault)
                self._refused[error.of] = str(error)
                failed(REFUSED)
            except (KafkaException, TimeoutError, OSError) as error:
                topic.is_known = False
                self._note_fault(error)
                failed(UNSURE)
            except Exception as error:  # noqa: BLE001  whatever it is, the next request is served
                topic.is_known = False
                self.contain(error)
                failed(UNSURE)
        topic.is_served = False
        if topic.is_known and topic.log is None:
            self._topics.pop(topic.name, None)

    def _note_fault(self, error: Exception) -> None:
        """Count what Kafka has answered, or has not, and look soon whether it answers at all."""
        reason = error.args[0] if isinstance(error, KafkaException) else None
        self.counters.note(type(error).__name__ if reason is None else str(reason.name()).lstrip("_"))
        self._look_now.set()

    async def _known(self, topic: Topic) -> TopicLog | None:
        """Return what is in a topic, None if there is none: it is found out unless it is known."""
        return topic.log if topic.is_known else await self._learn(topic)

    async def _learn(self, topic: Topic) -> TopicLog | None:
        """Find out what is in a topic: what was put since it was known, or everything, if it is another one."""
        topic.is_known = False
        described = await self._admin.describe(topic.name)
        if described is None:
            if topic.log is not None:
                self._note_made_again(topic)
            topic.log, topic.is_known = None, True
            return None
        topic_id, partitions = described
        if partitions != 1:
            why = f"topic {topic.name} has {partitions} partitions, and a queue is one: delete it"
            raise RefusedTopic("foreign_topic", why, topic.name)
        start, end = await self._admin.ends(topic.name)
        log = topic.log
        if log is not None and (log.topic_id != topic_id or end < log.end):
            self._note_made_again(topic)
            log = None
        if log is not None and start > log.deleted_to:
            log = None  # Kafka has deleted by itself, and what is left is to be seen
        if log is None:
            log = topic.log = TopicLog(topic_id, start)
        while log.end < end:
            for found in await self._scanner.read(topic.name, log.end, end, wanted=False):
                log.note(found.key, found.serial, found.offset)
        if log.is_foreign:
            why = f"topic {topic.name} has records that are not headrace's: delete it, or name another prefix"
            raise RefusedTopic("foreign_topic", why, topic.name)
        self._refused.pop(topic.name, None)
        topic.is_known = True
        return log

    def _name(self, topic: Topic) -> None:
        """Name a topic that lacks what was in it."""
        self.counters.note("topic_made_again")
        if topic.name in self._made_again:
            self._made_again.remove(topic.name)
        self._made_again = [*self._made_again[-NAMED_MAX:], topic.name]

    def _note_made_again(self, topic: Topic) -> None:
        """Note that a topic is not what it was: somebody has deleted it, or made it again, or Kafka has lost its end."""
        self._name(topic)
        topic.log = None
        self._renew_producer()  # this one counts in the topic of before

    # What is done

    async def _put(
        self, topic: Topic, name: QueueName, first: int, entries: list[bytes], begins: bool
    ) -> int:
        """Put entries; returns the outcome."""
        key = _key(name)
        log = await self._known(topic)
        if log is None and begins:
            log = await self._make(topic, name.tenant)
        if log is None or not (begins or key in log.streams):
            self._name(topic)
            return ABSENT
        if log.is_dead(key) or (key in log.streams and (begins or first <= log.streams[key].last)):
            return THERE
        self._leaving.pop(topic.name, None)
        records = [record_of(key, serial, entry) for serial, entry in enumerate(entries, first)]
        topic.is_known = False
        if not await self._append(topic, log.end, records):
            return UNSURE
        for serial, offset in enumerate(range(log.end, log.end + len(records)), first):
            log.note(key, serial, offset)
        topic.is_known = True
        return DONE

    async def _append(self, topic: Topic, end: int, records: list[Record]) -> bool:
        """Append records; returns whether all of them are in the topic, behind its end that was known. Else it is read
        before anything more is put."""
        batch = self._producer.put(topic.name, records)
        self.counters.commands += len(records)
        await batch.done
        if batch.errors:
            self._note_fault(KafkaException(batch.errors[0]))
            if any(error.fatal() for error in batch.errors):
                self._renew_producer()
            return False
        return batch.offsets == list(range(end, end + len(records)))

    def _renew_producer(self) -> None:
        """Put by another producer from now on. What this one has not sent is not sent."""
        old, self._producer = self._producer, TopicProducer(self._address)
        old.close()

    async def _make(self, topic: Topic, tenant: str) -> TopicLog | None:
        """Make a topic, and return what is in it: whoever was there before has made it, too."""
        if not self._counts:
            await self._count_topics()
        of = tenant if self._tenants else ""
        if self._counts.get(of, 0) >= self._address.topics_max:
            most = f"{self._address.topics_max} topics" + (f" of tenant {tenant}" if of else "")
            why = f"there are {most} already (option topics): the journal keeps more"
            raise RefusedTopic("topics_max", why, f"topics of {of}")
        self._refused.pop(f"topics of {of}", None)
        await self._admin.make([topic.name])
        self._counts[of] = self._counts.get(of, 0) + 1
        return await self._learn(topic)

    async def _count_topics(self) -> None:
        """Count the topics that there are, by tenant."""
        counts: dict[str, int] = {"": 0}
        for topic in await self._admin.named():
            found = self._names.client_of(topic)
            if found is not None:
                counts[found[0]] = counts.get(found[0], 0) + 1
        self._counts = counts

    async def _look(self, topic: Topic, key: StreamKey) -> FoundInStream | None:
        """Look what is in a stream, and at its last record itself; None if there is no stream."""
        log = await self._learn(topic)
        stream = None if log is None else log.streams.get(key)
        if log is None or stream is None:
            return None
        entry = None
        if stream.first:
            records = await self._scanner.read(topic.name, stream.last_offset, log.end, wanted=True, most=1)
            found = records[0]
            if (found.key, found.serial) != (key, stream.last):
                topic.log = None
                raise TimeoutError("the topic was made again meanwhile")
            entry = found.entry
        return FoundInStream(stream.first, stream.last, stream.count(), entry)

    async def _read(self, topic: Topic, key: StreamKey, first: int, up_to: int) -> dict[int, bytes] | None:
        """Read the entries between two serial numbers; None if there is no stream. What lacks is looked for again in
        what the topic is like by then."""
        try:
            found = await self._read_known(topic, key, await self._known(topic), first, up_to)
        except KafkaException:
            found = None
        if found is None or len(found) < up_to - first + 1:
            found = await self._read_known(topic, key, await self._learn(topic), first, up_to)
        if found is None:
            self._name(topic)
        return found

    async def _read_known(
        self, topic: Topic, key: StreamKey, log: TopicLog | None, first: int, up_to: int
    ) -> dict[int, bytes] | None:
        """Read the entries of a topic of which is known what is in it."""
        stream = None if log is None else log.streams.get(key)
        if stream is None:
            return None
        low, high = max(first, stream.first), min(up_to, stream.last)
        return await self._read_stream(topic, key, stream, low, high) if stream.first and low <= high else {}

    async def _read_stream(
        self, topic: Topic, key: StreamKey, stream: StreamLog, low: int, high: int
    ) -> dict[int, bytes]:
        """Read the entries of a stream between two serial numbers, each as it came first."""
        at, end = stream.offset_for(low), stream.last_offset + 1
        entries: dict[int, bytes] = {}
        reached = 0
        while at < end and reached < high:
            records: list[Found] = await self._reader.read(
                topic.name, at, end, wanted=True, most=high - max(low, reached) + 64
            )
            for found in records:
                if found.key == key and found.serial > reached:
                    reached = found.serial
                    if low <= found.serial <= high and found.entry is not None:
                        entries[found.serial] = found.entry
            at = records[-1].offset + 1
        return entries

    async def _delete_needless(self, topic: Topic, log: TopicLog) -> None:
        """Delete what no stream needs, where that is ours to do."""
        offset = log.needless_below()
        if not self._deletes or offset <= log.deleted_to:
            return
        await self._admin.delete_records(topic.name, offset)
        log.deleted_to = offset

    # All topics

    async def _scan(self, cursor: str) -> tuple[list[QueueName], str]:
        """Name the streams of some topics, those behind `cursor`; returns them and where to go on."""
        topics = [name for name in await self._admin.named() if name > cursor]
        ours = [(name, found) for name in topics if (found := self._names.client_of(name)) is not None]
        names: list[QueueName] = []
        for topic, (tenant, client_id) in ours[:SCAN_TOPICS]:
            of = QueueName(tenant or DEFAULT_TENANT, client_id, "", 0, 0)
            names += [
                QueueName(of.tenant, client_id, key.journal, key.generation, key.incarnation)
                for key in await self._streams_of(of)
            ]
            cursor = topic
        return names, cursor if len(ours) > SCAN_TOPICS else ""

    async def _streams_of(self, name: QueueName) -> list[StreamKey]:
        """Return the streams in the topic of a client; none where it must not be used."""
        found: asyncio.Future[list[StreamKey]] = self._loop.create_future()

        async def job(topic: Topic) -> None:
            log = await self._known(topic)
            found.set_result([] if log is None else list(log.streams))

        self._do(name, job, lambda _: found.set_result([]))
        return await found

    async def _watch(self) -> None:
        """Look whether Kafka answers, for as long as the store is open."""
        backoff = Backoff(*AGAIN_S)
        while True:
            try:
                await self._admin.reach()
            except KafkaException as error:
                self._why_not = error.args[0].str()
                await asyncio.sleep(backoff.next_s())
                continue
            except Exception as error:  # noqa: BLE001  whatever it is, Kafka is tried again
                self._why_not = f"{type(error).__name__}: {error}"
                self.contain(error)
                await asyncio.sleep(backoff.next_s())
                continue
            had_room = not self._why_not
            self._why_not = ""
            if not had_room:
                backoff.lasted(AGAIN_S[1])
                if self.listener is not None:
                    self.listener.has_room()
            self._delete_idle()
            self._look_now.clear()
            try:
                await asyncio.wait_for(self._look_now.wait(), min(LOOK_S, self._idle_s))
            except TimeoutError:
                continue
            await asyncio.sleep(AGAIN_S[0])  # many faults, one look

    def _delete_idle(self) -> None:
        """Delete topics whose sessions have ended, and of which nothing is needed."""
        now_s = self._loop.time()
        for name in [name for name, due_s in self._leaving.items() if due_s <= now_s]:
            del self._leaving[name]
            topic = self._topic(name)
            topic.jobs.append((self._leave, _tell_nobody))
            if not topic.is_served:
                topic.is_served = True
                self._start(self._serve(topic))

    async def _leave(self, topic: Topic) -> None:
        """Delete a topic in which no stream is."""
        log = await self._learn(topic)
        if log is None or log.streams:
            return
        await self._admin.delete(topic.name)
        topic.log, topic.is_known = None, True
        self._counts = {}


def _tell_nobody(outcome: int) -> None:
    """Hear that something could not be done that nobody waits for: a scan finds it again."""


def _key(name: QueueName) -> StreamKey:
    return StreamKey(name.journal, name.incarnation, name.generation)


def _config(deletes: bool) -> dict[str, str]:
    """Return the settings of a topic that is made."""
    config = {
        "cleanup.policy": "delete",
        "max.message.bytes": str(RECORD_BYTES_MAX),
        "unclean.leader.election.enable": "false",
    }
    return config | ({"retention.ms": "-1", "retention.bytes": "-1"} if deletes else {})
