"""A worker that owns several shards: each client is served where it is at home, and one shard's trouble is its own."""

from __future__ import annotations

from collections import Counter

import pytest

from harness import Client, Harness
from headrace.core.ports.journal import GONE, Absent, JournalPort
from headrace.core.ports.latencies import Latencies
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.timers import Timer
from headrace.core.records.message import Message
from headrace.core.worker import TIMERS_AT_ONCE
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Will
from shards import Shards

CONNACK, PUBACK, DISCONNECT = 0x20, 0x40, 0xE0
ASSIGNED = b"\x12\x00\x29"  # the property, and the 41 bytes of "headrace-" and a random number


class Heard(Latencies):
    """Counts what it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def acknowledged(self, arrived_us: int) -> None:
        self.found["acknowledged"] += 1

    def delivered(self, arrived_us: int) -> None:
        self.found["delivered"] += 1


class Broken(JournalPort):
    """Takes nothing, and has nothing."""

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        raise OSError(5, "the disk is gone")

    def fetch(self, offset: int) -> Message | Absent:
        return GONE


class Noted(Timer):
    """Notes that it was fired."""

    def __init__(self, fired: list[int]) -> None:
        super().__init__()
        self._fired = fired

    def fire(self, now_ms: int) -> None:
        self._fired.append(now_ms)


def acknowledged(client: Client) -> bool:
    return any(first == PUBACK for first, _ in client.take())


# Homes


def test_each_client_is_served_by_the_broker_of_its_home() -> None:
    shards = Shards()
    clients = [shards.client(f"c{number}") for number in range(60)]
    for number, client in enumerate(clients):
        home = shards.brokers[shards.worker.homes.of_client("default", f"c{number}")]
        assert client.link.broker is home
        assert f"c{number}" in home.fold.tenant("default").sessions
    held = [len(broker.fold.by_incarnation) for broker in shards.brokers]
    assert sum(held) == len(clients)
    assert min(held) > 0


def test_a_message_is_stored_acknowledged_and_delivered_within_its_shard() -> None:
    shards = Shards()
    for shard in range(3):
        subscriber, publisher = shards.client_in(shard, "s"), shards.client_in(shard, "p")
        subscriber.subscribe(f"t/{shard}")
        publisher.publish(f"t/{shard}", b"x")
        assert acknowledged(publisher)
        assert [payload for _, payload, _, _ in subscriber.publishes()] == [b"x"]


def test_takeover_is_decided_at_the_home() -> None:
    shards = Shards()
    for shard in range(3):
        first = shards.client_in(shard, version=5)
        first.take()
        second = shards.client_in(shard, version=5)
        assert first.take() == [(DISCONNECT, bytes((rc.SESSION_TAKEN_OVER,)))]
        assert first.link.closed
        assert second.take()[0][1][0] == 1  # session present
        assert len(shards.brokers[shard].fold.by_incarnation) == 1


def test_a_client_id_that_is_assigned_is_at_home_where_its_connection_is() -> None:
    shards = Shards()
    found: Counter[int] = Counter()
    for _ in range(30):
        client = shards.client("", clean=True, version=5)
        first, body = client.take()[0]
        assert first == CONNACK
        at = body.index(ASSIGNED) + len(ASSIGNED)
        client_id = body[at : at + 41].decode()
        home = shards.worker.homes.of_client("default", client_id)
        assert client.link.broker is shards.brokers[home]
        found[home] += 1
    assert found == {0: 10, 1: 10, 2: 10}


def test_sessions_are_found_again_where_they_were_after_a_restart() -> None:
    shards = Shards()
    names = [f"c{number}" for number in range(30)]
    for name in names:
        shards.client(name).subscribe("t/#")
    before = [sorted(broker.fold.tenant("default").sessions) for broker in shards.brokers]
    shards.restart()
    assert [sorted(broker.fold.tenant("default").sessions) for broker in shards.brokers] == before
    for name in names:
        assert shards.client(name).take()[0] == (CONNACK, b"\x01\x00")  # session present


# The end of a tick, and time


def test_one_tick_hands_a_batch_to_each_journal_that_has_one() -> None:
    shards = Shards()
    publishers = [shards.client_in(shard) for shard in range(3)]
    requests, ticks = shards.scheduler.requests, shards.worker.ticks
    batches = [broker.commit.batches for broker in shards.brokers]
    for publisher in publishers:
        publisher.publish("t", b"x", sync=False)
    assert shards.scheduler.requests == requests + 1
    shards.worker.end_tick()
    assert shards.worker.ticks == ticks + 1
    assert [broker.commit.batches for broker in shards.brokers] == [count + 1 for count in batches]


def test_sessions_wills_and_retained_messages_of_all_shards_run_out() -> None:
    shards = Shards()
    heard = []
    for shard in range(3):
        publisher = shards.client_in(shard, "p")
        publisher.publish(f"kept/{shard}", b"x", retain=True, sync=True)
        short = shards.client_in(shard, "short", version=5)
        short.publish(f"short/{shard}", b"x", retain=True, expiry_s=5)
        subscriber = shards.client_in(shard, "s")
        subscriber.subscribe("w/#")
        will = Will(f"w/{shard}", b"gone", 1, False, b"", 2, -1)
        shards.client_in(shard, "dying", version=5, expiry_s=10, will=will).lose()
        heard.append(subscriber)
    shards.advance(3)
    assert [[payload for _, payload, _, _ in one.publishes()] for one in heard] == [[b"gone"]] * 3
    shards.advance(10)
    for shard, broker in enumerate(shards.brokers):
        tenant = broker.fold.tenant("default")
        assert shards.name_in(shard, "dying") not in tenant.sessions
        assert [message.topic for message in tenant.retained.messages()] == [b"kept/%d" % shard]


@pytest.mark.interpreted  # the timers are made here
def test_a_pass_fires_as_many_timers_as_ever_of_all_shards_together() -> None:
    shards = Shards(4)
    fired: list[int] = []
    for broker in shards.brokers:
        for _ in range(TIMERS_AT_ONCE):
            broker.timers.schedule(shards.clock.mono_ms + 1000, Noted(fired))
    shards.clock.mono_ms += 2000
    shards.worker.on_timer()
    assert len(fired) == TIMERS_AT_ONCE
    assert shards.worker.behind
    for _ in range(4):
        shards.worker.on_timer()
    assert len(fired) == 4 * TIMERS_AT_ONCE
    assert not shards.worker.behind


@pytest.mark.interpreted
def test_timers_of_one_shard_do_not_wait_for_the_journal_of_another() -> None:
    shards = Shards()
    slow: list[int] = []
    others: list[int] = []
    shards.brokers[1].timers.schedule(shards.clock.mono_ms + 1000, Noted(slow))
    shards.brokers[2].timers.schedule(shards.clock.mono_ms + 1000, Noted(others))
    shards.worker.timers.schedule(shards.clock.mono_ms + 1000, Noted(others))
    publisher = shards.client_in(1)
    for number in range(17):
        publisher.publish(f"t/{number}", bytes(64 << 10), qos=0, retain=True, sync=False)
    shards.clock.mono_ms += 2000
    shards.worker.on_timer()
    assert (len(slow), len(others)) == (0, 2)
    assert shards.worker.behind
    shards.sync()
    shards.worker.on_timer()
    assert (len(slow), len(others)) == (1, 2)


def test_each_shard_tells_of_its_latencies() -> None:
    shards = Shards()
    heard = shards.worker.latencies = Heard()
    publishers = [shards.client_in(shard) for shard in range(3)]
    for publisher in publishers:
        publisher.subscribe("t")
    heard.found.clear()
    shards.now_us += 1_000_000
    for publisher in publishers:
        publisher.publish("t", b"x", sync=False)
    shards.sync()
    assert heard.found == {"acknowledged": 3, "delivered": 3}


# Trouble


def test_a_journal_that_fails_stops_its_shard_alone() -> None:
    shards = Shards()
    failed: list[BaseException] = []
    for broker in shards.brokers:
        broker.journal_failed = failed.append
    clients = [shards.client_in(shard) for shard in range(3)]
    shards.brokers[1].commit._journal = Broken()
    for number in range(3):
        for client in clients:
            client.publish(f"t/{number}", b"x")
        assert [acknowledged(client) for client in clients] == [True, False, True]
    assert [str(error) for error in failed] == ["[Errno 5] the disk is gone"]
    assert [broker.commit.failed is None for broker in shards.brokers] == [True, False, True]
    assert shards.worker.failures.counts["journal"] == 1
    assert not shards.worker.idle


def test_a_full_disk_of_one_shard_holds_back_its_publishers_alone() -> None:
    shards = Shards()
    clients = [shards.client_in(shard) for shard in range(3)]
    shards.brokers[2].set_storage_full(True)
    for client in clients:
        client.publish("t", b"x")
    assert [acknowledged(client) for client in clients] == [True, True, False]
    shards.brokers[2].set_storage_full(False)
    shards.sync()
    assert acknowledged(clients[2])


def test_a_failure_on_behalf_of_one_client_costs_the_others_nothing_in_any_shard() -> None:
    shards = Shards()
    clients = [shards.client_in(shard, version=5) for shard in range(3)]
    shards.worker.contain("delivery", clients[1].link, RuntimeError("a defect"))
    shards.sync()
    assert [client.link.closed for client in clients] == [False, True, False]
    assert clients[1].take()[-1] == (DISCONNECT, bytes((rc.IMPLEMENTATION_SPECIFIC_ERROR,)))
    session = shards.brokers[1].fold.tenant("default").sessions[shards.name_in(1)]
    assert session.link is None


def test_the_limits_of_users_and_access_control_are_those_of_all_shards() -> None:
    settings = BrokerSettings()
    settings.allow_anonymous = False
    shards = Shards(settings=settings)
    limits = shards.worker.anyone.limits
    limits.user_messages_per_s = 7
    for shard, broker in enumerate(shards.brokers):
        assert broker.fold.tenant("default").limits is limits
        assert shards.client_in(shard, version=5).take()[0][1][1] == rc.NOT_AUTHORIZED


def test_one_shard_is_what_a_broker_was() -> None:
    harness = Harness()
    assert harness.worker.home_of("default", "whoever") is harness.broker
    assert harness.worker.home_of("default", "") is harness.broker
