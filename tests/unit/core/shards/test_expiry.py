"""What expires on its way between two shards is not delivered, whatever it has waited in; it is counted [MQTT-3.3.2-5].

What has time left tells of what is left: the interval that goes out is less by all that the message has waited
[MQTT-3.3.2-6].
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Client
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.record import DROP_EXPIRED
from shard_wires import WiredShard, WiredShards, received
from unit.core.shards.test_group_members import share_in

Waiting = Callable[[WiredShards, float], None]


def on_the_wire(shards: WiredShards, seconds: float) -> None:
    """What was said waits for as long to be heard."""
    shards.held = {(1, 0)}
    shards.carry()
    shards.advance(seconds)
    shards.held = set()
    shards.carry()


def in_the_inbox(shards: WiredShards, seconds: float) -> None:
    """Shard 1 takes nothing for as long."""
    intake = shards[1].neighbours.intake
    pending, intake.pending = intake.pending, 1 << 30
    shards.carry()
    shards.advance(seconds)
    intake.pending = pending
    shards[1].worker.request_tick()
    shards.carry()


def before_it_is_durable(shards: WiredShards, seconds: float) -> None:
    """The journal of shard 1 makes nothing durable for as long."""
    near, far = shards.wires[1, 0]
    shards[0].sync()
    while far.said:
        shards.hear(far)
    shards[1].now_us += int(seconds * 1_000_000)
    shards[1]._set_clock()
    shards.carry()
    assert not near.is_cut


def behind_a_lag(shards: WiredShards, seconds: float) -> None:
    """There is no wire for as long: what follows is read from the journal of shard 0."""
    shards.disconnect(1, 0)
    shards.carry()
    shards.advance(seconds)
    shards.connect(1, 0)
    shards.carry()


LIVE = (on_the_wire, in_the_inbox)
WAYS = (*LIVE, before_it_is_durable, behind_a_lag)  # of what is in a journal


def drops(shard: WiredShard) -> dict[int, int]:
    return shard.broker.fold.tenant(DEFAULT_TENANT).counters.dropped


def intervals(client: Client) -> list[int]:
    """The Message Expiry Interval of each PUBLISH at QoS 0 or 1 that has come: it stands first among the properties."""
    found = []
    for first, body in client.take():
        if first >> 4 != 3:
            continue
        at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 6 else 0) + 1
        assert body[at] == 2
        found.append(int.from_bytes(body[at + 1 : at + 5], "big"))
    return found


def begun(topic_filter: str, clean: bool, qos: int) -> tuple[WiredShards, Client, Client]:
    """Two shards; a subscriber in the second one, and a publisher in the first."""
    shards = WiredShards(2)
    client = shards[1].client("r", version=5, clean=clean)
    client.subscribe(topic_filter, qos)
    shards.carry()
    client.take()
    return shards, client, shards[0].client("w", version=5)


def of_qos(*each: tuple[int, int]) -> list[tuple[int, int, Waiting]]:
    """All ways that messages of these QoS may have waited in, for these subscriptions."""
    return [(qos, wants, way) for qos, wants in each for way in (WAYS if qos else LIVE)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("qos", "wants", "way"), of_qos((0, 0), (1, 0), (1, 1), (2, 2)))
def test_what_expired_on_its_way_is_dropped_once(qos: int, wants: int, clean: bool, way: Waiting) -> None:
    shards, client, publisher = begun("a/#", clean, wants)
    publisher.publish("a/old", b"old", qos, sync=False, expiry_s=5)
    publisher.publish("a/new", b"new", qos, sync=False)
    if way is not behind_a_lag:
        shards[0].sync()
    way(shards, 10)
    assert received(client) == [b"new"]
    assert drops(shards[1]) == {DROP_EXPIRED: 1}
    assert drops(shards[0]) == {}


@pytest.mark.parametrize(("qos", "wants", "way"), of_qos((0, 0), (1, 1)))
def test_what_goes_out_has_less_by_what_it_has_waited(qos: int, wants: int, way: Waiting) -> None:
    shards, client, publisher = begun("a", True, wants)
    publisher.publish("a", b"x", qos, sync=False, expiry_s=100)
    if way is not behind_a_lag:
        shards[0].sync()
    way(shards, 30)
    assert intervals(client) == [70]


def test_qos_0_expires_behind_a_copy_that_is_not_durable() -> None:
    shards, client, publisher = begun("a/#", True, 1)
    publisher.publish("a/first", b"first", 1, sync=False)
    shards[0].sync()
    publisher.publish("a/old", b"old", 0, sync=False, expiry_s=5)
    publisher.publish("a/new", b"new", 0, sync=False)
    before_it_is_durable(shards, 10)
    assert received(client) == [b"first", b"new"]
    assert drops(shards[1]) == {DROP_EXPIRED: 1}


@pytest.mark.parametrize("qos", [1, 2])
def test_a_replay_drops_it_as_it_was_dropped(qos: int) -> None:
    """Its number in the queue is nobody else's: what comes behind it has the packet id that it had."""
    shards, client, publisher = begun("a/#", False, qos)
    publisher.publish("a/old", b"old", qos, sync=False, expiry_s=5)
    publisher.publish("a/new", b"new", qos, sync=False)
    shards[0].sync()
    on_the_wire(shards, 10)
    ((packet_id, payload, _, _),) = client.publishes()
    assert payload == b"new"
    before = drops(shards[1])
    shards.crash(1)
    assert drops(shards[1]) == before == {DROP_EXPIRED: 1}
    again = shards[1].client("r", version=5, clean=False)
    assert [(number, payload) for number, payload, _, _ in again.publishes()] == [(packet_id, b"new")]
    assert drops(shards[1]) == before


