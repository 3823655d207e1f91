"""What every store of queues behind `QueueStore` does: the one in memory, and the engines, which the tests start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import pytest

from hbase_server import HBaseServer
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    NOTHING,
    SAME,
    THERE,
    Context,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreListener,
)
from headrace.stores.hbase.address import parse as parse_hbase
from headrace.stores.hbase.store import HBaseStore
from headrace.stores.kafka.address import parse as parse_kafka
from headrace.stores.kafka.store import KafkaStore
from headrace.stores.memory import MemoryStore
from headrace.stores.redis.address import parse
from headrace.stores.redis.store import RedisStore
from headrace.stores.sharing import SharedStore
from kafka_server import KafkaServer, kafka_server
from redis_servers import RedisServer, RedisServers, redis_servers

DEADLINE_S = 60.0
ENGINE_S = 60.0  # a table of HBase takes seconds to be made
JOURNAL = "5f" * 16
Took = tuple[int, Primary | None]


class Heard(StoreListener):
    """The answers by number; one that comes twice is a failure."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[object, ...]] = {}
        self.gone: list[Primary] = []

    def _hear(self, number: int, *answer: object) -> None:
        assert number not in self.answers
        self.answers[number] = answer

    def took(self, number: int, outcome: int, primary: Primary | None) -> None:
        self._hear(number, outcome, primary)

    def looked(self, number: int, outcome: int, found: Found | None, primary: Primary | None) -> None:
        numbers = None if found is None else (found.first, found.last, found.count)
        self._hear(number, outcome, numbers, primary)

    def read_back(
        self, number: int, outcome: int, up_to: int, serials: list[int], entries: list[bytes]
    ) -> None:
        self._hear(number, outcome, up_to, dict(zip(serials, entries, strict=True)))

    def finished(self, number: int, outcome: int) -> None:
        self._hear(number, outcome)

    def seen(self, number: int, outcome: int) -> None:
        self._hear(number, outcome)

    def scanned(self, number: int, outcome: int, names: list[QueueName], cursor: str) -> None:
        self._hear(number, outcome, names, cursor)

    def lost(self, primary: Primary) -> None:
        self.gone.append(primary)

    def has_room(self) -> None:
        pass


class Engine:
    """Whatever keeps the streams. `open` connects a store to it, which is empty."""

    async def open(self) -> QueueStore:
        raise NotImplementedError

    def deliver(self, store: QueueStore) -> None:
        """Have the answers given that are due, where that is not the loop's doing."""

    def wipe(self) -> None:
        """Lose everything."""
        raise NotImplementedError

    def close(self, store: QueueStore) -> None:
        """End the connections of a store."""


class Memory(Engine):
    def __init__(self) -> None:
        self.store = MemoryStore()

    async def open(self) -> QueueStore:
        return self.store

    def deliver(self, store: QueueStore) -> None:
        self.store.deliver()

    def wipe(self) -> None:
        self.store.wipe()


class Shared(Memory):
    """The store in memory as one of several shards has it."""

    async def open(self) -> QueueStore:
        shared = SharedStore(self.store)
        shared.share().listener = Heard()
        return shared.share()

    def deliver(self, store: QueueStore) -> None:
        self.store.deliver()


