"""Producers and consumers of `headrace.clients.frame` at a broker: whatever is killed, every message is there once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from broker_process import headrace
from databases import KINDS, Databases, asynchronous
from e2e.conftest import finish
from e2e.device import Got
from e2e.test_clusters import Served
from headrace.clients.frame import Consumer, Message, Producer, Refused, sync
from headrace.clients.frame.processed import Processed

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
METADATA = MetaData()
DOORS = Table(
    "doors",
    METADATA,
    Column("row", Integer, primary_key=True, autoincrement=True),
    Column("lock", String(50)),
    Column("number", Integer),
)
SOON: dict[str, Any] = {"shortest_pause_s": 0.01, "longest_pause_s": 0.1}
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    found = Databases(tmp_path_factory.mktemp("databases"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("frames"), {"frames.visibility_s": 0.5})
    found.broker.start()
    try:
        yield found
    finally:
        finish(found.broker)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A broker that a test may kill."""
    found = Served(tmp_path / "own", {"frames.visibility_s": 600})
    found.broker.start()
    try:
        yield found
    finally:
        found.broker.end()


def url(served: Served) -> str:
    return f"frame://127.0.0.1:{served.port}"


def stored(engine: Engine) -> dict[int, int]:
    """How often each number is there."""
    with engine.connect() as connection:
        found = connection.execute(select(DOORS.c.number, func.count()).group_by(DOORS.c.number))
        return {int(row[0]): int(row[1]) for row in found}


def store(message: Message, db: Any) -> None:
    db.execute(DOORS.insert().values(lock=message.sn, number=int(message.payload)))


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def publish_all(producer: Producer, topic: str, numbers: range) -> list[bytes]:
    return await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in numbers))


# Producers


@pytest.mark.asyncio
async def test_what_a_producer_has_sent_is_there_once_though_the_broker_was_killed(own: Served) -> None:
    async with Producer(url(own), "door-1", in_flight_max=50, **SOON) as producer:
        sending = asyncio.ensure_future(publish_all(producer, "doors", range(2000)))
        await until(lambda: producer.connections == 1)
        await asyncio.to_thread(own.broker.crash)
        await until(lambda: producer.connections == 2)
        await asyncio.to_thread(own.broker.crash)
        ids = await sending
    assert len(set(ids)) == 2000
    with own.consumer("doors", "check") as consumer:
        found: list[Got] = []
        while len(found) < 2000:
            got = consumer.pull("doors", "check", 256, 60_000)
            found += got
            consumer.ack("doors", "check", *(message.message_id for message in got))
        assert consumer.pull("doors", "check", 10) == []
    assert sorted(int(message.payload) for message in found) == list(range(2000))
    assert {message.message_id for message in found} == set(ids)


def test_a_program_without_a_loop_has_several_in_flight(served: Served) -> None:
    with sync.Producer(url(served), "door-2", in_flight_max=5) as producer:
        ids = [producer.submit("sync", b"%d" % number) for number in range(100)]
        last = producer.publish("sync", b"last")
    assert len({one.result() for one in ids} | {last}) == 101


def test_a_number_that_starts_again_is_a_repeat_only_with_the_same_payload(served: Served) -> None:
    with sync.Producer(url(served), "door-3", first_seq=0) as producer:
        first = producer.publish("restart", b"open")
    with sync.Producer(url(served), "door-3", first_seq=0) as producer:
        assert producer.publish("restart", b"open") == first
    with sync.Producer(url(served), "door-3", first_seq=0) as producer:
        assert producer.publish("restart", b"shut") != first
    with sync.Producer(url(served), "door-3") as producer:
        assert producer.publish("restart", b"open") != first


def test_what_the_broker_refuses_is_an_error_with_its_code(served: Served) -> None:
    with sync.Producer(url(served), "door-4") as producer, pytest.raises(Refused) as found:
        producer.publish("a/#", b"open")
    assert found.value.reason_code == 0x90
    consumer = sync.Consumer(url(served), "a/#", "log")
    consumer.handler(print)
    with pytest.raises(Refused, match="a/#"):
        consumer.run()
    with pytest.raises(TypeError, match="needs a handler"):
        sync.Consumer(url(served), "a", "log").run()


