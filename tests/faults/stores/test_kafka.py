"""The store of queues in a real Kafka, on bad days: away, killed, its topics deleted and written to by somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from contract.test_queue_store import Engine, User, name
from headrace.core.ports.queue_store import ABSENT, DONE, REFUSED, THERE, UNSURE, QueueName
from headrace.stores.kafka.address import parse
from headrace.stores.kafka.store import KafkaStore
from kafka_server import WITHIN_S, KafkaServer, kafka_server

pytestmark = pytest.mark.kafka
DEADLINE_S = 60.0
RAISED: list[Exception] = []
PREFIXES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    with kafka_server() as found:
        found.warm_up()
        yield found


class Use:
    """A store that is tried."""

    def __init__(self, server: KafkaServer, prefix: str, options: str, keep: str, idle_s: float) -> None:
        self.server = server
        self.prefix = prefix
        address = parse(f"kafka://{server.address}/{prefix}{options}")
        self.store = KafkaStore(address, RAISED.append, keep=keep, idle_s=idle_s)
        self.user = User(Engine(), self.store)
        self.admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.store.why_not()} {self.store.counters.faults}"
            await asyncio.sleep(0.02)

    async def put(self, whose: QueueName, first: int, *entries: bytes, begins: bool = False) -> int:
        return (await self.user.put(whose, first, *entries, begins=begins))[0]

    async def looked(self, whose: QueueName) -> tuple[object, ...]:
        """What a look finds that is made again until it is answered for certain."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = await self.user.look(whose)
            if found[0] in (DONE, ABSENT):
                return found
            assert time.monotonic() < deadline, self.store.counters.faults
            await asyncio.sleep(0.1)

    def topics(self) -> list[str]:
        return sorted(
            topic
            for topic in self.admin.list_topics(timeout=WITHIN_S).topics
            if topic.startswith(self.prefix)
        )

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result(WITHIN_S)

    def make(self, topic: str, partitions: int = 1) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(WITHIN_S)


def use(
    server: KafkaServer,
    look: Callable[[Use], Awaitable[None]],
    *,
    prefix: str = "",
    options: str = "",
    keep: str = "acknowledged",
    idle_s: float = 60.0,
) -> str:
    """Try a store, under a prefix of its own unless one is given; returns the prefix."""
    prefix = prefix or f"f{next(PREFIXES)}"

    async def life() -> None:
        used = Use(server, prefix, options, keep, idle_s)
        try:
            await look(used)
        finally:
            used.store.close()

    asyncio.run(life())
    raised = list(RAISED)
    RAISED.clear()
    assert raised == []
    return prefix


async def fill(used: Use) -> None:
    await used.until(used.store.room, "it is up")
    assert await used.put(name(), 1, b"1", b"2", b"3", begins=True) == DONE, used.store.counters.faults


def test_another_process_finds_what_is_there_and_goes_on(server: KafkaServer) -> None:
    async def go_on(used: Use) -> None:
        await used.until(used.store.room, "it is up")
        assert await used.put(name(), 1, b"x", begins=True) == THERE
        assert await used.user.look(name()) == (DONE, (1, 3, 3))
        assert await used.put(name(), 4, b"4") == DONE
        assert await used.user.read(name(), 1, 9) == {n: b"%d" % n for n in range(1, 5)}

    use(server, go_on, prefix=use(server, fill))


def test_while_kafka_is_away_nothing_is_put_and_it_is_said_why(server: KafkaServer) -> None:
    """Away when the store begins, killed in the middle, and back each time with what it had."""

    async def look(used: Use) -> None:
        assert used.store.room() == 0
        assert used.store.why_not()
        server.start()
        await fill(used)
        server.kill()
        outcome = await used.put(name(), 4, b"4")
        assert outcome == UNSURE
        await used.until(lambda: used.store.room() == 0, "it is seen to be away")
        assert used.store.why_not()
        server.start()
        await used.until(used.store.room, "it is back")
        found = await used.looked(name())
        assert found in ((DONE, (1, 3, 3)), (DONE, (1, 4, 4)))
        if found == (DONE, (1, 3, 3)):
            assert await used.put(name(), 4, b"4") == DONE
        assert await used.put(name(), 5, b"5") == DONE
        assert await used.user.read(name(), 1, 9) == {n: b"%d" % n for n in range(1, 6)}

    server.kill()
    use(server, look)


