"""A group that is handed from one member to the next keeps what waits: live, behind a snapshot and in a replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Client, Harness, state
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.snapshots import SnapshotPass
from headrace.mqtt import codec
from headrace.mqtt.packets import SubscriptionRequest
from headrace.mqtt.properties import Properties

SHARED = "$share/g/t"


def subscribe_unsynced(client: Client) -> None:
    request = SubscriptionRequest(SHARED, 1, False, False, 0)
    client.feed(codec.encode_subscribe(client.version, 77, [request], Properties()), sync=False)


def unsubscribe(client: Client) -> None:
    client.feed(codec.encode_unsubscribe(client.version, 78, [SHARED]))


def end(client: Client) -> None:
    """The session ends, its client begins a new one."""
    client.lose()
    Client(client.harness, "old", clean=True, version=5)


def drain(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while batch := client.publishes():
        for packet_id, payload, _, _ in batch:
            found.append(payload)
            client.ack(packet_id)
    return found


def waiting_group(count: int) -> tuple[Harness, Client, Client]:
    """`old` alone is in the group, and has no room for what waits; `new` comes before it in a walk."""
    harness = Harness(BrokerSettings())
    new = harness.client("new", version=5, receive_maximum=20)
    old = harness.client("old", version=5, receive_maximum=1)
    old.subscribe(SHARED)
    old.link.window = 0
    publisher = harness.client("p", clean=True)
    for number in range(count):
        publisher.publish("t", b"%d" % number)
    return harness, new, old


def walked_while(harness: Harness, at: int, change: Callable[[], None]) -> None:
    """A snapshot in the smallest slices; `change` comes behind the slice `at`, or behind all of them."""
    walk = SnapshotPass(harness.broker.fold, harness.broker.commit)
    entries = []
    count = 0
    for part in walk.slices(1):
        entries += part
        if count == at:
            change()
        count += 1
    if count <= at:
        change()
    harness.snapshot = (walk.position, entries)


@pytest.mark.parametrize("leaves", [unsubscribe, end])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("at", range(6))
def test_a_member_that_joins_behind_a_walk_which_the_last_one_leaves_before_it(
    at: int, twice: bool, leaves: Callable[[Client], None]
) -> None:
    harness, new, old = waiting_group(5)
    new.link.window = 0

    def hand_over() -> None:
        if twice:
            new.subscribe(SHARED)
            unsubscribe(new)
        new.subscribe(SHARED)
        leaves(old)

    walked_while(harness, at, hand_over)
    live = state(harness.broker.fold)
    harness.crash()
    new = harness.client("new", version=5, receive_maximum=20)
    assert drain(new) == [b"%d" % number for number in range(5)]
    assert len(live) == len(state(harness.broker.fold))


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_last_member_ends_while_the_next_one_is_on_its_way(snapshot: bool) -> None:
    """The journal has the new subscription before the end: the group goes on, with what waits in it."""
    harness, new, old = waiting_group(5)
    new.link.window = 0
    subscribe_unsynced(new)
    old.lose_unsynced()
    Client(harness, "old", clean=True, version=5, sync=False)
    if snapshot:
        harness.take_snapshot()
    harness.sync()
    group = next(iter(harness.broker.fold.groups.by_id.values()))
    number = group.incarnation
    assert group.backlog.count == 5
    harness.crash()
    assert list(harness.broker.fold.groups.by_id) == [number]
    new = harness.client("new", version=5, receive_maximum=20)
    assert drain(new) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_last_member_ends_before_the_next_one_comes(snapshot: bool) -> None:
    """The journal has the end before the new subscription: the group is a new one, with nothing in it."""
    harness, new, old = waiting_group(5)
    old.lose_unsynced()
    Client(harness, "old", clean=True, version=5, sync=False)
    subscribe_unsynced(new)
    if snapshot:
        harness.take_snapshot()
    harness.sync()
    groups = list(harness.broker.fold.groups.by_id)
    assert drain(new) == []
    harness.crash()
    assert list(harness.broker.fold.groups.by_id) == groups
    assert harness.broker.fold.departing == {}
    assert drain(harness.client("new", version=5, receive_maximum=20)) == []


class Short(dict[int, list[int]]):
    """There is memory for so many entries, and later for all."""

    room = 1

    def __setitem__(self, serial: int, members: list[int]) -> None:
        self.room -= 1
        if self.room == -1:
            raise MemoryError
        super().__setitem__(serial, members)


def test_what_a_member_has_in_flight_goes_to_the_others_although_its_end_fails_half_way() -> None:
    harness = Harness(BrokerSettings())
    first = harness.client("first", clean=True, version=5)
    first.subscribe(SHARED)
    publisher = harness.client("p", clean=True)
    for number in range(4):
        publisher.publish("t", b"%d" % number)
    assert len(first.publishes()) == 4
    second = harness.client("second", version=5)
    second.subscribe(SHARED)
    group = harness.broker.fold.tenant("default").groups[SHARED]
    group.had = Short()
    first.link.closed = True
    with pytest.raises(MemoryError):
        harness.broker.on_connection_lost(first.link)
    harness.sync()
    assert drain(second) == [b"0", b"1", b"2", b"3"]
    assert list(group.members) == [harness.broker.fold.tenant("default").sessions["second"]]
    assert not harness.broker.fold.departing
    assert harness.broker.sessions.connected == 2
    live = state(harness.broker.fold)
    harness.crash()
    assert state(harness.broker.fold)[1:] == live[1:]


@pytest.mark.parametrize("snapshot", [False, True])
def test_an_entry_given_back_while_unsubscribe_is_on_its_way_is_the_next_members_after_a_crash(
    snapshot: bool,
) -> None:
    harness = Harness(BrokerSettings())
    first = harness.client("first", version=5)
    first.subscribe(SHARED, 1)
    harness.client("p", clean=True).publish("t", b"x", 2)
    assert [payload for _, payload, _, _ in first.publishes()] == [b"x"]
    second = harness.client("second", version=5)
    second.subscribe(SHARED, 2)
    if snapshot:
        harness.take_snapshot()
    first.feed(codec.encode_unsubscribe(5, 78, [SHARED]), sync=False)
    first.lose()  # what it had goes back before UNSUBSCRIBE is durable
    ((packet_id, payload, _, _),) = second.publishes()
    assert payload == b"x"
    second.feed(codec.encode_pubrec(5, packet_id))
    second.lose()
    before = state(harness.broker.fold)
    harness.crash()
    assert state(harness.broker.fold) == before
    second = harness.client("second", version=5)
    assert [kind >> 4 for kind, _ in second.take()] == [2, 6]  # CONNACK and PUBREL