def test_a_wrong_password_is_told(tmp_path: Path) -> None:
    password_file = tmp_path / "passwords"
    assert headrace("passwd", str(password_file), "porter", "-b", "secret").returncode == 0
    guarded = Served(tmp_path / "guarded", {"access.password_file": str(password_file)})
    guarded.broker.start()
    try:
        with sync.Producer(url(guarded), "d", user="porter", password="secret") as producer:
            assert len(producer.publish("doors", b"open")) == 16
        with (
            sync.Producer(url(guarded), "d", user="porter", password="wrong") as producer,
            pytest.raises(Refused) as found,
        ):
            producer.publish("doors", b"open")
        assert found.value.reason_code in (0x86, 0x87)
    finally:
        finish(guarded.broker)


# Consumers


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*KINDS[:-1], pytest.param(KINDS[-1], marks=pytest.mark.deep)])
async def test_every_message_is_in_the_database_once_though_the_broker_was_killed(
    kind: str, own: Served, databases: Databases
) -> None:
    address = databases.url(kind)
    blocking, engine = create_engine(address), create_async_engine(asynchronous(address))
    METADATA.create_all(blocking)
    one = Consumer(url(own), "doors", "log", database=engine, pool=2, **SOON)
    other = Consumer(url(own), "doors", "log", database=blocking, pool=2, **SOON)

    @one.handler
    async def store_async(message: Message, db: AsyncConnection) -> None:
        await db.execute(DOORS.insert().values(lock=message.sn, number=int(message.payload)))

    other.handler(store)
    running = [asyncio.ensure_future(one.run()), asyncio.ensure_future(other.run())]
    async with Producer(url(own), "door-1", **SOON) as producer:
        await until(lambda: min(one.connections, other.connections) == 1)
        await publish_all(producer, "doors", range(100))
        await until(lambda: one.processed + other.processed >= 50)
        await asyncio.to_thread(own.broker.crash)
        await publish_all(producer, "doors", range(100, 200))
    await until(lambda: one.processed + other.processed >= 200)
    await until(lambda: one.acknowledged + other.acknowledged >= one.processed + other.processed)
    await until(lambda: min(one.connections, other.connections) >= 2)
    one.stop()
    other.stop()
    await asyncio.gather(*running)
    assert stored(blocking) == dict.fromkeys(range(200), 1)
    assert one.processed + other.processed == 200
    await engine.dispose()
    blocking.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_is_acknowledged_and_not_processed(kind: str, own: Served, databases: Databases) -> None:
    topic = "repeat"
    ids = own.publish(topic, 20)
    engine = create_engine(databases.url(kind))
    METADATA.create_all(engine)
    processed = Processed(b"log")
    processed.create(engine)
    for number in (3, 7):  # by a consumer that died before it had acknowledged
        message = Message(ids[number], topic, "door-1", 0, b"%d" % number, False)
        processed.once(engine, ids[number], partial(store, message))
    consumer = sync.Consumer(url(own), topic, "log", database=sessionmaker(engine))
    threads: set[str] = set()

    @consumer.handler
    def handle(message: Message, db: Session) -> None:
        threads.add(threading.current_thread().name)
        store(message, db)

    run_until(consumer, lambda: consumer.counts.acknowledged == 20)
    assert (consumer.counts.processed, consumer.counts.repeats) == (18, 2)
    assert stored(engine) == dict.fromkeys(range(20), 1)
    assert threading.main_thread().name not in threads
    engine.dispose()
    with own.consumer(topic, "log") as raw:
        assert raw.pull(topic, "log", 10) == []


def run_until(consumer: sync.Consumer, condition: Any) -> None:
    """Run it in this thread; another one stops it."""

    def stop() -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not condition() and time.monotonic() < until_s:
            time.sleep(0.01)
        consumer.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    consumer.run()
    stopping.join()
    assert condition()


