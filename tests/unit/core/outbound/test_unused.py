"""Queues and clusters that nobody uses end, those that somebody does stay, and a replay of the journal agrees."""

from __future__ import annotations

import pytest

from frame_doors import Door, Node
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.topic_queues import TopicQueue
from headrace.frames.frame import JOIN, LEAVE, PUBLISH, PULL

pytestmark = pytest.mark.interpreted  # the doors' links are classes of their own

TERM_S = 7200


def node_of(shards: int, **more: int) -> Node:
    settings = BrokerSettings()
    settings.unused_s = TERM_S
    settings.queue_age_s = more.get("age_s", 0)
    settings.cluster_start_us = more.get("start_us", 0)
    settings.queue_topics = ["#", "named"]
    return Node(shards, settings)


def pass_by(node: Node, seconds: int) -> None:
    """Time goes by, in steps in which everything has its turn."""
    for _ in range(4):
        node.wired.advance(seconds / 4)
    for _ in range(3):
        node.wired.advance(1)
        node.carry()


def queues(node: Node) -> dict[bytes, TopicQueue]:
    found: dict[bytes, TopicQueue] = {}
    for shard in node.wired.shards:
        found |= shard.broker.fold.tenant("default").queues
    return found


def restart(node: Node) -> None:
    for shard in node.wired.shards:
        node.wired.crash(shard.number)
        node.begin(shard)
        node.wired.join_again(shard.number)
    node.carry()


def state(node: Node) -> dict[bytes, list[bytes]]:
    """The queues that are there, and their clusters."""
    return {topic: sorted(queue.clusters) for topic, queue in queues(node).items()}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
def test_names_that_join_and_leave_leave_behind_end_and_their_queue_with_them(
    shards: int, crash: bool
) -> None:
    node = node_of(shards)
    door = Door(node, 0, "ada", b"t/1")
    door.send(JOIN, door.own, LEAVE, door.own)
    assert state(node) == {b"t/1": [b"c"], b"named": []}
    if crash:
        restart(node)
    pass_by(node, TERM_S // 2)
    assert b"t/1" in state(node)
    pass_by(node, TERM_S)
    assert state(node)[b"named"] == [], "the configuration names it"
    pass_by(node, TERM_S)
    assert state(node) == {b"named": []}
    restart(node)
    assert state(node) == {b"named": []}


@pytest.mark.parametrize("crash", [False, True])
def test_a_cluster_that_has_had_messages_that_are_there_stays_however_long_nobody_reads_it(
    crash: bool,
) -> None:
    node = node_of(1)
    door = Door(node, 0, "ada", b"t/1")
    door.send(JOIN, door.own, PUBLISH, door.own, PUBLISH, door.own, PULL, door.own)
    door.ack_all()
    door.send(LEAVE, door.own)
    if crash:
        restart(node)
    pass_by(node, 10 * TERM_S)
    assert state(node)[b"t/1"] == [b"c"]
    assert queues(node)[b"t/1"].clusters[b"c"].lag() == 0


def test_messages_that_nobody_wants_go_by_their_age_and_then_the_queue() -> None:
    node = node_of(1, age_s=60)
    door = Door(node, 0, "ada", b"t/1")
    door.send(PUBLISH, door.own)
    pass_by(node, 80)
    assert queues(node)[b"t/1"].count == 0
    pass_by(node, TERM_S // 2)
    assert b"t/1" in state(node)
    pass_by(node, TERM_S)
    assert b"t/1" not in state(node)


def test_a_cluster_with_a_consumer_stays_and_so_does_its_queue() -> None:
    node = node_of(2)
    for shard in (0, 1):
        door = Door(node, shard, "ada", node.wired.topic_in(0, f"t{shard}/").encode())
        door.send(JOIN, door.own)
    before = state(node)
    pass_by(node, 10 * TERM_S)
    assert state(node) == before


def test_one_that_begins_elsewhere_when_it_is_made_anew_stays_while_there_are_messages() -> None:
    node = node_of(1, start_us=-1)
    door = Door(node, 0, "ada", b"t/1")
    door.send(JOIN, door.own, LEAVE, door.own, PUBLISH, door.own)
    pass_by(node, 10 * TERM_S)
    assert state(node)[b"t/1"] == [b"c"]


def test_who_comes_while_the_end_is_on_its_way_to_the_journal_has_a_queue_and_a_cluster_behind_it() -> None:
    """Also what is published, and in a replay."""
    node = node_of(1)
    door, writer = Door(node, 0, "ada", b"t/1"), Door(node, 0, "eve", b"t/1")
    door.send(JOIN, door.own, LEAVE, door.own)
    shard = node.wired[0]
    unused = shard.broker.clusters.unused
    queue = queues(node)[b"t/1"]
    pass_by(node, TERM_S * 3 // 4)
    long_ago = shard.clock.now_us - 2 * TERM_S * 1_000_000
    queue.clusters[b"c"].used_us = long_ago
    unused.look(queue)  # the cluster's
    assert unused.ending == {queue.clusters[b"c"].cluster_id}
    door.frames.receive_data(door.frame(JOIN, door.own))
    node.carry()
    assert state(node)[b"t/1"] == [b"c"]
    door.send(LEAVE, door.own)
    queue.used_us = queue.clusters[b"c"].used_us = long_ago
    unused.look(queue)
    node.carry()
    queue.used_us = long_ago
    unused.look(queue)  # the queue's
    assert unused.ending == {queue.queue_id}
    writer.frames.receive_data(writer.frame(PUBLISH, writer.own))
    node.carry()
    assert queues(node)[b"t/1"].count == 1
    assert queues(node)[b"t/1"] is not queue
    restart(node)
    assert queues(node)[b"t/1"].count == 1
