"""A session that is dropped is gone at once, and stays gone in a replay; its client is told, its will is published."""

from __future__ import annotations

import pytest

from harness import Client, Harness, held
from headrace.core.inbound.dropping import SessionDrop
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import DEFAULT_TENANT, Identity
from headrace.core.ports.link import Link
from headrace.core.records.event import SessionEnded
from headrace.core.records.record import DROP_SESSION_ENDED
from headrace.core.state.session import Session
from headrace.errors import BrokersOwn
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import SubscriptionRequest, Will
from headrace.mqtt.properties import Properties
from shard_wires import WiredShards, received

CONNACK, DISCONNECT = 2, 14


def drop(harness: Harness, client_id: str = "c", tenant: str = DEFAULT_TENANT) -> SessionDrop:
    return harness.broker.dropping.drop(tenant, client_id)


def session_of(harness: Harness, client_id: str = "c") -> Session | None:
    return harness.broker.fold.tenant(DEFAULT_TENANT).sessions.get(client_id)


def will(topic: str = "w", delay_s: int = 0) -> Will:
    return Will(topic, b"gone", 1, False, b"", delay_s)


def said(client: Client, packet: int) -> list[bytes]:
    """The bodies of the packets of this type that have come."""
    return [body for first, body in client.drain() if first >> 4 == packet]


def present(client: Client) -> int:
    """The Session Present flag of the CONNACK."""
    return said(client, CONNACK)[0][0]


def away_with_backlog(harness: Harness) -> Client:
    """A client that is away, for which three messages wait, one of them in flight; returns who publishes."""
    client = harness.client("c")
    client.subscribe("a/#")
    writer = harness.client("writer")
    writer.publish("a/b", b"in flight")
    client.lose()
    for text in (b"1", b"2"):
        writer.publish("a/b", text)
    return writer


def test_one_that_is_away_is_gone_with_all_it_had_when_that_is_durable() -> None:
    harness = Harness()
    writer = away_with_backlog(harness)
    dropped = drop(harness)
    assert (dropped.found, dropped.messages, dropped.was_connected, dropped.over) == (True, 3, False, False)
    harness.sync()
    assert dropped.over
    for _ in range(2):
        assert session_of(harness) is None
        tenant = harness.broker.fold.tenant(DEFAULT_TENANT)
        assert not tenant.is_heard(b"a/b")
        assert tenant.space.bytes == 0
        harness.crash()
    assert writer.publish("a/b", b"3")
    assert present(harness.client("c")) == 0


def test_what_waited_is_counted_as_ended_with_its_session() -> None:
    harness = Harness()
    away_with_backlog(harness)
    drop(harness)
    harness.sync()
    assert harness.broker.fold.tenant(DEFAULT_TENANT).counters.dropped == {DROP_SESSION_ENDED: 3}


@pytest.mark.parametrize(("version", "told"), [(5, [bytes([rc.ADMINISTRATIVE_ACTION])]), (4, [])])
@pytest.mark.parametrize("expiry_s", [0, 3600])
def test_a_connected_client_is_told_why_and_cut_off(version: int, told: list[bytes], expiry_s: int) -> None:
    harness = Harness()
    client = harness.client("c", clean=not expiry_s, version=version, expiry_s=expiry_s)
    client.subscribe("a")
    dropped = drop(harness)
    harness.sync()
    assert (dropped.found, dropped.was_connected, dropped.over) == (True, True, True)
    assert client.link.closed
    assert [body[:1] for body in said(client, DISCONNECT)] == told
    assert (session_of(harness), harness.broker.sessions.connected) == (None, 0)
    assert not harness.broker.fold.tenant(DEFAULT_TENANT).is_heard(b"a")


