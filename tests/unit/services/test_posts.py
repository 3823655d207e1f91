"""Posts go to the home of their topic and are answered when they are durable; what is retained is deleted there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.errors import NotTaken, NotThere, ShardAway
from headrace.mqtt.packets import NO_EXPIRY, Connect, Publish, Subscribe, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.services import removals
from headrace.services.posts import Posts
from headrace.services.removals import NotDurable
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

TOPICS = "t0", "bc", "t1", "t/1"  # of both shards


class Shards:
    """Two shards of two in one process."""

    def __init__(self) -> None:
        clock = Clock()
        clock.now_us = 1_700_000_000_000_000
        self.worker = Worker(ManualScheduler(), clock, BrokerSettings(), Homes(2))
        self.journals = [MemoryJournal(), MemoryJournal()]
        self.brokers = [self.worker.own(number, journal) for number, journal in enumerate(self.journals)]
        self.posts = Posts(self.brokers)

    def sync(self) -> None:
        for broker, journal in zip(self.brokers, self.journals, strict=True):
            journal.sync(broker)

    def retained(self) -> list[set[str]]:
        found = [broker.fold.tenant("default").retained.messages() for broker in self.brokers]
        return [{message.topic.decode() for message in messages} for messages in found]

    def done(self, work: Coroutine[Any, Any, dict[str, object]]) -> dict[str, object]:
        """What the work answers, which is not over before the journals have synced."""

        async def life() -> dict[str, object]:
            task = asyncio.create_task(work)
            for _ in range(3):
                await asyncio.sleep(0.005)
            assert not task.done()
            self.sync()
            return await task

        return asyncio.run(life())

    def publish(self, topic: str, qos: int = 1, payload: bytes = b"x") -> dict[str, object]:
        packet = self.posts.packet(topic, payload, qos, True, Properties(), NO_EXPIRY)
        return self.done(self.posts.publish("default", packet))


def test_the_home_of_its_topic_takes_it_and_all_shards_here_are_counted() -> None:
    shards = Shards()
    for number, broker in enumerate(shards.brokers):
        link = MemoryLink(shards.worker)
        broker.on_connect(link, Connect(4, f"c{number}", False, 0))
        broker.on_subscribe(link, Subscribe(1, [SubscriptionRequest("#", 0)], 0, Properties()))
    shards.sync()
    homes = [
        {topic for topic in TOPICS if shards.worker.homes.of_topic("default", topic) == n} for n in (0, 1)
    ]
    assert all(homes)
    for topic in TOPICS:
        found = shards.publish(topic)
        assert found == {
            "tenant": "default",
            "topic": topic,
            "qos": 1,
            "retain": True,
            "size": len(topic) + 1,
            "is_stored": True,
            "is_repeated": False,
            "matching": 2,
            "elsewhere": False,
            "reason_code": 0,
        }
    assert shards.retained() == homes


def test_nobody_may_be_there_and_that_is_said() -> None:
    assert shards_answer()["reason_code"] == 16


def shards_answer() -> dict[str, object]:
    return Shards().publish("t0")


def test_what_is_retained_is_deleted_once_and_says_what_it_was() -> None:
    shards = Shards()
    shards.publish("t0", payload=b"four")
    found = shards.done(shards.posts.delete("default", "t0"))
    assert found == {"tenant": "default", "topic": "t0", "size": 6, "client_id": ""}
    assert shards.retained() == [set(), set()]
    with pytest.raises(NotThere, match="no retained message on 't0'"):
        asyncio.run(shards.posts.delete("default", "t0"))
    with pytest.raises(NotThere, match="tenant nobody"):
        asyncio.run(shards.posts.delete("nobody", "t0"))


def test_a_tenant_of_whom_nothing_is_known_is_not_made() -> None:
    shards = Shards()
    packet = Publish(b"t0", 1, False, False, 0, b"", NO_EXPIRY, b"")
    with pytest.raises(NotThere, match="no tenant 'nobody'"):
        asyncio.run(shards.posts.publish("nobody", packet))
    assert all(set(broker.fold.tenants) == {"default"} for broker in shards.brokers)


def test_a_shard_that_is_away_or_elsewhere_is_said_and_the_other_one_takes_what_is_its_own() -> None:
    shards = Shards()
    by_home = {shards.worker.homes.of_topic("default", topic): topic for topic in TOPICS}
    shards.posts = Posts(shards.brokers[1:], {0: "shard 0: journal failed"})
    with pytest.raises(ShardAway, match="shard 0: journal failed"):
        asyncio.run(shards.posts.delete("default", by_home[0]))
    with pytest.raises(ShardAway):
        asyncio.run(Posts([], {0: "shard 0: journal failed"}).delete("default", by_home[1]))
    with pytest.raises(NotThere, match="not here"):
        asyncio.run(Posts(shards.brokers[1:]).delete("default", by_home[0]))
    assert shards.publish(by_home[1])["is_stored"]


def test_a_journal_that_does_not_get_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "PATIENCE_S", 0.02)
    shards = Shards()
    packet = shards.posts.packet("t0", b"x", 1, False, Properties(), NO_EXPIRY)
    with pytest.raises(NotDurable, match="does not get on"):
        asyncio.run(shards.posts.publish("default", packet))


def test_what_is_refused_is_refused_at_once() -> None:
    posts = Shards().posts
    packet = posts.packet("$SYS/x", b"x", 1, False, Properties(), NO_EXPIRY)
    with pytest.raises(NotTaken):
        asyncio.run(posts.publish("default", packet))


def test_a_packet_has_what_was_said_of_it() -> None:
    properties = Properties()
    properties.content_type, properties.user_properties = "t", [("a", "b"), ("a", "c")]
    packet = Shards().posts.packet("a/b", b"\x00" * 300, 2, True, properties, 7)
    assert (packet.topic, packet.qos, packet.retain, packet.payload) == (b"a/b", 2, True, bytes(300))
    assert (packet.properties, packet.message_expiry_s) == (properties.encode(), 7)


@pytest.mark.parametrize("topic", ["", "a/#", "a/+/b", "a\x00b", "x" * 65_536])
def test_a_topic_that_is_none_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match=r"topic|bytes|string"):
        Shards().posts.packet(topic, b"", 0, False, Properties(), NO_EXPIRY)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("response_topic", "a/#"), ("content_type", "a\x00"), ("content_type", "x" * 65_536)],
)
def test_properties_that_no_client_may_send_are_refused(attribute: str, value: str) -> None:
    properties = Properties()
    setattr(properties, attribute, value)
    with pytest.raises(ValueError):
        Shards().posts.packet("a", b"", 0, False, properties, NO_EXPIRY)


def test_what_is_larger_than_a_client_may_send_is_refused() -> None:
    shards = Shards()
    shards.worker.settings.packet_bytes_max = 100
    with pytest.raises(ValueError, match="100 are accepted"):
        shards.posts.packet("a", bytes(100), 0, False, Properties(), NO_EXPIRY)


@pytest.mark.parametrize("stale", [True, False])
def test_a_message_is_of_now_even_if_nobody_has_read_for_long(stale: bool) -> None:
    """A clock that the timer has set a while ago would make its delivery late in the figures."""
    shards = Shards()
    before = shards.worker.clock.now_us
    shards.worker.clock.stale = stale
    shards.publish("t0")
    home = shards.brokers[shards.worker.homes.of_topic("default", "t0")]
    found = home.fold.tenant("default").retained.get(b"t0")
    assert found is not None
    assert (found.timestamp_us > before) == stale