@pytest.mark.parametrize(("qos", "group"), [(0, False), (1, False), (0, True), (1, True), (2, True)])
def test_what_a_session_counts_as_expired_is_what_a_replay_gives(qos: int, group: bool) -> None:
    """At QoS 0, and of what a group has lent, no record says whose it was: its tenant counts that."""
    shards = WiredShards(2)
    client = shards[1].client("m", version=5, clean=False)
    client.subscribe(share_in(shards, 0) if group else "a/#", qos)
    shards.carry()
    shards[0].client("w", version=5).publish("a/old", b"old", qos, expiry_s=5)
    on_the_wire(shards, 10)
    assert received(client) == []
    assert drops(shards[1]) == {DROP_EXPIRED: 1}
    before = shards[1].broker.fold.tenant(DEFAULT_TENANT).sessions[client.link.client_id].drops_by_name()
    shards.crash(1)
    assert (
        shards[1].broker.fold.tenant(DEFAULT_TENANT).sessions[client.link.client_id].drops_by_name() == before
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_group_lends_and_expires_on_the_wire_is_finished(qos: int) -> None:
    """Nobody gets it: its home hears that it is done, and lends what comes next."""
    shards = WiredShards(2)
    client = shards[1].client("m", version=5)
    client.subscribe(share_in(shards, 0), qos)
    shards.carry()
    client.take()
    publisher = shards[0].client("w", version=5)
    publisher.publish("a/1", b"old", qos, sync=False, expiry_s=5)
    publisher.publish("a/1", b"new", qos)
    on_the_wire(shards, 10)
    assert received(client) == [b"new"]
    assert drops(shards[1]) == {DROP_EXPIRED: 1}
    assert drops(shards[0]) == {}
    (group,) = shards[0].broker.fold.groups.by_id.values()
    assert len(group.drawn) == (1 if qos else 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_may_have_is_not_taken_from_it_when_it_comes_again(qos: int) -> None:
    shards = WiredShards(2)
    client = shards[1].client("m", version=5, clean=False)
    client.subscribe(share_in(shards, 0), qos)
    shards.carry()
    client.take()
    shards[0].client("w", version=5).publish("a/1", b"x", qos, expiry_s=5)
    shards.carry()
    assert received(client) == [b"x"]
    client.lose()
    shards.advance(10)
    again = shards[1].client("m", version=5, clean=False)
    shards.carry()
    assert received(again) == [b"x"]


@pytest.mark.parametrize("expiry_s", [0, 1])
def test_an_interval_of_0_reaches_who_is_there_and_nobody_after_a_second(expiry_s: int) -> None:
    shards, client, publisher = begun("a", True, 0)
    publisher.publish("a", b"1", 0, expiry_s=expiry_s)
    shards.carry()
    publisher.publish("a", b"2", 0, expiry_s=expiry_s)
    on_the_wire(shards, 1)
    assert received(client) == [b"1"]
    assert drops(shards[1]) == {DROP_EXPIRED: 1}