@pytest.mark.asyncio
async def test_what_a_handler_raised_for_comes_again(served: Served) -> None:
    served.publish("again", 5)
    consumer = Consumer(url(served), "again", "log", **SOON)
    seen: list[tuple[int, bool]] = []

    @consumer.handler
    async def handle(message: Message) -> None:
        number = int(message.payload)
        seen.append((number, message.redelivered))
        if number == 2 and seen.count((2, True)) < 2:
            raise ValueError("not yet")

    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.failures == 2 and consumer.acknowledged >= 5)
    consumer.stop()
    await running
    assert [number for number, again in seen if not again] == [0, 1, 2, 3, 4]
    assert seen.count((2, True)) >= 2


@pytest.mark.asyncio
async def test_a_message_that_fails_each_time_is_set_aside(served: Served, databases: Databases) -> None:
    served.publish("poison", 5)
    engine = create_engine(databases.url("sqlite"))
    METADATA.create_all(engine)
    consumer = Consumer(url(served), "poison", "log", database=engine, attempts_max=2, **SOON)

    @consumer.handler
    def handle(message: Message, db: Any) -> None:
        store(message, db)
        if int(message.payload) == 2:
            raise ValueError("never")

    @consumer.poison
    def aside(message: Message, error: Exception, db: Any) -> None:
        db.execute(DOORS.insert().values(lock=str(error), number=int(message.payload)))

    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.processed == 4 and consumer.poisoned == 1)
    consumer.stop()
    await running
    assert consumer.failures >= 2
    assert stored(engine) == dict.fromkeys(range(5), 1)
    with engine.connect() as connection:
        locks = select(DOORS.c.lock).where(DOORS.c.number == 2)
        assert connection.execute(locks).scalar_one() == "never"
    engine.dispose()


@pytest.mark.asyncio
async def test_two_that_work_on_a_message_at_a_time_do_it_once(served: Served, databases: Databases) -> None:
    engine = create_engine(databases.url("postgresql"))
    METADATA.create_all(engine)
    one, both = threading.Event(), threading.Event()
    consumers: list[Consumer] = []

    @event.listens_for(engine, "before_cursor_execute")
    def executing(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO headrace_processed") and one.is_set():
            both.set()  # the second waits at the key now

    for _ in range(2):
        consumer = Consumer(url(served), "slow", "log", database=engine, **SOON)
        consumers.append(consumer)

        @consumer.handler
        def handle(message: Message, db: Any) -> None:
            one.set()
            store(message, db)
            assert both.wait(DEADLINE_S)  # for longer than the broker waits

    running = [asyncio.ensure_future(consumer.run()) for consumer in consumers]
    await until(lambda: all(consumer.connections for consumer in consumers))  # both have tried the database
    await asyncio.to_thread(served.publish, "slow", 1)
    await until(lambda: sum(consumer.processed for consumer in consumers) == 1)
    await until(lambda: sum(consumer.repeats for consumer in consumers) >= 1)
    for consumer in consumers:
        consumer.stop()
    await asyncio.gather(*running)
    assert stored(engine) == {0: 1}
    engine.dispose()


@pytest.mark.asyncio
async def test_a_pool_grows_with_the_lag_and_shrinks_without(own: Served) -> None:
    own.publish("lag", 300)
    consumer = Consumer(url(own), "lag", "log", pool="auto", pool_max=8, **SOON)
    at_a_time, most = 0, 0

    @consumer.handler
    async def handle(message: Message) -> None:
        nonlocal at_a_time, most
        at_a_time += 1
        most = max(most, at_a_time)
        await asyncio.sleep(0.1)
        at_a_time -= 1

    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.acknowledged == 300)
    assert most == 8
    await until(lambda: consumer.workers == 1)
    consumer.stop()
    await running
    assert consumer.processed == 300