class Redis(Engine):
    """One server, or the servers of a cluster."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers

    async def open(self) -> QueueStore:
        self.wipe()
        places = ",".join(server.place for server in self.servers)
        store = RedisStore(parse(f"redis://{places}?prefix=p"), RAISED.append)
        deadline = time.monotonic() + DEADLINE_S
        while store.up() < len(self.servers):
            assert time.monotonic() < deadline, store.why_not()
            await asyncio.sleep(0.001)
        return store

    def wipe(self) -> None:
        for server in self.servers:
            server.ask("FLUSHALL")

    def close(self, store: QueueStore) -> None:
        assert isinstance(store, RedisStore)
        store.close()
        nothing_was_raised()


class Kafka(Engine):
    """One broker; each store has a prefix of its own."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server

    async def open(self) -> QueueStore:
        address = parse_kafka(f"kafka://{self.server.address}/p{next(PREFIXES)}")
        store = KafkaStore(address, RAISED.append)
        deadline = time.monotonic() + DEADLINE_S
        while not store.up():
            assert time.monotonic() < deadline, store.why_not()
            await asyncio.sleep(0.001)
        return store

    def close(self, store: QueueStore) -> None:
        assert isinstance(store, KafkaStore)
        store.close()
        nothing_was_raised()
        assert set(store.counters.faults) <= {"topic_made_again"}  # what is not there is named


class HBase(Engine):
    """One HBase behind a gateway; each store has a table of its own."""

    def __init__(self, server: HBaseServer) -> None:
        self.server = server

    async def open(self) -> QueueStore:
        address = parse_hbase(f"hbase://{self.server.address}/contract{next(PREFIXES)}?regions=2")
        store = HBaseStore(address, RAISED.append, call_s=20.0)  # beside other suites
        deadline = time.monotonic() + ENGINE_S
        while not store.up():
            assert time.monotonic() < deadline, store.why_not()
            await asyncio.sleep(0.001)
        return store

    def close(self, store: QueueStore) -> None:
        assert isinstance(store, HBaseStore)
        store.close()
        nothing_was_raised()
        assert set(store.counters.faults) <= {"rows_missing"}


PREFIXES = count()
RAISED: list[Exception] = []  # by handlers of answers, where a loop would only log it


def nothing_was_raised() -> None:
    raised = list(RAISED)
    RAISED.clear()
    assert raised == []


@pytest.fixture(scope="module")
def servers() -> Iterator[RedisServers]:
    with redis_servers() as found:
        yield found


@pytest.fixture(scope="module")
def single(servers: RedisServers) -> list[RedisServer]:
    return [servers.single()]


@pytest.fixture(scope="module")
def cluster(servers: RedisServers) -> list[RedisServer]:
    return servers.cluster()


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    with kafka_server() as server:
        server.warm_up()
        yield server


@pytest.fixture(
    params=[
        "memory",
        "shared",
        *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("single", "cluster")),
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("hbase", marks=pytest.mark.hbase),
    ]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param in ("memory", "shared"):
        return Memory() if request.param == "memory" else Shared()
    if request.param == "kafka":
        return Kafka(request.getfixturevalue("kafka"))
    if request.param == "hbase":
        return HBase(request.getfixturevalue("hbase"))
    return Redis(request.getfixturevalue(request.param))


