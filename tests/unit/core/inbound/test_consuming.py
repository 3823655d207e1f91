"""What consumers ask for, and what of it a reload takes away while it waits."""

from __future__ import annotations

from itertools import product

import pytest

from frame_doors import Door, Node
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_BYTES_LIMIT
from headrace.frames.frame import JOIN, LEAVE, PUBLISH, PULL
from headrace.mqtt import reason_codes as rc

pytestmark = pytest.mark.interpreted  # the doors' links are classes of their own


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


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("shards", "home", "shard"), pairs())
def test_one_device_or_user_begins_so_many_queues_and_clusters_and_others_have_theirs(
    shards: int, home: int, shard: int, crash: bool
) -> None:
    settings = BrokerSettings()
    settings.device_queues_max, settings.user_queues_max = 5, 8
    node = Node(shards, settings)
    topics = [node.wired.topic_in(home, f"t{number}/").encode() for number in range(20)]
    gate = Door(node, shard, "ada", topics[0])
    one, two = node.name_in(home, "one"), node.name_in(home, "two")
    queues = node.wired[home].broker.fold.tenant("default").queues
    for topic in topics:
        gate.topic = topic
        gate.send(PUBLISH, one)
    assert len(queues) == 5
    gate.topic = topics[0]
    for number in range(20):
        gate.cluster = b"c%d" % number
        gate.send(JOIN, two, LEAVE, two)
    assert len(queues[topics[0]].clusters) == 3
    codes = [code for opcode, code in gate.told(two) if opcode == JOIN]
    assert codes == [0] * 3 + [rc.QUOTA_EXCEEDED] * 17
    if crash:
        node.wired.crash(home)
        node.begin(node.wired[home])
        node.wired.join_again(home)
        node.carry()
        queues = node.wired[home].broker.fold.tenant("default").queues
    eve = Door(node, shard, "eve", topics[-1])
    eve.send(PUBLISH, node.name_in(home, "three"), JOIN, eve.own)
    assert len(queues) == 6
    assert list(queues[topics[-1]].clusters) == [b"c"]
    if not crash or home != shard:
        gate.topic, gate.cluster = topics[1], b"again"
        gate.send(JOIN, two)
        assert gate.told(two)[-1] == (JOIN, rc.QUOTA_EXCEEDED)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(("shards", "home", "shard"), pairs())
def test_queues_that_one_user_begins_are_no_other_ones_wherever_devices_and_topics_are_at_home(
    shards: int, home: int, shard: int, at: int
) -> None:
    """`at`: where the devices are at home, the connection in `shard`, the topics in `home`."""
    settings = BrokerSettings()
    settings.user_queues_max = 4
    node = Node(shards, settings)
    topics = [node.wired.topic_in(home, f"t{number}/").encode() for number in range(12)]
    queues = node.wired[home].broker.fold.tenant("default").queues
    ada, eve = Door(node, shard, "ada"), Door(node, shard, "eve")
    for number, ada.topic in enumerate(topics[:-2]):
        ada.send(PUBLISH, node.name_in(at % shards, f"ada-{number}-"))
    is_told = home == shard or at % shards in (home, shard)  # else nobody here knows whose a device is
    assert len(queues) == (4 if is_told else 10)
    for number, eve.topic in enumerate(topics[-2:]):
        eve.send(PUBLISH, node.name_in(at % shards, f"eve-{number}-"))
    assert set(topics[-2:]) <= set(queues)


def test_names_of_all_queues_and_clusters_together_have_a_limit_in_bytes() -> None:
    settings = BrokerSettings()
    settings.names_bytes_max = 10_000
    node = Node(1, settings)
    door = Door(node, 0, "ada")
    for number in range(30):
        door.topic = b"%d/" % number + b"x" * 997
        door.send(PUBLISH, door.own)
    fold = node.wired[0].broker.fold
    assert fold.queues.names_bytes <= 10_000 < fold.queues.names_bytes + 1000
    door.topic, door.cluster = next(iter(fold.tenant("default").queues)), b"c" * 255
    for number in range(10):
        door.cluster = b"%d" % number + b"c" * 250
        door.send(JOIN, door.own)
    assert fold.queues.names_bytes <= 10_000
    assert door.told(door.own)[-1] == (JOIN, rc.QUOTA_EXCEEDED)


def test_all_queues_keep_only_so_many_bytes_and_what_a_cluster_wants_is_counted() -> None:
    """The largest queue pays, so one device does not take it from others."""
    settings = BrokerSettings()
    settings.queues_bytes_max = 5000
    node = Node(1, settings)
    small, large = Door(node, 0, "ada", b"small"), Door(node, 0, "eve", b"large")
    small.send(JOIN, small.own, *[PUBLISH, small.own] * 5)
    large.send(JOIN, large.own, *[PUBLISH, large.own] * 2000)
    node.wired.advance(2)
    node.wired.advance(2)
    tenant = node.wired[0].broker.fold.tenant("default")
    queues = tenant.queues
    assert sum(queue.bytes for queue in queues.values()) <= 5000
    assert queues[b"small"].count == 5
    assert tenant.counters.dropped[DROP_BYTES_LIMIT] == 2000 - queues[b"large"].count > 0
    left = queues[b"large"].count
    node.wired.crash(0)
    assert node.wired[0].broker.fold.tenant("default").queues[b"large"].count == left


def test_messages_that_no_cluster_has_to_finish_keep_no_more_of_the_journal_than_its_limit() -> None:
    settings = BrokerSettings()
    settings.read_bytes_max = 5000
    node = Node(1, settings)
    wanted, unread = Door(node, 0, "ada", b"wanted"), Door(node, 0, "eve", b"unread")
    wanted.send(JOIN, wanted.own, *[PUBLISH, wanted.own] * 500)
    unread.send(*[PUBLISH, unread.own] * 500)
    node.wired.advance(2)
    node.wired.advance(2)
    tenant = node.wired[0].broker.fold.tenant("default")
    assert tenant.queues[b"wanted"].count == 500
    assert 0 < tenant.queues[b"unread"].count < 500
    assert 4900 < sum(queue.bytes for queue in tenant.queues.values()) <= 5000
    assert not tenant.counters.dropped