@pytest.mark.parametrize("delay_s", [0, 60])
@pytest.mark.parametrize("is_connected", [True, False])
def test_its_will_is_published_once_since_the_session_ends(delay_s: int, is_connected: bool) -> None:
    """[MQTT-3.1.2-8], also one whose delay runs [MQTT-3.1.3-9]."""
    harness = Harness()
    watcher = harness.client("watcher")
    watcher.subscribe("w")
    client = harness.client("c", version=5, will=will(delay_s=delay_s))
    if not is_connected:
        client.lose()
        assert len(watcher.publishes()) == (delay_s == 0)
    drop(harness)
    harness.sync()
    assert len(watcher.publishes()) == (is_connected or delay_s > 0)
    harness.advance(120)
    assert watcher.publishes() == []
    harness.crash()
    harness.advance(120)
    assert session_of(harness) is None
    assert len([r for r in harness.journal.records if getattr(r, "topic", b"") == b"w"]) == 1


def test_the_will_of_a_client_that_said_goodbye_is_not_published() -> None:
    harness = Harness()
    watcher = harness.client("watcher")
    watcher.subscribe("w")
    harness.client("c", version=5, will=will(delay_s=60)).disconnect()
    drop(harness)
    harness.sync()
    assert watcher.publishes() == []


def test_dropped_twice_at_once_the_second_finds_none_and_knows_it_when_the_first_is_durable() -> None:
    harness = Harness()
    away_with_backlog(harness)
    first, second = drop(harness), drop(harness)
    assert (first.found, second.found) == (True, False)
    harness.worker.end_tick()
    assert not second.over
    harness.sync()
    assert (first.over, second.over) == (True, True)
    ended = [record for record in harness.journal.records if isinstance(record, SessionEnded)]
    assert [(record.fields["reason"], record.fields["code"]) for record in ended] == [("dropped", 0x98)]


def test_a_crash_before_it_is_durable_leaves_all_as_it_was() -> None:
    harness = Harness()
    away_with_backlog(harness)
    dropped = drop(harness)
    harness.worker.end_tick()  # on its way to the disk
    harness.crash()
    assert not dropped.over
    assert session_of(harness) is not None
    client = harness.client("c")
    assert present(client) == 1
    assert received(client) == [b"in flight", b"1", b"2"]


def test_what_a_replay_makes_is_what_there_was() -> None:
    harness = Harness()
    away_with_backlog(harness)
    harness.take_snapshot()
    harness.client("other").subscribe("a/#")
    drop(harness)
    harness.sync()
    harness.crash()
    with_snapshot = held(harness.broker.fold)
    harness.snapshot = None
    harness.crash()
    assert held(harness.broker.fold) == with_snapshot


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_whose_connect_waits_for_the_disk_gets_no_answer(version: int) -> None:
    """DISCONNECT before CONNACK would be against the protocol [MQTT-3.2.0-1]."""
    harness = Harness()
    client = harness.client("c", version=version, sync=False)
    dropped = drop(harness)
    harness.sync()
    assert (dropped.found, dropped.was_connected, dropped.over) == (True, True, True)
    assert client.link.closed
    assert client.take() == []
    assert session_of(harness) is None


def test_who_comes_back_before_that_is_durable_has_a_new_session_behind_it() -> None:
    harness = Harness()
    writer = away_with_backlog(harness)
    dropped = drop(harness)
    client = harness.client("c", sync=False)
    over = [dropped.over]
    harness.sync()
    assert [*over, dropped.over] == [False, True]
    assert present(client) == 0
    client.subscribe("a/#")
    writer.publish("a/b", b"new")
    assert [payload for _, payload, _, _ in client.publishes()] == [b"new"]
    harness.crash()
    assert session_of(harness) is not None


def test_a_subscribe_on_its_way_goes_with_it() -> None:
    harness = Harness()
    client = harness.client("c")
    filters = ("a/#", "$share/g/a/#")
    requests = [SubscriptionRequest(name, 1, False, False, 0) for name in filters]
    client.feed(codec.encode_subscribe(4, 7, requests, Properties()), sync=False)
    drop(harness)
    harness.sync()
    for _ in range(2):
        tenant = harness.broker.fold.tenant(DEFAULT_TENANT)
        assert not tenant.is_heard(b"a/b")
        assert not tenant.groups
        harness.crash()