@pytest.mark.asyncio
async def test_a_consumer_that_is_stopped_acknowledges_what_it_has_begun_and_gives_back_the_rest(
    own: Served,
) -> None:
    own.publish("stop", 50)
    consumer = Consumer(url(own), "stop", "log", pool=3, **SOON)

    @consumer.handler
    async def handle(message: Message) -> None:
        if consumer.processed >= 10:
            consumer.stop()
        await asyncio.sleep(0.01)

    await asyncio.wait_for(consumer.run(), DEADLINE_S)
    assert 10 < consumer.processed < 50
    assert consumer.acknowledged == consumer.processed
    with own.consumer("stop", "log") as raw:
        assert len(raw.pull("stop", "log", 256)) == 50 - consumer.processed


@pytest.mark.asyncio
async def test_a_handler_and_a_database_must_fit(served: Served, databases: Databases) -> None:
    engine = create_async_engine(asynchronous(databases.url("sqlite")))
    with pytest.raises(TypeError, match="an Engine or sessionmaker"):
        Consumer(url(served), "fit", "log", database=engine).handler(store)
    blocking = create_engine(databases.url("sqlite"))

    async def handle(message: Message, db: Any) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="AsyncEngine"):
        Consumer(url(served), "fit", "log", database=blocking).handler(handle)
    with suppress(Exception):
        await engine.dispose()
    blocking.dispose()


@pytest.mark.asyncio
async def test_a_handler_that_waited_for_something_cancelled_stops_nobody(served: Served) -> None:
    served.publish("cancelled", 5)
    consumer = Consumer(url(served), "cancelled", "log", **SOON)

    @consumer.handler
    async def handle(message: Message) -> None:
        if int(message.payload) == 2 and not message.redelivered:
            raise asyncio.CancelledError

    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.acknowledged == 5)
    assert (consumer.failures, consumer.workers) == (1, 1)
    consumer.stop()
    await running


class Busy:
    """A database that cannot be reached a few times."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.failures_left = 0

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        if self.failures_left:
            self.failures_left -= 1
            raise OperationalError("BEGIN", None, OSError("it is away"))
        with self._engine.begin() as opened:
            yield opened


@pytest.mark.asyncio
async def test_a_database_that_was_away_poisons_no_message(served: Served, databases: Databases) -> None:
    engine = create_engine(databases.url("sqlite"))
    METADATA.create_all(engine)
    database = Busy(engine)
    consumer = Consumer(url(served), "away", "log", database=database, attempts_max=2, **SOON)
    consumer.handler(store)
    consumer.poison(print)
    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.connections == 1)
    database.failures_left = 2
    served.publish("away", 1)
    await until(lambda: consumer.acknowledged == 1)
    assert (consumer.processed, consumer.failures, consumer.poisoned) == (1, 2, 0)
    consumer.stop()
    await running
    assert stored(engine) == {0: 1}
    engine.dispose()


@pytest.mark.asyncio
async def test_a_consumer_that_rests_behind_a_failure_is_stopped_at_once(served: Served) -> None:
    served.publish("rest", 1)
    consumer = Consumer(url(served), "rest", "log", shortest_pause_s=1e6, longest_pause_s=1e6)

    @consumer.handler
    async def handle(message: Message) -> None:
        asyncio.get_running_loop().call_soon(consumer.stop)
        raise ValueError("not now")

    await asyncio.wait_for(consumer.run(), DEADLINE_S)
    assert (consumer.failures, consumer.acknowledged) == (1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_consumer_that_was_cancelled_may_run_again(own: Served, blocking: bool) -> None:
    consumer = Consumer(url(own), "anew", "log", **SOON)

    async def on_loop(message: Message) -> None:
        """Handle it."""

    def in_thread(message: Message) -> None:
        """Handle it."""

    consumer.handler(in_thread if blocking else on_loop)
    for times in (1, 2):
        own.publish("anew", 10, 10 * (times - 1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda times=times: consumer.acknowledged == 10 * times)
        running.cancel()
        await asyncio.wait([running])
    assert consumer.connections == 2
