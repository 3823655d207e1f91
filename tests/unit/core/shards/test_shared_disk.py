"""A disk that shards share and that is full, or nearly so; `faults/broker/test_full_disk` has real ones."""

from __future__ import annotations

from harness import Client
from headrace.core.shards.stream_settings import StreamSettings
from unit.core.shards.test_neighbours import Pair, Shard, received, written

PUBACK = 4


def has_puback(client: Client) -> bool:
    client.harness.sync()
    return any(first >> 4 == PUBACK for first, _ in client.take())


def fill_up(shard: Shard) -> None:
    """The disk of a shard is full, and the segment of its journal is finished."""
    shard.broker.set_storage_full(True)
    assert shard.neighbours is not None
    shard.neighbours.disk.finished = len(shard.journal.records)


def test_on_a_full_disk_nothing_is_kept_that_all_others_have() -> None:
    pair = Pair()
    _, writer = pair.talkers("a", 1, version=5)
    for topic in ("a", "b"):
        writer.publish(topic, b"x")
    pair.carry()
    end = len(pair.source.journal.records)
    pair.advance(1)
    assert pair.source.broker.fold.streams.floor([1]) == 0
    fill_up(pair.source)
    for _ in range(3):
        pair.advance(1)
    assert pair.source.broker.fold.streams.floor([1]) >= end
    before = written(pair)
    for _ in range(50):
        pair.advance(1)
    assert written(pair) <= before + 2, "what is left of the disk is not for such notes"
    pair.source.broker.set_storage_full(False)
    writer.publish("a", b"y")
    pair.carry()
    end = len(pair.source.journal.records)
    pair.advance(1)
    fill_up(pair.source)
    for _ in range(3):
        pair.advance(1)
    assert pair.source.broker.fold.streams.floor([1]) >= end


def test_where_others_are_short_of_space_nothing_is_kept_that_all_others_have() -> None:
    pair = Pair()
    pair.follower.client("r").subscribe("a", 1)
    pair.carry()
    pair.source.client("w").publish("a", b"x")
    pair.carry()
    end = len(pair.source.journal.records)
    pair.source.neighbours.disk.finished = end
    for _ in range(3):
        pair.advance(1)
    assert pair.source.broker.fold.streams.floor([1]) >= end


def test_on_a_full_disk_a_follower_that_catches_up_is_asked_again() -> None:
    streams = StreamSettings()
    streams.window_bytes = 500
    pair = Pair(streams)
    reader, writer = pair.talkers("a", 1, version=5)
    pair.follower.broker.set_storage_full(True)
    for _ in range(10):
        writer.publish("a", b"x")
    pair.carry()
    end = len(pair.source.journal.records)
    fill_up(pair.source)
    for _ in range(3):
        pair.advance(1)
    assert 0 < pair.source.broker.fold.streams.floor([1]) < end
    pair.follower.broker.set_storage_full(False)
    for _ in range(5):
        pair.advance(1)
    assert len(received(reader)) == 10
    assert pair.source.broker.fold.streams.floor([1]) >= end


def test_publishers_wait_while_the_disk_is_full_for_another_shard_and_nearly_so_for_theirs() -> None:
    """They would write full what that one has given back, to be able to go on."""
    pair = Pair()
    writer, disk = pair.source.client("w"), pair.source.journal
    pair.follower.broker.set_storage_full(True)
    pair.carry()
    writer.publish("a", b"1")
    assert has_puback(writer), "its own disk is another one"
    disk.is_tight = True
    pair.advance(0.1)
    writer.publish("a", b"2")
    assert not has_puback(writer)
    pair.follower.broker.set_storage_full(False)
    pair.carry()
    assert has_puback(writer)
    pair.follower.broker.set_storage_full(True, False)
    pair.carry()
    writer.publish("a", b"3")
    assert has_puback(writer), "it is something else that is used up there"
    pair.follower.broker.set_storage_full(True)
    pair.carry()
    pair.connect()  # anew: it is said on each wire
    writer.publish("a", b"4")
    assert not has_puback(writer)
    pair.source.neighbours.broken(pair.far)
    pair.carry()
    assert not has_puback(writer), "what is not there says nothing"
    disk.is_tight = False
    pair.advance(0.1)
    assert has_puback(writer)


def test_a_follower_on_a_full_disk_takes_as_much_as_there_is_room_for() -> None:
    """Its source may be the shard whose journal fills the disk, of which nothing goes before it is taken."""
    streams = StreamSettings()
    streams.window_bytes = 100_000
    pair = Pair(streams)
    reader, writer = pair.talkers("a", 1, version=5, receive_maximum=1000)
    pair.follower.broker.set_storage_full(True)
    for _ in range(200):
        writer.publish("a", bytes(1000))
    pair.carry()
    pair.advance(1)
    granted = len(received(reader))
    assert 40 < granted < 60, "what was granted before, and no more"
    disk = pair.follower.journal
    disk.free_bytes = 40_000  # half of which is for the other shard
    pair.follower.neighbours.end_pass()
    disk.free_bytes = 0
    pair.carry()
    pair.advance(1)
    assert 5 < len(received(reader)) < 15
    disk.free_bytes = 40_000
    for _ in range(30):
        pair.advance(1)
    assert len(received(reader)) > 100, "it frees what it takes"


def test_a_shard_with_a_full_disk_grants_nothing_more() -> None:
    streams = StreamSettings()
    streams.window_bytes = 2000
    pair = Pair(streams)
    reader, writer = pair.talkers("#", 1)
    pair.follower.broker.set_storage_full(True)
    for number in range(50):
        writer.publish("a", b"%d" % number)
        pair.carry()
    taken = len(received(reader))
    assert 0 < taken < 20  # what was granted before
    pair.connect()
    pair.advance(1)
    assert received(reader) == [], "a new wire grants nothing either"
    pair.follower.broker.set_storage_full(False)
    pair.advance(1)
    found: list[bytes] = []
    while packets := reader.publishes():
        for packet_id, payload, _, _ in packets:
            found.append(payload)
            reader.ack(packet_id)
        pair.advance(1)
    assert found == [b"%d" % number for number in range(taken, 50)]
