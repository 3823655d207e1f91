"""What consumers ask for, and what of it a reload takes away while it waits."""

from __future__ import annotations

from itertools import product

import pytest

from frame_doors import Door, Node
from headrace.frames.frame import JOIN, PUBLISH, PULL
from headrace.mqtt import reason_codes as rc


def pairs() -> list[tuple[int, int, int]]:
    """(shards, home of the topic, shard of the connection)."""
    return [(of, a, b) for of in (1, 2, 3) for a, b in product(range(of), repeat=2)]


@pytest.mark.parametrize(("shards", "home", "shard"), pairs())
def test_a_right_that_is_withdrawn_ends_pulls_that_wait_with_no_message_more(
    shards: int, home: int, shard: int
) -> None:
    node = Node(shards)
    topic = node.wired.topic_in(home).encode()
    reader, writer, other = (Door(node, shard, user, topic) for user in ("ada", "eve", "joe"))
    for door in (reader, other):
        door.wait_ms = 60_000
        door.send(JOIN, door.own, *[PULL, door.own] * 20)
    writer.send(PUBLISH, writer.own)
    assert sorted(len(door.answers.got) for door in (reader, other)) == [0, 1]
    node.access.deny(reader.own, topic)
    had = len(reader.answers.got)
    for _ in range(50):
        writer.send(PUBLISH, writer.own)
    assert reader.refused == rc.NOT_AUTHORIZED
    assert len(reader.answers.got) == had
    reader.end()
    other.send(*[PULL, other.own] * 2)
    assert len({one.message_id for one in other.answers.got}) == 51, "others have what it was to have"


@pytest.mark.parametrize(("shards", "home", "shard"), pairs())
def test_a_reader_that_stands_still_gets_nothing_of_its_pulls_after_a_reload(
    shards: int, home: int, shard: int
) -> None:
    node = Node(shards)
    topic = node.wired.topic_in(home).encode()
    reader, writer = Door(node, shard, "ada", topic), Door(node, shard, "eve", topic)
    writer.send(*[PUBLISH, writer.own] * 300)
    reader.send(JOIN, reader.own)
    reader.link.paused = True
    reader.send(*[PULL, reader.own] * 1000)
    assert reader.answers.got == []
    node.access.deny(reader.own, topic)
    reader.link.paused = False
    reader.writable()
    assert reader.answers.got == []
    assert reader.refused == rc.NOT_AUTHORIZED


@pytest.mark.parametrize(("shards", "home", "shard"), pairs())
def test_a_device_whose_right_is_withdrawn_is_not_notified_and_others_of_its_connection_are(
    shards: int, home: int, shard: int
) -> None:
    """Also while the other one speaks: rights are the device's, not of who has spoken last."""
    node = Node(shards)
    topic = node.wired.topic_in(home).encode()
    gate, writer = Door(node, shard, "ada", topic), Door(node, shard, "eve", topic)
    one, two = node.name_in(0, "one"), node.name_in(shards - 1, "two")
    gate.send(JOIN, one, JOIN, two)
    node.access.deny(two, topic)
    writer.send(*[PUBLISH, writer.own] * 2)
    assert gate.notified(one) in ([1], [2])
    assert gate.notified(two) == []
    gate.send(PULL, one)
    assert len(gate.answers.got) == 2
    gate.send(PULL, two)
    assert gate.refused == rc.NOT_AUTHORIZED