def test_what_it_had_of_a_shared_subscription_goes_to_the_other_members() -> None:
    harness = Harness()
    client, other = harness.client("c"), harness.client("other")
    for member in (client, other):
        member.subscribe("$share/g/a", 1)
    writer = harness.client("writer")
    for number in range(4):
        writer.publish("a", b"%d" % number)
    client.drain()
    first = [packet_id for packet_id, _, _, _ in other.publishes()]
    for packet_id in first:
        other.ack(packet_id)
    drop(harness)
    harness.sync()
    assert len(first) + len(other.publishes()) == 4
    [group] = harness.broker.fold.tenant(DEFAULT_TENANT).groups.values()
    assert [session.client_id for session in group.members] == ["other"]


def test_of_a_group_in_another_shard_nothing_is_left_there() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 1)
    client = shards[0].client("m")
    name = next(iter(shards[0].broker.fold.tenant(DEFAULT_TENANT).sessions))
    client.subscribe(share, 1)
    shards.carry()
    assert len(shards[1].broker.fold.tenant(DEFAULT_TENANT).groups) == 1
    client.lose()
    shards.carry()
    writer = shards[1].client("w")
    writer.publish("a/b", b"x")
    shards.carry()
    dropped = shards[0].broker.dropping.drop(DEFAULT_TENANT, name)
    shards.carry()
    assert dropped.over
    for _ in range(2):
        fold = shards[1].broker.fold
        assert not fold.tenant(DEFAULT_TENANT).groups
        assert fold.tenant(DEFAULT_TENANT).space.bytes == 0
        assert [s.client_id for s in fold.by_incarnation.values() if s.stands_in] == []
        for number in (0, 1):
            shards.crash(number)
            shards.join_again(number)
        shards.carry()
    assert received(client) == []


def share_in(shards: WiredShards, home: int) -> str:
    homes = shards[0].worker.homes
    names = (f"g{number}" for number in range(99))
    return next(f"$share/{n}/a/#" for n in names if homes.of_group(DEFAULT_TENANT, n, "a/#") == home)


@pytest.mark.parametrize("client_id", ["$bridge/north", "$member/0/7"])
def test_the_brokers_own_sessions_are_refused(client_id: str) -> None:
    with pytest.raises(BrokersOwn, match=client_id.replace("$", r"\$")):
        drop(Harness(), client_id)


def test_of_one_that_nobody_knows_nothing_is_written_and_no_tenant_is_made() -> None:
    harness = Harness()
    count = len(harness.journal.records)
    for tenant, client_id in ((DEFAULT_TENANT, "x"), ("nobody", "c")):
        dropped = drop(harness, client_id, tenant)
        harness.sync()
        assert (dropped.found, dropped.over) == (False, True)
    assert len(harness.journal.records) == count
    assert "nobody" not in harness.broker.fold.tenants


def test_one_whose_time_is_over_has_expired_and_is_not_there() -> None:
    harness = Harness()
    harness.client("c", version=5, expiry_s=10).lose()
    harness.now_us += 11_000_000
    harness._set_clock()
    dropped = drop(harness)
    harness.sync()
    assert (dropped.found, dropped.over, session_of(harness)) == (False, True, None)


class Short(Access):
    """Rules that cannot be asked about wills while memory is short."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return True

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return True

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        if self.fails:
            raise MemoryError
        return True


@pytest.mark.parametrize("delay_s", [0, 60])
def test_without_memory_for_a_moment_it_is_not_dropped_and_can_be_dropped_again(delay_s: int) -> None:
    harness, rules = Harness(), Short()
    harness.worker.guard(rules)
    client = harness.client("c", version=5, will=will(delay_s=delay_s))
    rules.fails = True
    with pytest.raises(MemoryError):
        drop(harness)
    harness.sync()
    assert client.link.closed
    assert session_of(harness) is not None
    rules.fails = False
    harness.advance(10)
    dropped = drop(harness)
    harness.sync()
    assert (dropped.found, dropped.was_connected, dropped.over) == (True, False, True)
    harness.crash()
    assert session_of(harness) is None
    assert len([r for r in harness.journal.records if getattr(r, "topic", b"") == b"w"]) == 1
