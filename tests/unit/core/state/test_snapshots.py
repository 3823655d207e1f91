"""Snapshots of what changed: nothing missed, nothing written twice for nothing, bounded slices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import msgpack

from harness import Client, Harness, state
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.message_id import Origin
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import RETAINED_AT_ONCE, SLICE_WORK, SnapshotPass, restore
from headrace.core.state.state import Fold
from headrace.mqtt import codec
from headrace.mqtt.packets import Will


class Files:
    """The files of a broker over one journal."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.files: list[list[bytes]] = []
        self.position = 0

    def take(self) -> list[bytes]:
        """One more: the first is full."""
        broker = self.harness.broker
        walk = SnapshotPass(broker.fold, broker.commit, full=not self.files)
        self.files.append([entry for part in walk.slices() for entry in part])
        self.position = walk.position
        return self.files[-1]

    def names(self) -> list[str]:
        """Client ids of the sessions in the newest file."""
        entries = [msgpack.decode(entry) for entry in self.files[-1]]
        return sorted(entry[2] for entry in entries if entry[0] == "session")

    def restored(self) -> Fold:
        fold = Fold(self.harness.journal)
        restore(fold, self.files)
        replay = Replay(fold)
        for record in self.harness.journal.records[self.position :]:
            replay.record(record)
        return fold


def qos2(client: Client) -> None:
    client.publish("t", b"x", 2)


def half_acknowledged(client: Client) -> None:
    packet_id = client.publishes()[0][0]
    client.feed(codec.encode_pubrec(4, packet_id))


def came_back(client: Client) -> None:
    client.lose()
    client.harness.client("c")


def waiting(client: Client) -> None:
    client.lose()
    client.harness.client("q").publish("t", b"more")


def ended(client: Client) -> None:
    client.disconnect()
    client.harness.client("c", clean=True).disconnect()


def began_anew(client: Client) -> None:
    ended(client)
    client.harness.client("c")


