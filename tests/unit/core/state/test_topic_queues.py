"""The cursor of a cluster, alone: order, what is given back, and changes that come twice."""

from __future__ import annotations

from headrace.core.records.queue_record import CLUSTER_ACKED, CLUSTER_LIMIT, QUEUE_TRIMMED, number_record
from headrace.core.state.topic_queues import Cluster, Draw, TopicQueues
from headrace.storage.memory import MemoryJournal


def queues(count: int) -> tuple[TopicQueues, Cluster]:
    found = TopicQueues(MemoryJournal())
    found.opened("default", b"t", 7)
    queue = found.by_id[7]
    for offset in range(count):
        queue.push(100 + offset, 10)
    return found, found.made(queue, b"c", 8, 0)


def draw(cluster: Cluster) -> Draw:
    serial, _ = cluster.head()
    found = Draw(serial, b"%d" % serial, 0, cluster)
    cluster.draw(found)
    return found


def test_messages_are_drawn_in_order_and_what_is_given_back_goes_first() -> None:
    _, cluster = queues(5)
    draws = [draw(cluster) for _ in range(4)]
    cluster.give_back(draws[2])
    cluster.give_back(draws[0])
    assert (cluster.floor(), cluster.available(), cluster.lag()) == (1, 3, 5)
    assert cluster.head() == (1, True)
    assert [draw(cluster).serial for _ in range(3)] == [1, 3, 5]
    assert cluster.head() == (0, False)
    for serial in (1, 2, 3, 4, 5):
        assert cluster.finish(serial)
        assert not cluster.finish(serial)
    assert (cluster.floor(), cluster.lag()) == (6, 0)


def test_an_acknowledgement_in_a_replay_gives_back_what_was_drawn_before_it() -> None:
    found, cluster = queues(5)
    record = number_record(CLUSTER_ACKED, 0, [8, 3])
    record.offset = 500
    found.replay(record)
    found.replay(record)
    assert (cluster.floor(), sorted(cluster.returned), cluster.next) == (1, [1, 2], 4)


def test_records_that_a_snapshot_has_change_nothing() -> None:
    found, cluster = queues(5)
    cluster.queue.applied = 500
    for subkind, numbers in ((CLUSTER_ACKED, [8, 1]), (CLUSTER_LIMIT, [8, 9]), (QUEUE_TRIMMED, [7, 4, 1, 3])):
        record = number_record(subkind, 0, numbers)
        record.offset = 500
        assert found.replay(record) == []
    assert (cluster.next, cluster.sent_limit, cluster.queue.first) == (1, 0, 1)


def test_a_trim_takes_what_is_held_along_and_is_counted_once() -> None:
    found, cluster = queues(5)
    held = draw(cluster)
    record = number_record(QUEUE_TRIMMED, 0, [7, 4, 1, 3])
    record.offset = 500
    assert found.replay(record) == [("default", 1, 3)]
    assert found.replay(record) == []
    assert (held.holder, cluster.queue.first, cluster.queue.count) == (None, 4, 2)
    assert cluster.head() == (4, False)
    assert not cluster.finish(1)


def test_the_start_of_a_cluster_is_within_its_queue() -> None:
    found, _ = queues(5)
    queue = found.by_id[7]
    queue.trim(3)
    starts = [found.made(queue, b"%d" % first, 20 + first, first).next for first in (0, 2, 4, 9, -1)]
    assert starts == [3, 3, 4, 6, 6]
    assert found.made(queue, b"0", 99, -1).cluster_id == 20


def test_a_message_that_is_given_back_again_and_again_waits_once() -> None:
    _, cluster = queues(2)
    for _ in range(50):
        held = [draw(cluster), draw(cluster)]
        for one in held:
            cluster.give_back(one)
    assert len(cluster._order) == 2
