"""A queue and a cluster that are removed are gone, also in a replay; whoever comes meanwhile is refused nothing and loses
nothing that nobody counts."""

from __future__ import annotations

import pytest

from frame_doors import Door, Node
from headrace.core.outbound.cluster_readers import Guest
from headrace.core.outbound.removing import Removal
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_LIMIT, DROP_REMOVED
from headrace.core.state.topic_queues import TopicQueue
from headrace.errors import InUse, NotThere
from headrace.frames.frame import ACK, JOIN, LEAVE, PUBLISH, PULL

pytestmark = pytest.mark.interpreted  # the doors' links are classes of their own

TOPIC = b"a/%2F b/\xc3\xa9"


class Place:
    """A node with one queue, which is at home in its last shard, and a connection in its first one."""

    def __init__(self, shards: int, **settings: int) -> None:
        found = BrokerSettings()
        for name, value in settings.items():
            setattr(found, name, value)
        self.node = Node(shards, found)
        self.topic = self.node.wired.topic_in(shards - 1, TOPIC.decode()).encode()
        self.shard = self.node.wired[shards - 1]
        self.door = Door(self.node, 0, "ada", self.topic)

    def queue(self) -> TopicQueue | None:
        return self.shard.broker.fold.queues.find("default", self.topic)

    def clusters(self) -> list[bytes] | None:
        queue = self.queue()
        return None if queue is None else sorted(queue.clusters)

    def count(self) -> int:
        queue = self.queue()
        return -1 if queue is None else queue.count

    def dropped(self) -> dict[int, int]:
        return dict(self.shard.broker.fold.tenant("default").counters.dropped)

    def remove(self, force: bool = False) -> Removal:
        return self.shard.broker.removing.remove_queue("default", self.topic, force)

    def remove_cluster(self, name: bytes = b"c") -> Removal:
        return self.shard.broker.removing.remove_cluster("default", self.topic, name)

    def send(self, *opcodes: int) -> None:
        for opcode in opcodes:
            self.door.send(opcode, self.door.own)

    def give(self, opcode: int, door: Door | None = None) -> None:
        """A frame comes; what it leads to has to wait."""
        of = door or self.door
        of.frames.receive_data(of.frame(opcode, of.own))

    def restart(self) -> None:
        for shard in self.node.wired.shards:
            self.node.wired.crash(shard.number)
            self.node.begin(shard)
            self.node.wired.join_again(shard.number)
        self.node.carry()


@pytest.fixture(params=[1, 2])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def test_a_cluster_ends_and_what_it_had_not_finished_is_counted_and_the_queue_keeps_it(place: Place) -> None:
    place.send(JOIN, PUBLISH, PUBLISH, PUBLISH, PULL)
    place.door.ack_all()
    place.send(PUBLISH, PUBLISH, LEAVE)
    removal = place.remove_cluster()
    assert not removal.over
    place.node.carry()
    assert (removal.over, removal.was_refused, removal.unfinished) == (True, False, 2)
    for _ in range(2):
        assert (place.clusters(), place.count()) == ([], 5)
        assert place.dropped() == {DROP_REMOVED: 2}
        place.restart()
    with pytest.raises(NotThere, match="c"):
        place.remove_cluster()


def test_a_queue_whose_messages_are_finished_ends_with_its_clusters(place: Place) -> None:
    place.send(JOIN, PUBLISH, PUBLISH, PULL)
    place.door.ack_all()
    place.send(LEAVE)
    removal = place.remove()
    place.node.carry()
    assert (removal.over, removal.was_refused, removal.unfinished) == (True, False, 0)
    for _ in range(2):
        assert place.clusters() is None
        assert place.dropped() == {}
        assert place.shard.broker.fold.queues.names_bytes == 0
        place.restart()
    with pytest.raises(NotThere, match="%2F"):
        place.remove()


def test_what_clusters_have_to_finish_is_lost_by_force_alone_and_counted_once(place: Place) -> None:
    place.send(JOIN, PUBLISH, PUBLISH, PUBLISH, PULL)
    place.door.ack_all()
    place.send(LEAVE)
    place.door.cluster = b"late"
    place.send(JOIN, LEAVE, PUBLISH)
    with pytest.raises(InUse, match="4 messages"):
        place.remove()
    assert place.clusters() == [b"c", b"late"]
    removal = place.remove(force=True)
    place.node.carry()
    assert (removal.over, removal.was_refused, removal.unfinished) == (True, False, 4)
    for _ in range(2):
        assert (place.clusters(), place.dropped()) == (None, {DROP_REMOVED: 4})
        place.restart()


@pytest.mark.parametrize("force", [False, True])
def test_who_reads_it_keeps_it_and_is_named(place: Place, force: bool) -> None:
    place.door.wait_ms = 60_000
    place.send(JOIN, PULL)  # which waits
    own = place.door.own.decode()
    with pytest.raises(InUse, match=own):
        place.remove(force)
    with pytest.raises(InUse, match=own):
        place.remove_cluster()
    place.send(PUBLISH)
    assert [one.redelivered for one in place.door.answers.got] == [False]
    place.restart()
    assert place.clusters() == [b"c"]


