"""What one connection sends takes effect in the order in which it was sent, whatever the QoS, whenever the disk is done.

A seed makes a sequence of packets and the moments at which batches are handed over and become durable. What subscribers
get is compared with what the same packets do one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec
from headrace.mqtt.packets import SubscriptionRequest, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.topics import matches
from shard_wires import WiredShards, received

FILTERS = ["t/a", "t/b", "t/#", "+/a"]
TOPICS = ["t/a", "t/b", "u/a"]
SENT = 40


class Sequence:
    """A connection that sends a random sequence, and what a broker makes of it that lets each packet take effect at
    once: `own` are the payloads that come back to it, `all` those of everything that it has published."""

    def __init__(self, client: Client, rng: random.Random) -> None:
        self.client = client
        self.own: list[bytes] = []
        self.all: list[bytes] = []
        self._rng = rng
        self._filters: set[str] = set()

    def send(self) -> None:
        """Send one packet, which may be several in one piece with the next."""
        rng, client = self._rng, self.client
        kind = rng.random()
        if kind < 0.15:
            name = rng.choice(FILTERS)
            self._filters.add(name)
            request = SubscriptionRequest(name, rng.randrange(3), False, False, 2)
            data = codec.encode_subscribe(client.version, client._id(), [request], Properties())
        elif kind < 0.3:
            name = rng.choice(FILTERS)
            self._filters.discard(name)
            data = codec.encode_unsubscribe(client.version, client._id(), [name])
        else:
            data = self._publish(rng.choice(TOPICS), rng.choice([0, 0, 1, 2]), rng.random() < 0.2)
        client.feed(data, sync=False)

    def _publish(self, topic: str, qos: int, retain: bool) -> bytes:
        payload = b"%d" % len(self.all)
        self.all.append(payload)
        if any(matches(name, topic) for name in self._filters):
            self.own.append(payload)
        packet_id = self.client._id() if qos else 0
        return codec.encode_publish(
            self.client.version, topic.encode(), payload, qos, retain, False, packet_id, b"", -1
        )


def some_time(shard: Harness, rng: random.Random) -> None:
    """Let the loop have a pass, or the disk a moment, or neither."""
    moment = rng.randrange(4)
    if moment == 0:
        shard.worker.end_tick()
    elif moment == 1:
        shard.journal.durable = len(shard.journal.records)
        shard.broker.commit.on_high_watermark(shard.journal.durable)


def settings(rng: random.Random) -> BrokerSettings:
    found = BrokerSettings()
    found.deliveries_at_once = rng.choice([1, 2, 3, 1000])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_effects_are_those_of_the_packets_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(settings(rng))
    observer = harness.client("observer", version=5)
    observer.subscribe("#", 2)
    sender = harness.client("sender", version=5, clean=rng.random() < 0.5)
    observer.take()
    sequence = Sequence(sender, rng)
    for _ in range(SENT):
        sequence.send()
        some_time(harness, rng)
    ending = rng.choice(["stays", "lost", "DISCONNECT"])
    if ending == "lost":
        sender.lose_unsynced()
    elif ending == "DISCONNECT":
        sender.feed(codec.encode_disconnect(5), sync=False)
    harness.sync()
    assert received(observer) == sequence.all
    if ending == "stays":
        assert received(sender) == sequence.own


@pytest.mark.parametrize("seed", range(60))
def test_effects_are_in_order_in_every_shard(seed: int) -> None:
    rng = random.Random(seed)
    shards = WiredShards(2, settings(rng))
    observers = [shards[number].client("observer", version=5) for number in range(2)]
    for observer in observers:
        observer.subscribe("#", 2)
    shards.carry()
    sender = shards[rng.randrange(2)].client("sender", version=5)
    shards.carry()
    sequence = Sequence(sender, rng)
    for _ in range(SENT):
        sequence.send()
        for shard in shards.shards:
            some_time(shard, rng)
        if rng.random() < 0.2:
            hear_some(shards, rng)
    shards.carry()
    assert received(sender) == sequence.own
    for observer in observers:
        assert received(observer) == sequence.all


def hear_some(shards: WiredShards, rng: random.Random) -> None:
    """Some of what was said between the shards is heard, of each wire the oldest first."""
    ends = [end for pair in shards.wires.values() for end in pair if end.said]
    for end in rng.sample(ends, rng.randint(0, len(ends))):
        for _ in range(rng.randint(1, len(end.said))):
            shards.hear(end)


def drops(shard: Harness) -> int:
    return sum(shard.broker.fold.tenant("default").counters.dropped.values())


WILL_WITH_DISCONNECT = b"\xe0\x02\x04\x00"
ENDS: dict[str, Callable[[Client], None]] = {
    "takeover": lambda _: None,
    "DISCONNECT 0x04": lambda client: client.feed(WILL_WITH_DISCONNECT, sync=False),
    "lost": Client.lose_unsynced,
}


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("qos", range(3))
@pytest.mark.parametrize("at", range(2))
def test_a_will_comes_before_what_the_next_connection_says(at: int, qos: int, end: str, clean: bool) -> None:
    """Observers are in two shards, subscribed at each QoS; a batch holds what both connections have sent."""
    shards = WiredShards(2)
    observers = [shards[n].client(f"observer{m}-", version=5) for n in range(2) for m in range(3)]
    for number, observer in enumerate(observers):
        observer.subscribe("state", number % 3)
    shards.carry()
    options: dict[str, object] = {"version": 5, "clean": clean, "will": Will("state", b"gone", qos)}
    before = shards[at].client("device", **options)
    shards.carry()
    before.publish("state", b"0", 0, sync=False)
    before.publish("state", b"1", 1, sync=False)
    before.publish("state", b"2", 0, sync=False)
    ENDS[end](before)
    after = shards[at].client("device", sync=False, **options)
    after.publish("state", b"online", 0, sync=False)
    after.publish("state", b"4", 1, sync=False)
    after.publish("state", b"5", 0, sync=False)
    after.feed(codec.encode_disconnect(5), sync=False)
    shards.carry()
    for observer in observers:
        assert received(observer) == [b"0", b"1", b"2", b"gone", b"online", b"4", b"5"]
    assert drops(shards[0]) == drops(shards[1]) == 0


@pytest.mark.parametrize("responder_in", range(3))
@pytest.mark.parametrize("qos", range(3))
def test_who_subscribes_and_asks_at_once_hears_the_answer(qos: int, responder_in: int) -> None:
    """The answer comes over another connection, which may be of another shard."""
    shards = WiredShards(3)
    responder = shards[responder_in].client("responder", version=5)
    responder.subscribe("ask/#", qos)
    shards.carry()
    asker = shards[0].client("asker", version=5)
    for number in range(10):
        request = SubscriptionRequest(f"answer/{number}", qos, False, False, 0)
        data = codec.encode_subscribe(5, number + 1, [request])
        asker.feed(
            data
            + codec.encode_publish(
                5, b"ask/%d" % number, b"?", qos, False, False, 100 + number if qos else 0
            ),
            sync=False,
        )
    asked = answer_all(shards, responder, qos)
    assert asked == 10
    assert sorted(received(asker)) == [b"%d" % number for number in range(10)]


def answer_all(shards: WiredShards, responder: Client, qos: int) -> int:
    """Answer each request as soon as it is there: before a disk has done anything more."""
    asked = 0
    moved = True
    while moved:
        moved = False
        for end in [end for pair in shards.wires.values() for end in pair]:
            for _ in range(len(end.said)):
                shards.hear(end)
                moved = True
        for _ in received(responder):
            responder.publish(f"answer/{asked}", b"%d" % asked, qos, sync=False)
            asked += 1
            moved = True
        if not moved:
            shards.sync()
            moved = any(end.said for pair in shards.wires.values() for end in pair)
            moved = moved or bool(responder.drain())
    return asked


@pytest.mark.parametrize("qos", range(3))
def test_what_is_published_behind_pubrel_and_subscribe_in_one_piece(qos: int) -> None:
    harness = Harness()
    client = harness.client("c", version=5)
    client.take()
    client.feed(
        codec.encode_publish(5, b"t", b"before", 2, False, False, 7)
        + codec.encode_pubrel(5, 7)
        + codec.encode_subscribe(5, 8, [SubscriptionRequest("t", qos)])
        + codec.encode_publish(5, b"t", b"after", 0, False, False, 0)
        + codec.encode_unsubscribe(5, 9, ["t"])
        + codec.encode_publish(5, b"t", b"gone", 0, False, False, 0)
    )
    assert sorted(first >> 4 for first, _ in client.drain()) == [3, 5, 7, 9, 11]
    assert received(client) == [b"after"]


def test_nothing_waits_for_what_is_durable() -> None:
    """A connection all of whose packets have taken effect, and one that is not concerned, wait for no disk."""
    harness = Harness()
    observer, sender, other = (harness.client(name, version=5) for name in ("observer", "sender", "other"))
    observer.subscribe("t", 0)
    sender.publish("t", b"1")
    other.publish("t", b"2", sync=False)
    sender.publish("t", b"3", 0, sync=False)
    other.publish("t", b"4", 0, sync=False)
    assert received(observer) == [b"1", b"3"]
    harness.sync()
    assert received(observer) == [b"2", b"4"]
    other.publish("t", b"5", 0, sync=False)
    assert received(observer) == [b"5"]


def test_what_waits_goes_on_when_its_sender_is_put_out() -> None:
    harness = Harness()
    observer = harness.client("observer", version=5)
    observer.subscribe("t", 2)
    sender = harness.client("sender", version=5)
    sender.publish("t", b"1", sync=False)
    sender.publish("t", b"2", 0, sync=False)
    harness.broker.put_out(sender.link, 0x98, "an administrator")
    harness.sync()
    assert received(observer) == [b"1", b"2"]
    assert drops(harness) == 0


def test_what_waits_for_space_on_the_disk_is_overtaken_by_nothing() -> None:
    harness = Harness()
    observer = harness.client("observer", version=5)
    observer.subscribe("t", 2)
    sender = harness.client("sender", version=4)
    harness.broker.set_storage_full(True)
    sender.feed(
        codec.encode_publish(4, b"t", b"1", 0, False, False, 0)
        + codec.encode_publish(4, b"t", b"2", 1, False, False, 7)
        + codec.encode_publish(4, b"t", b"3", 0, False, False, 0)
    )
    assert received(observer) == [b"1"]
    harness.broker.set_storage_full(False)
    harness.sync()
    assert received(observer) == [b"2", b"3"]


def test_a_topic_alias_means_what_it_meant_when_it_was_sent() -> None:
    harness = Harness()
    observer = harness.client("observer", version=5)
    observer.subscribe("#", 0)
    sender = harness.client("sender", version=5)
    alias = b"\x23\x00\x01"
    sender.publish("a", b"1", 1, properties=alias, sync=False)
    sender.publish("", b"2", 0, properties=alias, sync=False)
    sender.publish("b", b"3", 0, properties=alias, sync=False)
    sender.publish("", b"4", 1, properties=alias, sync=False)
    harness.sync()
    bodies = [body for first, body in observer.take() if first >> 4 == 3]
    assert [(body[2:3], body[-1:]) for body in bodies] == [
        (b"a", b"1"),
        (b"a", b"2"),
        (b"b", b"3"),
        (b"b", b"4"),
    ]


def test_a_window_that_is_full_holds_back_what_is_stored_alone() -> None:
    """As Mosquitto does it: QoS 0 is not stored, so it goes on to who has as much in flight as it takes."""
    harness = Harness()
    observer = harness.client("observer", version=5, receive_maximum=1)
    observer.subscribe("t", 1)
    sender = harness.client("sender", version=5)
    for number, qos in enumerate([1, 1, 0, 1]):
        sender.publish("t", b"%d" % number, qos)
    found = observer.publishes()
    assert [payload for _, payload, _, _ in found] == [b"0", b"2"]
    for _ in range(2):
        observer.ack(found[0][0])
        found = observer.publishes()
    assert [payload for _, payload, _, _ in found] == [b"3"]