class User:
    """Whoever asks a store, and waits for its answers."""

    def __init__(self, engine: Engine, store: QueueStore) -> None:
        self.engine = engine
        self.store = store
        self.heard = Heard()
        store.listener = self.heard
        self._number = 0

    async def _ask(self, ask: Callable[[int], None]) -> tuple[object, ...]:
        self._number += 1
        number = self._number
        ask(number)
        assert number not in self.heard.answers, "answered from within the request"
        deadline = time.monotonic() + DEADLINE_S
        while number not in self.heard.answers:
            assert time.monotonic() < deadline
            self.engine.deliver(self.store)
            await asyncio.sleep(0.001)
        return self.heard.answers[number]

    async def put(self, name: QueueName, first: int, *entries: bytes, begins: bool = False) -> Took:
        outcome, primary = await self._ask(
            lambda number: self.store.put(number, name, first, list(entries), begins)
        )
        assert isinstance(outcome, int)
        assert primary is None or isinstance(primary, Primary)
        return outcome, primary

    async def look(self, name: QueueName) -> tuple[object, ...]:
        return (await self._ask(lambda number: self.store.look(number, name)))[:2]

    async def read(self, name: QueueName, first: int, count: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        end = first + count - 1
        while first <= end:
            asked, left = first, end - first + 1
            outcome, up_to, part = await self._ask(
                lambda number, asked=asked, left=left: self.store.read(number, name, asked, left)  # type: ignore[misc]
            )
            if outcome == ABSENT:
                return {}
            assert outcome == DONE
            assert isinstance(up_to, int)
            assert up_to >= first
            assert isinstance(part, dict)
            found.update(part)
            first = up_to + 1
        return found

    async def outcome_of_read(self, name: QueueName, first: int, count: int) -> object:
        return (await self._ask(lambda number: self.store.read(number, name, first, count)))[0]

    async def trim(self, name: QueueName, floor: int) -> None:
        assert await self._ask(lambda number: self.store.trim(number, name, floor)) == (DONE,)

    async def delete(self, name: QueueName) -> None:
        assert await self._ask(lambda number: self.store.delete(number, name)) == (DONE,)

    async def sight(self, primary: Primary) -> int:
        outcome = (await self._ask(lambda number: self.store.sight(number, primary)))[0]
        assert isinstance(outcome, int)
        return outcome

    async def context(self, name: QueueName, context: Context | None) -> None:
        answer = await self._ask(lambda number: self.store.keep_context(number, name, context))
        assert answer == (DONE,)

    async def names(self) -> set[tuple[str, str, str, int, int]]:
        found: list[QueueName] = []
        at = ""
        while True:
            answer = await self._ask(
                lambda number, at=at: self.store.scan(number, at)  # type: ignore[misc]
            )
            outcome, names, cursor = answer
            assert outcome == DONE
            assert isinstance(names, list)
            assert isinstance(cursor, str)
            found += names
            if not cursor:
                return {name.parts() for name in found}
            at = cursor


def name(client: str = "c", generation: int = 1, incarnation: int = 7) -> QueueName:
    return QueueName("default", client, JOURNAL, generation, incarnation)


def use(engine: Engine, look: Callable[[User], Awaitable[None]]) -> None:
    async def life() -> None:
        store = await engine.open()
        try:
            await look(User(engine, store))
        finally:
            engine.close(store)

    asyncio.run(life())


def test_entries_come_back_under_their_numbers(engine: Engine) -> None:
    async def look(user: User) -> None:
        payloads = [b"one", NOTHING, bytes(range(256)), b"\r\n$-1\r\n*2\r\n"]
        assert (await user.put(name(), 5, *payloads, begins=True))[0] == DONE
        assert (await user.put(name(), 9, b"nine"))[0] == DONE
        assert await user.read(name(), 5, 5) == dict(enumerate([*payloads, b"nine"], 5))
        assert await user.read(name(), 6, 2) == {6: NOTHING, 7: payloads[2]}
        assert await user.read(name(), 8, 100) == {8: payloads[3], 9: b"nine"}
        assert await user.read(name(), 10, 5) == {}
        assert await user.look(name()) == (DONE, (5, 9, 5))

    use(engine, look)


def test_numbers_only_grow_and_what_is_there_is_said(engine: Engine) -> None:
    async def look(user: User) -> None:
        await user.put(name(), 5, b"5", b"6", b"7", begins=True)
        for first in (5, 7):
            assert (await user.put(name(), first, b"x"))[0] == THERE
        assert (await user.put(name(), 6, b"x", b"y"))[0] == THERE
        assert (await user.put(name(), 3, b"x"))[0] == THERE
        assert await user.read(name(), 1, 20) == {5: b"5", 6: b"6", 7: b"7"}
        assert await user.look(name()) == (DONE, (5, 7, 3))

    use(engine, look)


def test_a_stream_is_made_once_and_only_where_it_begins(engine: Engine) -> None:
    async def look(user: User) -> None:
        assert (await user.put(name(), 1, b"x"))[0] == ABSENT
        assert (await user.put(name(), 1, b"x", b"y"))[0] == ABSENT
        assert (await user.look(name()))[0] == ABSENT
        assert await user.read(name(), 1, 3) == {}
        assert (await user.put(name(), 1, b"x", begins=True))[0] == DONE
        assert (await user.put(name(), 2, b"y", begins=True))[0] == THERE
        assert (await user.put(name(), 3, b"y", b"z", begins=True))[0] == THERE

    use(engine, look)


def test_a_hole_is_seen(engine: Engine) -> None:
    async def look(user: User) -> None:
        await user.put(name(), 1, b"1", b"2", begins=True)
        await user.put(name(), 5, b"5")
        assert await user.look(name()) == (DONE, (1, 5, 3))
        assert await user.read(name(), 1, 5) == {1: b"1", 2: b"2", 5: b"5"}

    use(engine, look)


def test_a_trim_takes_what_is_below_it_and_numbers_go_on(engine: Engine) -> None:
    async def look(user: User) -> None:
        await user.put(name(), 1, *[b"%d" % serial for serial in range(1, 201)], begins=True)
        await user.trim(name(), 151)
        assert await user.read(name(), 140, 20) == {serial: b"%d" % serial for serial in range(151, 160)}
        assert await user.look(name()) == (DONE, (151, 200, 50))
        await user.trim(name(), 100)  # an older one, sent again
        assert await user.look(name()) == (DONE, (151, 200, 50))
        assert await user.read(name(), 10, 20) == {}  # nothing of what was trimmed
        await user.trim(name(), 201)
        outcome, found = await user.look(name())
        assert outcome == ABSENT or found == (0, 200, 0)
        await user.trim(name(generation=9), 5)  # there is no such stream

    use(engine, look)


def test_streams_are_apart_and_deleted_alone(engine: Engine) -> None:
    async def look(user: User) -> None:
        names = [name(), name("d"), name(generation=2), name(incarnation=8), name("sensor/{1}.é}")]
        for number, one in enumerate(names):
            assert (await user.put(one, 1, b"%d" % number, begins=True))[0] == DONE
        assert await user.names() == {one.parts() for one in names}
        await user.delete(names[0])
        await user.delete(names[0])
        assert (await user.look(names[0]))[0] == ABSENT
        for number, one in enumerate(names[1:], 1):
            assert await user.read(one, 1, 5) == {1: b"%d" % number}
        if not user.store.capabilities.keeps_context:
            return
        await user.context(names[1], Context(3, 4, 5))
        beside = name("d", generation=0, incarnation=0)
        assert await user.names() == {one.parts() for one in [*names[1:], beside]}
        await user.context(names[1], None)
        assert await user.names() == {one.parts() for one in names[1:]}

    use(engine, look)


def test_the_same_primary_is_the_same_and_one_that_was_wiped_is_not(engine: Engine) -> None:
    async def look(user: User) -> None:
        if not user.store.capabilities.tells_primary:
            return
        _, first = await user.put(name(), 1, b"x", begins=True)
        _, second = await user.put(name(), 2, b"y")
        assert first is not None
        assert first is second
        assert await user.sight(first) == SAME
        engine.wipe()
        assert await user.sight(first) == ANOTHER
        assert (await user.put(name(), 3, b"z"))[0] == ABSENT
        _, third = await user.put(name(), 3, b"z", begins=True)
        assert third is not first
        assert await user.sight(first) == ANOTHER

    use(engine, look)


def test_many_at_once_are_each_answered_in_the_order_of_their_stream(engine: Engine) -> None:
    async def look(user: User) -> None:
        clients = [name(f"c{number}") for number in range(50)]

        async def fill(one: QueueName) -> None:
            assert (await user.put(one, 1, b"1", begins=True))[0] == DONE
            for first in range(2, 20, 2):
                assert (await user.put(one, first, b"x", b"y"))[0] == DONE
            assert len(await user.read(one, 1, 30)) == 19

        await asyncio.gather(*map(fill, clients))

    use(engine, look)