def test_a_join_on_its_way_counts_as_a_reader() -> None:
    """Also of a queue that would have ended since nobody has used it."""
    place = Place(1, unused_s=100)
    place.send(JOIN, LEAVE)
    consuming = place.shard.broker.devices.consuming
    guest = Guest(place.door.link, place.door.answers)
    consuming.join(guest, b"s", place.topic, b"c")  # as one that has come to the shard of the queue
    with pytest.raises(InUse, match="joins"):
        place.remove_cluster()
    with pytest.raises(InUse, match="joins"):
        place.remove(force=True)
    queue = place.queue()
    assert queue is not None
    queue.clusters[b"c"].used_us = 1
    unused = place.shard.broker.clusters.unused
    unused._begun_ms = 0
    place.shard.clock.mono_ms += 1_000_000
    unused.look(queue)
    assert unused.ending == set()
    place.node.carry()
    place.send(PUBLISH)
    consuming.pull(guest, b"s", place.topic, b"c", 1, 0)
    place.node.carry()
    assert len(place.door.answers.got) == 1
    with pytest.raises(InUse, match="read by s"):
        place.remove(force=True)
    consuming.leave(guest, b"s", place.topic, b"c")
    place.node.carry()
    place.remove(force=True)
    place.node.carry()
    assert place.clusters() is None
    assert place.shard.broker.clusters.readers._joining == {}


def test_a_join_that_comes_behind_the_removal_has_a_cluster_of_its_own(place: Place) -> None:
    place.send(JOIN, PUBLISH, LEAVE)
    place.remove_cluster()
    place.give(JOIN)
    place.node.carry()
    place.send(PULL)
    assert len(place.door.answers.got) == 1, "from the beginning"
    place.send(LEAVE)
    place.remove(force=True)
    place.give(JOIN)
    place.give(PUBLISH)
    place.node.carry()
    for _ in range(2):
        assert (place.clusters(), place.count()) == ([b"c"], 1)
        place.restart()


def test_a_message_that_comes_meanwhile_keeps_a_queue_that_is_removed_without_force() -> None:
    place = Place(1)
    place.send(JOIN, LEAVE)
    place.give(PUBLISH)  # before the record, and not durable yet
    removal = place.remove()
    place.node.carry()
    assert (removal.over, removal.was_refused, removal.unfinished) == (True, True, 1)
    for _ in range(2):
        assert (place.clusters(), place.count(), place.dropped()) == ([b"c"], 1, {})
        place.restart()
    assert place.shard.broker.clusters.unused.ending == set()
    place.remove(force=True)
    place.node.carry()
    assert (place.clusters(), place.dropped()) == (None, {DROP_REMOVED: 1})


def test_a_message_behind_the_removal_has_a_queue_behind_it(place: Place) -> None:
    place.send(PUBLISH, PUBLISH)
    before = place.queue()
    removal = place.remove()
    place.give(PUBLISH)
    place.node.carry()
    assert removal.over
    assert place.queue() is not before
    for _ in range(2):
        assert (place.count(), place.dropped()) == (1, {})
        place.restart()


def test_an_acknowledgement_behind_the_removal_is_refused_so_that_a_replay_loses_the_same() -> None:
    place = Place(1)
    place.send(JOIN, PUBLISH, PULL, LEAVE)
    ids = [one.message_id for one in place.door.answers.got]
    assert len(ids) == 1
    place.remove_cluster()
    place.door.ack_ids(ids)
    assert place.door.told(place.door.own)[-1] == (ACK, 0x92)
    for _ in range(2):
        assert place.dropped() == {DROP_REMOVED: 1}
        place.restart()


def test_limits_drop_nothing_behind_the_removal_so_that_a_replay_finds_the_same() -> None:
    """What they have dropped before it is in the journal before it."""
    place = Place(1, queue_messages_max=2)
    place.send(JOIN, PUBLISH, PUBLISH, PUBLISH, LEAVE)
    assert place.dropped() == {DROP_LIMIT: 1}
    queue = place.queue()
    assert queue is not None
    trimming = place.shard.broker.clusters.trimming
    place.shard.settings.queue_messages_max = 1
    trimming.keep_limits(queue)
    removal = place.remove(force=True)
    place.shard.settings.queue_age_s = 1
    place.shard.clock.now_us += 10_000_000
    trimming.keep_limits(queue)
    trimming.age()
    place.node.carry()
    assert removal.unfinished == 1
    for _ in range(2):
        assert place.dropped() == {DROP_LIMIT: 2, DROP_REMOVED: 1}
        place.restart()


def test_a_crash_before_the_record_is_durable_leaves_all_as_it_was() -> None:
    place = Place(1)
    place.send(JOIN, PUBLISH, LEAVE)
    removal = place.remove(force=True)
    place.restart()
    assert not removal.over
    assert (place.clusters(), place.count(), place.dropped()) == ([b"c"], 1, {})


def test_what_the_configuration_names_is_not_removed() -> None:
    place = Place(1)
    place.send(PUBLISH)
    place.shard.settings.queue_topics = [place.topic.decode()]
    with pytest.raises(InUse, match=r"frames\.queue_topics"):
        place.remove(force=True)


def test_nothing_is_made_of_a_tenant_that_nobody_knows() -> None:
    place = Place(1)
    before = set(place.shard.broker.fold.tenants)
    with pytest.raises(NotThere, match="nobody"):
        place.shard.broker.removing.remove_queue("nobody", b"t", True)
    assert set(place.shard.broker.fold.tenants) == before
    assert "nobody" not in place.shard.broker.fold.queues._by_topic