def test_a_topic_that_was_deleted_by_hand_is_gone_and_named(server: KafkaServer) -> None:
    async def look(used: Use) -> None:
        await fill(used)
        topic = f"{used.prefix}.c"
        used.delete(topic)
        assert (await used.looked(name()))[0] == ABSENT
        assert await used.user.read(name(), 1, 3) == {}
        assert topic in used.store.doubt()
        assert used.store.counters.faults["topic_made_again"] >= 1
        again = name(generation=2)
        assert await used.put(again, 2, b"2", b"3", begins=True) == DONE
        assert await used.user.read(again, 2, 2) == {2: b"2", 3: b"3"}

    use(server, look)


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_of_before(server: KafkaServer) -> None:
    """The broker puts into it, notices that its offsets are not those of before, and says that nothing is there."""

    async def look(used: Use) -> None:
        await fill(used)
        topic = f"{used.prefix}.c"
        used.delete(topic)
        used.make(topic)
        assert await used.put(name(), 4, b"4") in (UNSURE, ABSENT)
        outcome, found = await used.looked(name())
        assert outcome == ABSENT or found == (4, 4, 1)
        assert topic in used.store.doubt()
        assert set(await used.user.read(name(), 1, 4)) <= {4}

    use(server, look)


def test_what_somebody_else_has_written_is_refused_and_never_deleted(server: KafkaServer) -> None:
    async def look(used: Use) -> None:
        await used.until(used.store.room, "it is up")
        foreign, wide = f"{used.prefix}.foreign", f"{used.prefix}.wide"
        used.make(foreign)
        used.make(wide, partitions=2)
        producer = Producer({"bootstrap.servers": server.address})
        producer.produce(foreign, b"not yours")
        assert producer.flush(WITHIN_S) == 0
        for client in ("foreign", "wide"):
            assert await used.put(name(client), 1, b"x", begins=True) == REFUSED
        assert used.store.counters.faults == {"foreign_topic": 2}
        assert "has records that are not headrace's" in used.store.doubt()
        assert "2 partitions" in used.store.doubt()
        assert used.topics() == [foreign, wide]

    use(server, look)


def test_a_record_that_somebody_else_put_between_is_noticed_before_anything_is_let_go_of(
    server: KafkaServer,
) -> None:
    async def look(used: Use) -> None:
        await fill(used)
        producer = Producer({"bootstrap.servers": server.address})
        producer.produce(f"{used.prefix}.c", b"not yours")
        assert producer.flush(WITHIN_S) == 0
        assert await used.put(name(), 4, b"4") == UNSURE
        assert (await used.user.look(name()))[0] == REFUSED

    use(server, look)


def test_topics_are_capped(server: KafkaServer) -> None:
    async def look(used: Use) -> None:
        await used.until(used.store.room, "it is up")
        for client in ("a", "b"):
            assert await used.put(name(client), 1, b"x", begins=True) == DONE
        assert await used.put(name("c"), 1, b"x", begins=True) == REFUSED
        assert used.store.counters.faults == {"topics_max": 1}
        assert "2 topics" in used.store.doubt()
        assert await used.put(name("a"), 2, b"y") == DONE

    use(server, look, options="?topics=2")


def test_the_topic_of_a_session_that_has_ended_goes_and_one_that_is_used_stays(server: KafkaServer) -> None:
    async def look(used: Use) -> None:
        await used.until(used.store.room, "it is up")
        for client in ("ended", "back"):
            assert await used.put(name(client), 1, b"x", begins=True) == DONE
            await used.user.delete(name(client))
            await used.user.context(name(client), None)
        assert await used.put(name("back", incarnation=8), 1, b"x", begins=True) == DONE
        await used.until(lambda: used.topics() == [f"{used.prefix}.back"], "it is gone")
        assert await used.put(name("ended", incarnation=9), 1, b"x", begins=True) == DONE

    use(server, look, idle_s=0.2)


def test_with_retention_nothing_is_deleted_by_the_broker(server: KafkaServer) -> None:
    async def look(used: Use) -> None:
        await fill(used)
        await used.user.trim(name(), 3)
        assert await used.user.look(name()) == (DONE, (3, 3, 1))
        await used.user.delete(name())
        await used.user.context(name(), None)
        assert (await used.user.look(name()))[0] == ABSENT
        assert await used.put(name(), 4, b"x", begins=True) == THERE  # never again under the same name

    async def all_is_there(used: Use) -> None:
        await used.until(used.store.room, "it is up")
        assert await used.user.look(name()) == (DONE, (1, 3, 3))

    use(server, all_is_there, prefix=use(server, look, keep="retention", idle_s=0.01))