CHANGES: dict[str, Callable[[Client], None]] = {
    "subscribed": lambda client: client.subscribe("more/#", 2),
    "unsubscribed": lambda client: client.feed(codec.encode_unsubscribe(4, 9, ["t"])),
    "QoS 2 of its own": qos2,
    "QoS 2 to nobody": lambda client: client.feed(
        codec.encode_publish(4, b"n", b"x", 2, False, False, 77, b"", -1)
    ),
    "QoS 2 released": lambda client: client.feed(codec.encode_pubrel(4, 55)),
    "acknowledged": lambda client: client.ack(client.publishes()[0][0]),
    "received": half_acknowledged,
    "left": Client.disconnect,
    "lost": Client.lose,
    "came back": came_back,
    "waiting": waiting,
    "ended": ended,
    "began anew": began_anew,
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_in_the_next_one(change: str) -> None:
    harness = Harness()
    client = harness.client("c", will=Will("w", b"gone", 1, False, b"", 0, -1))
    client.subscribe("t", 2)
    harness.client("q").publish("t", b"one", 2)
    harness.client("other").subscribe("t")
    client.feed(codec.encode_publish(4, b"n", b"x", 2, False, False, 55, b"", -1))
    files = Files(harness)
    files.take()
    CHANGES[change](client)
    files.take()
    assert state(files.restored()) == state(harness.broker.fold)


def test_a_packet_id_of_the_client_is_in_the_next_one_and_out_of_the_one_after_its_release() -> None:
    harness = Harness()
    client = harness.client("c")
    files = Files(harness)
    files.take()
    client.feed(codec.encode_publish(4, b"n", b"x", 2, False, False, 77, b"", -1))
    files.take()
    assert files.restored().tenant("default").sessions["c"].incoming is not None
    assert state(files.restored()) == state(harness.broker.fold)
    client.feed(codec.encode_pubrel(4, 77))
    files.take()
    assert state(files.restored()) == state(harness.broker.fold)


def test_the_life_of_a_session_without_a_message_is_in_the_next_one_step_by_step() -> None:
    harness = Harness()
    will = Will("w", b"gone", 1, False, b"", 5, -1)
    client = harness.client("c", version=5, will=will)
    files = Files(harness)
    files.take()

    def check() -> None:
        files.take()
        assert files.names() == ["c"]
        assert state(files.restored()) == state(harness.broker.fold)

    client.lose()
    check()
    harness.advance(10)  # the will is due
    check()
    client = harness.client("c", version=5, will=will)
    check()
    client.subscribe("t", identifier=7)
    check()


def test_what_a_full_backlog_drops_is_in_the_next_one() -> None:
    settings = BrokerSettings()
    settings.backlog_messages_max = 1
    harness = Harness(settings)
    client = harness.client("c")
    client.subscribe("t")
    client.disconnect()
    publisher = harness.client("p", clean=True)
    publisher.publish("t", b"one")
    files = Files(harness)
    files.take()
    publisher.publish("t", b"two")
    files.take()
    assert state(files.restored()) == state(harness.broker.fold)
    publisher.publish("t", b"not stored", 0)
    files.take()
    assert files.names() == ["c"]


def test_what_did_not_change_is_not_written() -> None:
    harness = Harness()
    for number in range(20):
        harness.client(f"c{number}").subscribe(f"t/{number}")
    publisher = harness.client("p", clean=True)
    files = Files(harness)
    files.take()
    publisher.publish("t/7", b"x")
    files.take()
    assert files.names() == ["c7"]
    files.take()
    assert files.names() == []


def test_retained_messages_set_replaced_and_removed() -> None:
    harness = Harness()
    publisher = harness.client("p", clean=True)
    for topic in ("kept", "replaced", "removed"):
        publisher.publish(topic, b"old", retain=True)
    files = Files(harness)
    files.take()
    publisher.publish("replaced", b"new", retain=True)
    publisher.publish("removed", b"", retain=True)
    publisher.publish("added", b"new", retain=True)
    assert len([e for e in files.take() if msgpack.decode(e)[0] == "retained"]) == 2
    kept = {m.topic: m.payload for m in files.restored().tenant("default").retained.messages()}
    assert kept == {b"kept": b"old", b"replaced": b"new", b"added": b"new"}


def test_groups_are_in_every_file() -> None:
    harness = Harness()
    member = harness.client("m")
    member.subscribe("$share/g/t")
    member.disconnect()
    files = Files(harness)
    files.take()
    harness.client("p", clean=True).publish("t", b"x")
    files.take()
    files.take()
    assert state(files.restored()) == state(harness.broker.fold)


def test_what_message_ids_are_made_of_is_in_every_file() -> None:
    """Records of an epoch may be gone whose ids are asked for all the same."""
    files = Files(Harness())
    fold = files.harness.broker.fold
    fold.epochs, fold.origin = [(0, 1), (100, 3)], Origin("old", 100, [(0, 1), (50, 2)])
    for _ in range(2):
        files.take()
        found = files.restored()
        assert found.epochs == [(0, 1), (100, 3)]
        assert found.origin is not None
        assert (found.origin.uuid, found.origin.end) == ("old", 100)
        assert found.origin.epochs == [(0, 1), (50, 2)]


def test_where_an_older_version_has_come_from_is_known() -> None:
    fold = Fold(Harness().journal)
    restore(fold, [[msgpack.encode(["origin", "old", 100])]])
    assert fold.origin is not None
    assert (fold.origin.uuid, fold.origin.end, fold.origin.epochs) == ("old", 100, [])


def test_a_session_that_ends_while_it_is_written_is_gone_in_the_next_one() -> None:
    harness = Harness()
    for number in range(5):
        harness.client(f"c{number}").disconnect()
    files = Files(harness)
    files.take()
    harness.client("c3").disconnect()
    walk = SnapshotPass(harness.broker.fold, harness.broker.commit, full=False)
    files.files.append([])
    for part in walk.slices(1):
        files.files[-1] += part
        if "c3" in files.names() and "c3" in harness.broker.fold.tenant("default").sessions:
            harness.client("c3", clean=True).disconnect()
    files.take()
    assert "c3" not in files.restored().tenant("default").sessions
    assert state(files.restored()) == state(harness.broker.fold)


def test_a_slice_is_bounded_whatever_the_sessions_hold() -> None:
    settings = BrokerSettings()
    settings.backlog_page = 64
    harness = Harness(settings)
    for number in range(40):
        client = harness.client(f"c{number}")
        client.subscribe("t")
        client.disconnect()
    publisher = harness.client("p", clean=True)
    for number in range(2000):
        publisher.publish("t", b"%d" % number, sync=number % 100 == 0)
    harness.sync()
    walk = SnapshotPass(harness.broker.fold, harness.broker.commit)
    parts = list(walk.slices())
    largest = max(len(entry) for part in parts for entry in part)
    assert largest < 3 * 64 * 12 + 2000 // 64 * 48 + 1000
    assert all(len(part) <= SLICE_WORK // 10 for part in parts)
    assert all(sum(map(len, part)) <= 500 * SLICE_WORK + largest for part in parts)


def test_a_slice_is_bounded_whatever_is_retained_and_replaced_meanwhile() -> None:
    """Walked, not copied: what is set, replaced or removed between two slices is restored as it is in the end."""
    harness = Harness()
    files = Files(harness)
    publisher = harness.client("p", clean=True)
    for number in range(1500):
        publisher.publish(f"t/{number}", b"old", retain=True, sync=number % 100 == 99)
    for is_full in (True, False):
        walk = SnapshotPass(harness.broker.fold, harness.broker.commit, is_full)
        parts = []
        for at, part in enumerate(walk.slices()):
            parts.append(part)
            publisher.publish(f"t/{at}", b"", retain=True)
            publisher.publish(f"t/{1400 - at}", b"replaced", retain=True)
            publisher.publish(f"new/{at}", b"new", retain=True)
        assert all(len(part) <= SLICE_WORK // 10 + RETAINED_AT_ONCE for part in parts)
        files.files.append([entry for part in parts for entry in part])
        files.position = walk.position
        assert state(files.restored()) == state(harness.broker.fold)


def test_a_retained_message_that_is_about_to_be_replaced_is_not_listed() -> None:
    """Its listing would be on its way when a walk finds it neither among the retained messages nor with the session; and
    the client would get an older message behind a newer one."""
    harness = Harness()
    publisher = harness.client("p", clean=True)
    publisher.publish("r/1", b"old", retain=True)
    subscriber = harness.client("s", version=5, receive_maximum=1)
    publisher.publish("r/1", b"new", retain=True, sync=False)
    harness.worker.end_tick()  # on its way
    sync, harness.sync = harness.sync, int  # type: ignore[assignment, method-assign]
    subscriber.subscribe("r/#")
    harness.journal.durable = len(harness.journal.records)
    harness.broker.commit.on_high_watermark(harness.journal.durable)  # the old one is replaced now
    harness.sync = sync  # type: ignore[method-assign]
    walk = SnapshotPass(harness.broker.fold, harness.broker.commit)
    for _ in walk.slices():
        pass
    harness.sync()  # what the snapshot waits for before it counts
    queue = harness.broker.fold.tenant("default").sessions["s"].outbound()
    offset = next(r.offset for r in harness.journal.records if isinstance(r, Message) and r.payload == b"new")
    assert queue.lowest_offset() == offset
    assert walk.lowest_offset <= offset
