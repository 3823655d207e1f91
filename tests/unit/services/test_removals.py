"""Removals are answered when they are durable, by the shard that has the queue; where the journal does not get on that is
said."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.broker import Broker
from headrace.core.outbound.cluster_readers import Guest
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.voice import Draught, Voice
from headrace.core.worker import Worker
from headrace.errors import BrokersOwn, InUse, NotThere, ShardAway
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties
from headrace.services import removals
from headrace.services.removals import NotDurable, Removals
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink


class Silent(Voice):
    """Says nothing."""

    def device(self, sn: bytes) -> str:
        return sn.decode()

    def joined(self, sn: bytes, code: int) -> None:
        assert code == 0

    def left(self, sn: bytes, code: int) -> None:
        assert code == 0

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        assert not messages


class Shards:
    """Two shards in one process, each with a queue of its own and a cluster in it."""

    def __init__(self) -> None:
        clock = Clock()
        clock.now_us = 1_700_000_000_000_000
        self.worker = Worker(ManualScheduler(), clock, BrokerSettings())
        self.journals = [MemoryJournal(), MemoryJournal()]
        self.brokers = [self.worker.own(number, journal) for number, journal in enumerate(self.journals)]
        self.guests = [self.begin(broker, b"t%d" % number) for number, broker in enumerate(self.brokers)]

    def begin(self, broker: Broker, topic: bytes) -> Guest:
        guest = Guest(MemoryLink(self.worker), Silent())
        consuming = broker.devices.consuming
        assert consuming.open(broker.fold.tenant("default"), topic) == 0
        consuming.join(guest, b"s", topic, b"c")
        self.sync()
        return guest

    def sync(self) -> None:
        for broker, journal in zip(self.brokers, self.journals, strict=True):
            journal.sync(broker)

    def leave(self, number: int) -> None:
        consuming = self.brokers[number].devices.consuming
        consuming.leave(self.guests[number], b"s", b"t%d" % number, b"c")
        self.sync()


async def meanwhile(shards: Shards, work: asyncio.Task[dict[str, object]]) -> dict[str, object]:
    """The work that needs the journal is not over before that has synced."""
    for _ in range(3):
        await asyncio.sleep(0.005)
    assert not work.done()
    shards.sync()
    return await work


@pytest.mark.parametrize("number", [0, 1])
def test_the_shard_that_has_it_removes_it_and_answers_when_it_is_durable(number: int) -> None:
    shards = Shards()
    shards.leave(number)
    removing = Removals(shards.brokers)

    async def life() -> None:
        cluster = asyncio.create_task(removing.cluster("default", f"t{number}", "c"))
        found = await meanwhile(shards, cluster)
        assert (found["cluster"], found["unfinished"]) == ("c", 0)
        queue = asyncio.create_task(removing.queue("default", f"t{number}", True))
        found = await meanwhile(shards, queue)
        assert (found["topic"], found["cluster"], found["messages"]) == (f"t{number}", None, 0)
        with pytest.raises(NotThere, match=f"t{number}"):
            await removing.queue("default", f"t{number}", True)

    asyncio.run(life())
    assert len(shards.brokers[1 - number].fold.queues.by_id) == 1


def test_what_is_refused_is_refused_at_once() -> None:
    shards = Shards()
    removing = Removals(shards.brokers)
    with pytest.raises(InUse, match="read by s"):
        asyncio.run(removing.queue("default", "t1", True))
    with pytest.raises(NotThere, match="nobody"):
        asyncio.run(removing.cluster("nobody", "t1", "c"))
    with pytest.raises(NotThere):
        asyncio.run(Removals([]).queue("default", "t1", True))


def test_what_may_be_in_a_shard_that_is_away_is_not_said_to_be_gone() -> None:
    """Whoever is told that a session or a queue is not there does not ask again."""
    brokers = Shards().brokers
    removing = Removals(brokers[1:], {0: "shard 0: journal failed"})  # the home of all clients

    async def kick() -> dict[str, object]:
        return removing.client("default", "c")

    asked = [
        removing.session("default", "c"),
        kick(),
        removing.queue("default", "t0", True),
        removing.cluster("default", "t0", "c"),
    ]
    for one in asked:
        with pytest.raises(ShardAway, match="shard 0: journal failed"):
            asyncio.run(one)
    with pytest.raises(NotThere):
        Removals(brokers[:1], {1: "shard 1: journal failed"}).client("default", "c")


def test_a_journal_that_does_not_get_on_is_said_and_who_asks_again_meanwhile_finds_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(removals, "PATIENCE_S", 0.02)
    shards = Shards()
    shards.leave(0)
    removing = Removals(shards.brokers)
    with pytest.raises(NotDurable, match="does not get on"):
        asyncio.run(removing.queue("default", "t0", True))
    with pytest.raises(NotThere):
        asyncio.run(removing.queue("default", "t0", True))
    shards.sync()
    assert shards.brokers[0].fold.queues.find("default", b"t0") is None


def session_in(shards: Shards, client_id: str = "c") -> bool:
    return client_id in shards.brokers[0].fold.tenant("default").sessions


def connect(shards: Shards, client_id: str = "c") -> MemoryLink:
    link = MemoryLink(shards.worker)
    shards.brokers[0].on_connect(link, Connect(4, client_id, False, 0))
    shards.sync()
    assert session_in(shards, client_id)
    return link


def test_a_session_is_dropped_and_that_is_answered_when_it_is_durable_also_that_it_is_not_there() -> None:
    shards = Shards()
    link = connect(shards)
    removing = Removals(shards.brokers)

    async def life() -> None:
        drop = asyncio.create_task(removing.session("default", "c"))
        await asyncio.sleep(0)
        again = asyncio.create_task(removing.session("default", "c"))
        found = await meanwhile(shards, drop)
        assert found == {"tenant": "default", "client_id": "c", "connected": True, "messages": 0}
        with pytest.raises(NotThere, match="no session 'c'"):
            await again

    asyncio.run(life())
    assert (link.closed, session_in(shards)) == (True, False)


def test_the_brokers_own_session_is_refused_at_once() -> None:
    with pytest.raises(BrokersOwn, match="bridge"):
        asyncio.run(Removals(Shards().brokers).session("default", "$bridge/x"))


def test_a_session_that_is_at_home_elsewhere_is_not_there() -> None:
    with pytest.raises(NotThere):
        asyncio.run(Removals(Shards().brokers[1:]).session("default", "c"))


def test_a_drop_is_neither_said_nor_denied_while_the_journal_does_not_get_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(removals, "PATIENCE_S", 0.02)
    shards = Shards()
    connect(shards)
    removing = Removals(shards.brokers)
    for _ in range(2):
        with pytest.raises(NotDurable, match="does not get on"):
            asyncio.run(removing.session("default", "c"))
    shards.sync()
    with pytest.raises(NotThere):
        asyncio.run(sooner(shards, removing))


async def sooner(shards: Shards, removing: Removals) -> dict[str, object]:
    """A drop whose journal syncs meanwhile."""
    drop = asyncio.create_task(removing.session("default", "c"))
    await asyncio.sleep(0)
    shards.sync()
    return await drop


@pytest.mark.parametrize(("version", "told"), [(5, b"\xe0\x01\x98"), (4, b"")])
@pytest.mark.parametrize("kept", [True, False])
def test_who_is_kicked_is_told_and_cut_off_and_its_session_stays(
    version: int, told: bytes, kept: bool
) -> None:
    shards = Shards()
    link, properties = MemoryLink(shards.worker), Properties()
    properties.session_expiry_interval = 99 if kept else None
    shards.brokers[0].on_connect(link, Connect(version, "c", not kept, 0, properties=properties))
    shards.sync()
    before = len(link.sent)
    removing = Removals(shards.brokers)
    assert removing.client("default", "c") == {"tenant": "default", "client_id": "c", "session_kept": kept}
    shards.sync()
    assert (bytes(link.sent[before:]), link.closed) == (told, True)
    assert session_in(shards) is kept
    with pytest.raises(NotThere, match="'c' that is connected"):
        removing.client("default", "c")


def test_who_cannot_be_kicked() -> None:
    removing = Removals(Shards().brokers)
    with pytest.raises(NotThere, match="tenant nobody has no client 'c'"):
        removing.client("nobody", "c")
    with pytest.raises(BrokersOwn):
        removing.client("default", "$bridge/north")
