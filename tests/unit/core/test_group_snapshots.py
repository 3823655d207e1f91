"""A group that is made and ends around a snapshot, also in one batch with it, is the same in every replay."""

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


def subscribe(client: Client, qos: int = 2) -> None:
    request = SubscriptionRequest(SHARED, qos, False, False, 0)
    client.feed(codec.encode_subscribe(client.version, 77, [request], Properties()), sync=False)


def unsubscribe(client: Client) -> None:
    client.feed(codec.encode_unsubscribe(client.version, 78, [SHARED]), sync=False)


def passes(harness: Harness, count: int) -> None:
    """So many passes of the loop, in each of which a little takes effect."""
    broker, journal = harness.broker, harness.journal
    for _ in range(count):
        broker.worker.end_tick()
        journal.durable = len(journal.records)
        broker.commit.on_high_watermark(journal.durable)


def comes_and_goes(harness: Harness, _: Client, publisher: Client) -> None:
    """A client without a session opens, subscribes and is gone, all in one batch."""
    brief = Client(harness, "brief", clean=True, version=5, sync=False)
    subscribe(brief)
    publisher.publish("t", b"m", 1, sync=False)
    brief.lose_unsynced()


def joins_and_leaves(_: Harness, member: Client, publisher: Client) -> None:
    subscribe(member)
    publisher.publish("t", b"m", 1, sync=False)
    unsubscribe(member)


def leaves_with_something_in_flight(harness: Harness, member: Client, publisher: Client) -> None:
    """What it has in flight completes with it, although the group is gone."""
    subscribe(member)
    publisher.publish("t", b"m", 2, sync=False)
    publisher.publish("t", b"n", 1, sync=False)
    passes(harness, 6)
    unsubscribe(member)


def joins_twice(_: Harness, member: Client, publisher: Client) -> None:
    subscribe(member)
    publisher.publish("t", b"m", 1, sync=False)
    unsubscribe(member)
    subscribe(member)
    publisher.publish("t", b"n", 1, sync=False)


def one_after_the_other(harness: Harness, member: Client, publisher: Client) -> None:
    brief = Client(harness, "brief", clean=True, version=5, sync=False)
    subscribe(brief)
    publisher.publish("t", b"m", 1, sync=False)
    subscribe(member)
    brief.lose_unsynced()
    unsubscribe(member)


def groups_of(harness: Harness) -> list[tuple[int, list[str], int]]:
    return sorted(
        (group.incarnation, [session.client_id for session in group.members], len(group.drawn))
        for group in harness.broker.fold.groups.all()
    )


@pytest.mark.parametrize(
    "happens", [comes_and_goes, joins_and_leaves, leaves_with_something_in_flight, joins_twice, one_after_the_other]
)  # fmt: skip
@pytest.mark.parametrize("member_first", [False, True])
def test_a_group_that_is_made_and_ends_around_a_snapshot_is_the_same_in_every_replay(
    happens: Callable[[Harness, Client, Client], None], member_first: bool
) -> None:
    for begins in range(5):
        for taken in range(12):
            settings = BrokerSettings()
            settings.deliveries_at_once = 1
            harness = Harness(settings)
            if member_first:
                member = harness.client("member", version=5)
            other = harness.client("other", version=5)
            publisher = harness.client("p")
            if not member_first:
                member = harness.client("member", version=5)
            other.subscribe("u")
            walk = SnapshotPass(harness.broker.fold, harness.broker.commit)
            slices = walk.slices(1)
            entries: list[bytes] = []
            for _ in range(begins):
                entries += next(slices, [])
            happens(harness, member, publisher)
            passes(harness, taken)
            for part in slices:
                entries += part
                passes(harness, 1 if not part else 0)
            harness.sync()
            place = (happens.__name__, begins, taken)
            live = [found[:2] for found in groups_of(harness) if found[1]]
            harness.crash()
            plain, plain_groups = state(harness.broker.fold), groups_of(harness)
            assert [found[:2] for found in plain_groups if found[1]] == live, place
            assert sum(found[2] for found in plain_groups) <= 2
            harness.snapshot = (walk.position, entries)
            harness.crash()
            assert harness.broker.fold.departing == {}, place
            assert groups_of(harness) == plain_groups, place
            assert state(harness.broker.fold) == plain, place
