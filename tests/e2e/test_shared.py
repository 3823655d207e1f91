"""Shared subscriptions: one queue for a group, each message to one member, none lost when members come and go."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess, make_broker
from e2e.conftest import finish
from e2e.raw import RawClient, SilenceError
from e2e.wire import (
    PUBACK,
    PUBLISH,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY,
    SHARED_AVAILABLE,
    Packet,
)

Clients = Callable[..., RawClient]
KEEP = {"clean": False, "properties": {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: 10}}


@pytest.fixture(autouse=True)
def _available(broker: BrokerProcess, clients: Clients) -> None:
    if clients(broker, "", 5).connack.properties.get(SHARED_AVAILABLE, 1) == 0:
        pytest.skip("the broker says that it has no shared subscriptions")


def member(
    broker: BrokerProcess, clients: Clients, client_id: str, topic_filter: str, qos: int = 1
) -> RawClient:
    client = clients(broker, client_id, 5, **KEEP)
    client.subscribe(topic_filter, qos=qos)
    return client


def gather(members: list[RawClient], count: int, deadline_s: float = 10.0) -> list[list[Packet]]:
    """What each member got, acknowledged, until `count` have come or none come any more."""
    found: list[list[Packet]] = [[] for _ in members]
    until = time.monotonic() + deadline_s
    while sum(map(len, found)) < count and time.monotonic() < until:
        for client, share in zip(members, found, strict=True):
            try:
                while True:
                    share.append(client.receive(0.02))
            except SilenceError:
                continue
    return found


def numbers(packets: list[Packet]) -> list[int]:
    return [int(one.payload) for one in packets]


def test_each_message_to_one_member_in_order(broker: BrokerProcess, clients: Clients, name: str) -> None:
    members = [member(broker, clients, f"{name}-{n}", f"$share/g/{name}/+") for n in range(3)]
    clients(broker).deliver_many(f"{name}/t", range(300))
    found = [numbers(share) for share in gather(members, 300)]
    assert Counter(number for share in found for number in share) == Counter(range(300))
    assert all(share == sorted(share) for share in found)
    assert all(found), "somebody got nothing"


def test_two_groups_and_one_alone_all_have_everything(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    groups = [member(broker, clients, f"{name}-{n}", f"$share/{n}/{name}") for n in ("one", "two")]
    alone = member(broker, clients, f"{name}-alone", name)
    both = member(broker, clients, f"{name}-both", f"$share/one/{name}")  # shares with the first
    clients(broker).deliver_many(name, range(50))
    found = [numbers(share) for share in gather([*groups, alone, both], 150)]
    assert sorted(found[0] + found[3]) == list(range(50))
    assert found[1] == found[2] == list(range(50))


def test_the_queue_waits_while_all_are_away(broker: BrokerProcess, clients: Clients, name: str) -> None:
    members = [member(broker, clients, f"{name}-{n}", f"$share/g/{name}") for n in range(2)]
    for client in members:
        client.disconnect()
    clients(broker).deliver_many(name, range(100))
    again = clients(broker, f"{name}-1", 5, **KEEP)
    assert again.connack.session_present
    assert numbers(gather([again], 100)[0]) == list(range(100))


def test_a_member_without_quota_is_passed_over(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """One holds its ten unacknowledged; the other must get all the rest."""
    holding = member(broker, clients, f"{name}-1", f"$share/g/{name}")
    working = member(broker, clients, f"{name}-2", f"$share/g/{name}")
    clients(broker).deliver_many(name, range(200))
    done = numbers(gather([working], 190)[0])
    held = numbers([holding.expect(PUBLISH) for _ in range(10)])
    assert sorted(done + held) == list(range(200))


@pytest.mark.parametrize("cut", ["disconnect", "reset"])
def test_what_one_leaves_unacknowledged_another_gets(
    broker: BrokerProcess, clients: Clients, name: str, cut: str
) -> None:
    leaving = member(broker, clients, f"{name}-1", f"$share/g/{name}")
    clients(broker).deliver_many(name, range(30))
    held = [leaving.expect(PUBLISH) for _ in range(10)]
    for one in held[::2]:
        leaving.ack(PUBACK, one.packet_id)
    held += leaving.ping()
    staying = member(broker, clients, f"{name}-2", f"$share/g/{name}")
    held += leaving.disconnect() if cut == "disconnect" else []
    if cut == "reset":
        leaving.abort()
    found = numbers(gather([staying], 25)[0])
    assert sorted(found) == sorted(set(range(30)) - {0, 2, 4, 6, 8})
    assert len(found) == 25


def test_qos_2_completes_with_its_member(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """It is never given to another: that would be twice."""
    one = member(broker, clients, f"{name}-1", f"$share/g/{name}", 2)
    clients(broker).deliver_many(name, range(4), qos=2)
    sent = [one.expect(PUBLISH) for _ in range(4)]
    one.ack(PUBREC, sent[0].packet_id)
    one.expect_ack(PUBREL, sent[0].packet_id)
    two = member(broker, clients, f"{name}-2", f"$share/g/{name}", 2)
    one.leave()
    clients(broker).deliver(name, b"9", 2)
    assert numbers(gather([two], 1)[0]) == [9]
    one = clients(broker, f"{name}-1", 5, **KEEP)
    back = [one.expect_any(PUBLISH, PUBREL) for _ in range(4)]
    assert [one.packet_id for one in back if one.kind == PUBREL] == [sent[0].packet_id]
    again = [(one.payload, one.packet_id, one.dup) for one in back if one.kind == PUBLISH]
    assert again == [(one.payload, one.packet_id, True) for one in sent[1:]]


def test_the_last_to_unsubscribe_ends_the_group(broker: BrokerProcess, clients: Clients, name: str) -> None:
    one = member(broker, clients, f"{name}-1", f"$share/g/{name}")
    one.unsubscribe(f"$share/g/{name}")
    clients(broker).deliver(name, b"0")
    one.subscribe(f"$share/g/{name}", qos=1)
    one.deliver(name, b"1")
    assert one.receive().payload == b"1"


def test_no_retained_for_a_shared_subscription(broker: BrokerProcess, clients: Clients, name: str) -> None:
    clients(broker).deliver(name, b"retained", retain=True)
    one = member(broker, clients, f"{name}-1", f"$share/g/{name}")
    one.deliver(name, b"live")
    assert one.receive().payload == b"live"  # [MQTT-4.8.2-5 in spirit: 3.8.4]


def test_direct_and_shared_ids_do_not_meet(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """Both kinds of entry in one window: every id in use once."""
    one = member(broker, clients, f"{name}-1", f"$share/g/{name}/a")
    one.subscribe(f"{name}/b", qos=1)
    publisher = clients(broker)
    for number in range(5):
        publisher.deliver(f"{name}/a", str(number))
        publisher.deliver(f"{name}/b", str(number))
    found = [one.expect(PUBLISH) for _ in range(10)]
    assert one.ping() == []
    assert len({packet.packet_id for packet in found}) == 10
    for topic in "ab":
        assert numbers([packet for packet in found if packet.topic.endswith(topic)]) == list(range(5))


def unlike(members: list[RawClient], publisher: RawClient, topic: str, numbers: range) -> list[int]:
    """Publish one message after the other; return how many each member got, of which the first acknowledges none."""
    counts = [0 for _ in members]
    for number in numbers:
        publisher.deliver(topic, str(number))
        came = next_of(members)
        for at, packet in came:
            counts[at] += 1
            if at:
                members[at].ack(PUBACK, packet.packet_id)
                members[at].ping()  # the broker has it
    return counts


def next_of(members: list[RawClient], deadline_s: float = 30.0) -> list[tuple[int, Packet]]:
    """The next message, and which member got it."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        came = [(at, packet) for at, client in enumerate(members) for packet in client.ping()]
        if came:
            return came
    raise SilenceError("no member got the message")


@pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
def test_the_strategy_says_who_is_next_also_after_a_reload(
    tmp_path: Path, clients: Clients, name: str
) -> None:
    """The same members of the same group, with the one strategy and then with the other."""
    file = tmp_path / "headrace.toml"
    file.write_text('[session]\nshared_strategy = "round-robin"\n', encoding="utf-8")
    broker = make_broker(tmp_path / "broker", {}, ["--config", str(file)])
    broker.start()
    try:
        members = [member(broker, clients, f"{name}-{n}", f"$share/g/{name}") for n in range(3)]
        publisher = clients(broker)
        assert unlike(members, publisher, name, range(12)) == [4, 4, 4]
        file.write_text('[session]\nshared_strategy = "least-in-flight"\n', encoding="utf-8")
        seen = len(broker.lines)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_line("reloaded", after=seen)
        assert unlike(members, publisher, name, range(12)) == [0, 6, 6]
    finally:
        finish(broker)


@pytest.mark.slow
def test_a_group_survives_kills(own_broker: BrokerProcess, clients: Clients) -> None:
    """Two members work, the broker is killed three times: every number arrives; twice only across a kill."""
    members = [member(own_broker, clients, f"m{n}", "$share/g/t") for n in range(2)]
    seen: Counter[int] = Counter()
    first = 0
    for _ in range(3):
        clients(own_broker).deliver_many("t", range(first, first + 100))
        first += 100
        for share in gather(members, 60):
            seen.update(numbers(share))
        own_broker.crash()
        members = [clients(own_broker, f"m{n}", 5, **KEEP) for n in range(2)]
        assert all(one.connack.session_present for one in members)
    clients(own_broker).deliver_many("t", range(first, first + 50))
    until = time.monotonic() + 15
    while len(seen) < first + 50 and time.monotonic() < until:
        for share in gather(members, 1, 1.0):
            seen.update(numbers(share))
    assert sorted(seen) == list(range(first + 50))
    assert max(seen.values()) <= 4
