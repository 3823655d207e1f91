"""Retained messages of several shards: who keeps them."""

from __future__ import annotations

import pytest

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Copy
from headrace.core.records.record import DROP_RETAINED_LIMIT
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.wanted import Wanted
from headrace.mqtt.packets import Will
from shard_wires import WiredShards, received


def copies(shards: WiredShards, number: int) -> list[Copy]:
    return [record for record in shards[number].journal.records if isinstance(record, Copy)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_kept_at_its_home_alone(qos: int) -> None:
    shards = WiredShards()
    writer = shards[0].client("w", version=5)
    topics = [shards.topic_in(home) for home in range(3)]
    for topic in topics:
        writer.publish(topic, b"x", qos, retain=True)
    shards.carry()
    kept = [shards[home].retained() for home in range(3)]
    assert kept == [{topic.encode(): b"x"} for topic in topics]
    assert [len(copies(shards, home)) for home in range(3)] == [0, 1, 1]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_home_takes_what_replaces_and_what_deletes(qos: int) -> None:
    shards = WiredShards()
    topic = shards.topic_in(2)
    first, second = shards[0].client("w", version=5), shards[1].client("w", version=5)
    first.publish(topic, b"1", qos, retain=True)
    shards.carry()
    second.publish(topic, b"2", qos, retain=True)
    shards.carry()
    assert shards[2].retained() == {topic.encode(): b"2"}
    first.publish(topic, b"", qos, retain=True)
    shards.carry()
    assert [shard.retained() for shard in shards.shards] == [{}, {}, {}]


def test_what_is_not_retained_goes_to_no_home() -> None:
    shards = WiredShards()
    shards[0].client("w", version=5).publish(shards.topic_in(1), b"x", 1)
    shards.carry()
    assert copies(shards, 1) == []


def test_it_expires_at_its_home() -> None:
    shards = WiredShards()
    topic = shards.topic_in(1)
    shards[0].client("w", version=5).publish(topic, b"x", 1, retain=True, expiry_s=5)
    shards.carry()
    assert shards[1].retained() == {topic.encode(): b"x"}
    shards.advance(6)
    shards.advance(1)
    assert shards[1].retained() == {}
    shards.crash(1)
    assert shards[1].retained() == {}


def test_nothing_is_lost_while_the_home_is_away() -> None:
    """At QoS 0 too: what one shard alone would keep waits in the journal."""
    shards = WiredShards()
    topics = [shards.topic_in(1, prefix) for prefix in ("a/", "b/", "c/")]
    shards.isolate(1)
    writer = shards[0].client("w", version=5)
    for qos, topic in enumerate(topics):
        writer.publish(topic, b"x", qos, retain=True)
    shards.carry()
    assert shards[1].retained() == {}
    shards.crash(0)
    shards.crash(1)
    shards.connect_all()
    for _ in range(3):
        shards.advance(1)
    assert shards[1].retained() == {topic.encode(): b"x" for topic in topics}
    assert shards[0].retained() == {}


def test_a_start_keeps_what_was_kept() -> None:
    shards = WiredShards()
    topic = shards.topic_in(1)
    shards[0].client("w", version=5).publish(topic, b"x", 0, retain=True)
    shards.carry()
    for number in (0, 1):
        shards.crash(number)
    assert (shards[0].retained(), shards[1].retained()) == ({}, {topic.encode(): b"x"})
    shards[1].take_snapshot()
    shards.crash(1)
    assert shards[1].retained() == {topic.encode(): b"x"}


def test_a_will_that_is_retained_is_kept_at_its_home() -> None:
    shards = WiredShards()
    topic = shards.topic_in(2)
    client = shards[0].client("w", version=5, will=Will(topic, b"gone", 1, True, b"", 0, -1))
    client.link.closed = True
    client.link.broker.on_connection_lost(client.link)
    shards.carry()
    assert [shard.retained() for shard in shards.shards] == [{}, {}, {topic.encode(): b"gone"}]


@pytest.mark.parametrize("qos", [0, 1])
def test_subscribers_of_all_shards_get_it_as_published(qos: int) -> None:
    shards = WiredShards()
    topic = shards.topic_in(2)
    readers = [shard.client("r", version=5) for shard in shards.shards]
    for reader in readers:
        reader.subscribe(topic, 1, retain_as_published=1)
    shards.carry()
    for reader in readers:
        reader.take()
    shards[0].client("w", version=5).publish(topic, b"x", qos, retain=True)
    shards.carry()
    assert [[first & 1 for first, _ in reader.take() if first >> 4 == 3] for reader in readers] == [[1]] * 3


def test_a_message_at_qos_0_keeps_its_place_behind_a_retained_one() -> None:
    shards = WiredShards()
    topic = shards.topic_in(1)
    reader = shards[1].client("r", version=5)
    reader.subscribe("#", 1)
    shards.carry()
    writer = shards[0].client("w", version=5)
    for number in range(6):
        writer.publish(topic, b"%d" % number, 0, retain=number % 2 == 0, sync=False)
    shards.carry()
    assert received(reader) == [b"%d" % number for number in range(6)]


def test_the_home_holds_to_its_limit_and_the_message_is_delivered() -> None:
    settings = BrokerSettings()
    settings.retained_messages_max = 1
    shards = WiredShards(settings=settings)
    reader = shards[1].client("r", version=5)
    reader.subscribe("#", 1)
    shards.carry()
    writer = shards[0].client("w", version=5)
    topics = [shards.topic_in(1, prefix) for prefix in ("a/", "b/")]
    for topic in topics:
        writer.publish(topic, b"x", 1, retain=True)
        assert (4 << 4, 0) in [(first, len(body) > 2 and body[2]) for first, body in writer.take()]
    shards.carry()
    assert received(reader) == [b"x", b"x"]
    assert shards[1].retained() == {topics[0].encode(): b"x"}
    counters = shards[1].broker.fold.tenant(DEFAULT_TENANT).counters
    assert counters.dropped == {DROP_RETAINED_LIMIT: 1}
    shards.crash(1)
    assert shards[1].retained() == {topics[0].encode(): b"x"}


def test_a_home_that_lags_takes_it_from_the_journal() -> None:
    streams = StreamSettings()
    streams.window_bytes = 1
    streams.read_at_once = 1
    shards = WiredShards(streams=streams)
    writer = shards[0].client("w", version=5)
    topics = [shards.topic_in(1, prefix) for prefix in ("a/", "b/", "c/")]
    for topic in topics:
        writer.publish(topic, b"x", 0, retain=True, sync=False)
    for _ in range(5):
        shards.carry()
        shards.advance(1)
    assert shards[1].retained() == {topic.encode(): b"x" for topic in topics}


@pytest.mark.parametrize("home", [0, 1, 2])
@pytest.mark.parametrize("writer", [0, 1, 2])
@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("stop", ["crash", "snapshot", "clock set back"])
def test_a_will_that_waits_after_a_start_does_not_replace_what_was_written_in_any_shard(
    home: int, writer: int, meanwhile: bool, stop: str
) -> None:
    """Its own shard is told by the others, those that went on while it was away (`meanwhile`) too; also where a start has
    a snapshot and nothing to replay."""
    shards = WiredShards()
    topic = shards.topic_in(home)
    watcher = shards[2].client("watcher")
    watcher.subscribe(topic)
    shards.carry()
    before = shards[0].client("run-", version=4, clean=True, will=Will(topic, b"offline", 1, True))
    before.publish(topic, b"online", 1, retain=True)
    shards.carry()
    shards.isolate(0)
    shards.advance(1)
    if stop == "snapshot":
        shards[0].take_snapshot()
    shards.advance(1)
    written = writer and meanwhile
    if written:
        shards[writer].client("next").publish(topic, b"again", 1, retain=True)
        shards.carry()
    shards.advance(1)
    if stop == "clock set back":
        for number in () if written else range(3):
            shards[number].set_by_us = -3_600_000_000
            shards[number]._set_clock()
    shards.crash(0)
    shards.join_again(0)
    shards.carry()
    if not written:
        shards[writer].client("next").publish(topic, b"again", 1, retain=True)
        shards.carry()
    received(watcher)
    for _ in range(5):
        shards.advance(1)
    assert shards[home].retained() == {topic.encode(): b"again"}
    assert received(watcher) == []


@pytest.mark.parametrize("home", [0, 1])
def test_a_will_is_not_forgotten_for_what_was_written_before_its_client_came(home: int) -> None:
    """Another shard is asked for a topic from where its stream has come to, which may be long ago."""
    shards = WiredShards()
    topic = shards.topic_in(home)
    shards[1].client("first").publish(topic, b"online", 1, retain=True)
    shards.held = {(0, 1), (1, 0)}
    shards.carry()
    shards.advance(60)
    client = shards[0].client("run-", version=4, clean=True, will=Will(topic, b"offline", 1, True))
    client.publish("other", b"x", 1)
    shards.advance(60)
    shards.held = set()
    shards.crash(0)
    shards.join_again(0)
    shards.carry()
    shards.advance(2)
    assert shards[home].retained() == {topic.encode(): b"offline"}
    wanted = shards[0].broker.fold.wanted
    assert isinstance(wanted, Wanted)
    assert not wanted.has("default", topic)


@pytest.mark.parametrize("when", ["before it came", "since it was asked away"])
def test_a_will_of_who_was_asked_away_is_forgotten_only_for_what_is_newer(when: str) -> None:
    """What was written in another shard before its client came may have been long on its way."""
    shards = WiredShards()
    topic = shards.topic_in(0)
    shards.carry()
    shards.advance(60)
    writer = shards[1].client("first")
    if when == "before it came":
        shards.held = {(0, 1)}
        writer.publish(topic, b"online", 1, retain=True)
        shards.carry()
    shards.advance(60)
    client = shards[0].client("run-", version=4, clean=True, will=Will(topic, b"offline", 1, True))
    shards.advance(1)
    shards[0].broker.put_out(client.link, 0x8B, "the node of its socket stops")
    shards.held = set()
    if when != "before it came":
        writer.publish(topic, b"again", 1, retain=True)
    shards.carry()
    for _ in range(5):
        shards.advance(1)
        shards.carry()
    expected = b"offline" if when == "before it came" else b"again"
    assert shards[0].retained() == {topic.encode(): expected}
