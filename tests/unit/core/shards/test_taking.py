"""What the taking side of a stream knows of its copies; `test_neighbours` has both sides."""

from __future__ import annotations

import pytest

from harness import Harness, message
from headrace.core.records.message import copy_of
from headrace.core.shards import taking
from headrace.core.shards.intake import Intake
from headrace.core.shards.peer import ANNOUNCED, FOLLOW
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker
from headrace.mqtt import codec
from shard_wires import End, NarrowEnd, WiredShards, received


def test_what_holds_nothing_before_the_oldest_copy_on_its_way_is_settled() -> None:
    """Whoever asks for retained messages leaves out what is still to come from there on."""
    broker = Harness().broker
    intake = Intake(broker.worker.clock, StreamSettings(), broker.gate)
    taker = Taker(0, broker.fold, broker.commit, broker.router, 1 << 20, 1000, intake)
    copies = [copy_of(message(b"a", b"x"), 0, offset) for offset in (3, 7, 8)]
    taker.looked(2)
    assert taker.settled == 2
    taker.copied(copies[0])
    taker.copied(copies[1])
    assert taker.settled == 3
    taker.applies(copies[0])
    assert taker.settled == 7
    taker.copied(copies[2])
    taker.applies(copies[1])
    taker.looked(20)
    assert taker.settled == 8
    taker.applies(copies[2])
    assert taker.settled == 20


@pytest.mark.interpreted
def test_all_filters_are_announced_as_the_wire_takes_it_and_then_the_stream_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Very many would be more than may wait on a link: it was cut for that, again and again."""
    monkeypatch.setattr(taking, "ANNOUNCED_AT_ONCE", 3)
    shards = WiredShards(2)
    client = shards[1].client("r", version=5, clean=False)
    for number in range(20):
        client.subscribe(f"a/{number}", 1)
    shards.carry()
    shards.disconnect(1, 0)
    publisher = shards[0].client("w")
    publisher.publish("a/0", b"before")
    client.take()
    narrow = NarrowEnd(shards[1]), End(shards[0])
    shards.wires[1, 0] = narrow
    shards[1].neighbours.connect(0, narrow[0])
    more = shards.topic_in(1, "a/more")
    client.subscribe(more, 1)  # is looked for before anything is taken: nobody waits for that
    assert [first >> 4 for first, _ in client.take()] == [9]
    said = []
    while narrow[0].said:
        said.append([data[0] for data in narrow[0].said])
        shards.step()
    kinds = [kind for some in said for kind in some]
    assert kinds.count(ANNOUNCED) == 7
    assert kinds.index(FOLLOW) > max(at for at, kind in enumerate(kinds) if kind == ANNOUNCED)
    assert max(some.count(ANNOUNCED) for some in said) == 1
    for topic in ("a/0", "a/19", more):
        publisher.publish(topic, topic.encode())
    shards.carry()
    assert received(client) == [b"before", b"a/0", b"a/19", more.encode()]


@pytest.mark.interpreted
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", [0, 7, 19])
def test_what_nobody_wants_any_more_while_filters_are_announced_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, number: int, again: bool
) -> None:
    """Whether or not it has been announced by then: what takes a filter back does not overtake it. One that is wanted
    again is announced once, so that it can be taken back."""
    monkeypatch.setattr(taking, "ANNOUNCED_AT_ONCE", 3)
    shards = WiredShards(2)
    client = shards[1].client("r", version=5, clean=False)
    for at in range(20):
        client.subscribe(f"a/{at}", 1)
    shards.carry()
    routes = shards[0].neighbours.followers.routes
    shards.disconnect(1, 0)
    narrow = NarrowEnd(shards[1]), End(shards[0])
    shards.wires[1, 0] = narrow
    shards[1].neighbours.connect(0, narrow[0])
    for _ in range(2):
        shards.step()
    shards.held = {(1, 0)}
    client.feed(codec.encode_unsubscribe(5, 9, [f"a/{number}"]))
    shards.advance(61)
    if again:
        client.subscribe(f"a/{number}", 1)
        shards.carry()
    shards.held = set()
    shards.carry()
    topic = f"a/{number}".encode()
    assert len(routes.match("default", topic)) == again
    if again:
        client.feed(codec.encode_unsubscribe(5, 9, [f"a/{number}"]))
        shards.advance(61)
        assert routes.match("default", topic) == []
    assert all(routes.match("default", f"a/{at}".encode()) for at in range(20) if at != number)
