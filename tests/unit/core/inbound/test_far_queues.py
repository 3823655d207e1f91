"""Topic queues of several shards: publishers, consumers and the home in different ones, wires that break, owners that
crash; at random, against what each consumer was told."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from mypy_extensions import i64

from headrace.core.inbound.far_queues import Errand, FarCaller
from headrace.core.inbound.queue_talk import QueueTalk
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.voice import Draught, Voice
from headrace.core.records.message import FrameMessage
from headrace.core.shards.peer_codec import decode
from headrace.core.shards.queue_frames import ACKS, Answered
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.makers import NO_MAKER
from headrace.core.state.topic_queues import TopicQueue
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.storage.memory import MemoryLink
from shard_wires import End, WiredShard, WiredShards

SN: Final = b"s"
LATER_S: Final = 4.0  # than an answer waits for a home


class Ear(Voice):
    """Writes down what a consumer is told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []
        self.got: list[Draught] = []

    def joined(self, sn: bytes, code: int) -> None:
        self.told.append(("join", code))

    def left(self, sn: bytes, code: int) -> None:
        self.told.append(("leave", code))

    def acknowledged(self, sn: bytes, code: int) -> None:
        self.told.append(("ack", code))

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        self.told.append(("notify", int(available)))

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self.told.append(("pull", len(messages)))
        self.got += messages

    def fail(self, code: int, reason: str) -> None:
        self.told.append(("fail", code))


class Service:
    """A connection of a consumer in one shard. What ends it is noted as a socket's end would be."""

    def __init__(self, queues: Queues, shard: int) -> None:
        self.queues = queues
        self.shard = shard
        self.owner = queues.wired[shard].broker
        self.link = MemoryLink(self.owner.worker)
        self.link.version = 5
        self.link.ready = True
        self.ear: Ear = Ear()
        self.caller = self.owner.devices.requests.caller(self.link, self.ear)

    @property
    def told(self) -> list[tuple[str, int]]:
        return self.ear.told

    def join(self, topic: str, cluster: bytes = b"c") -> None:
        self.owner.devices.requests.join(self.caller, SN, topic.encode(), cluster)

    def leave(self, topic: str, cluster: bytes = b"c") -> None:
        self.owner.devices.requests.leave(self.caller, SN, topic.encode(), cluster)

    def pull(self, topic: str, most: int = 256, wait_ms: int = 0, cluster: bytes = b"c") -> None:
        self.owner.devices.requests.pull(self.caller, SN, topic.encode(), cluster, most, wait_ms)

    def ack(self, topic: str, ids: list[bytes], cluster: bytes = b"c") -> None:
        self.owner.devices.requests.ack(self.caller, SN, topic.encode(), cluster, ids)

    def end(self) -> None:
        self.link.closed = True
        self.owner.devices.requests.lost(self.caller)

    def take(self, topic: str, most: int = 256) -> list[Draught]:
        self.ear.got = []
        self.pull(topic, most)
        self.queues.carry()
        return self.ear.got

    def take_and_ack(self, topic: str, most: int = 256) -> list[bytes]:
        got = self.take(topic, most)
        self.ack(topic, [one.message_id for one in got])
        self.queues.carry()
        assert self.told[-1] == ("ack", 0)
        return [one.message.payload for one in got]


class Queues:
    """Three shards, their publishers and consumers."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.wired = WiredShards(3, settings, StreamSettings())
        self.services: list[Service] = []
        self.sent = 0
        for shard in self.wired.shards:
            shard.broker.devices.consuming.start()

    def carry(self) -> None:
        """All that is said is heard, also by the shard that has said it; who was closed has ended."""
        self.wired.carry()
        while any(self._says(shard) for shard in self.wired.shards):
            self.wired.carry()
        for service in [one for one in self.services if one.link.closed]:
            self.services.remove(service)
            service.end()

    def _says(self, shard: WiredShard) -> bool:
        talk = shard.neighbours.queues
        assert isinstance(talk, QueueTalk)
        return len(talk._there.said) + len(talk._back.said) > 0

    def service(self, shard: int, topic: str, cluster: bytes = b"c") -> Service:
        """A consumer that has joined."""
        found = Service(self, shard)
        self.services.append(found)
        found.join(topic, cluster)
        self.carry()
        assert found.told[0] == ("join", 0)
        return found

    def publish(self, shard: int, topic: str, count: int = 1, payload: bytes = b"") -> list[bytes]:
        """A device publishes in a shard."""
        broker, sent = self.wired[shard].broker, []
        for _ in range(count):
            self.sent += 1
            sent.append(payload or b"%d" % self.sent)
            broker.devices.requests.open(broker.fold.tenant("default"), topic.encode(), NO_MAKER)
            broker.commit.append(self._message(topic, sent[-1]))
        return sent

    def _message(self, topic: str, payload: bytes) -> FrameMessage:
        now_us = self.wired[0].clock.now_us
        return FrameMessage(now_us, self.sent, "default", b"defaultdoor", 7, topic.encode(), -1, payload)

    def queue(self, shard: int, topic: str) -> TopicQueue | None:
        return self.wired[shard].broker.fold.tenant("default").queues.get(topic.encode())

    def crash(self, shard: int) -> None:
        """A worker is killed, with its connections, and started again."""
        for service in [one for one in self.services if one.shard == shard]:
            self.services.remove(service)
        self.wired.crash(shard)
        self.wired[shard].broker.devices.consuming.start()
        self.carry()
        self.wired.join_again(shard)
        self.carry()


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_the_first_frame_begins_a_queue_at_the_home_of_its_topic_and_nowhere_else(queues: Queues) -> None:
    topic = queues.wired.topic_in(1)
    sent = queues.publish(0, topic, 2) + queues.publish(1, topic, 1) + queues.publish(2, topic, 1)
    queues.carry()
    assert queues.queue(0, topic) is queues.queue(2, topic) is None
    service = queues.service(0, topic)
    assert sorted(service.take_and_ack(topic)) == sorted(sent)


@pytest.mark.parametrize("home", [0, 1, 2])
def test_consumers_of_all_shards_share_what_is_published_in_any(queues: Queues, home: int) -> None:
    topic = queues.wired.topic_in(home)
    services = [queues.service(shard, topic) for shard in range(3)]
    writers = [shard.client("w") for shard in queues.wired.shards]
    for shard in queues.wired.shards:
        queues.publish(shard.number, topic, 3)
        writers[shard.number].publish(topic, b"mqtt", qos=1, packet_id=1)
    queues.carry()
    assert all(("notify", 1) in service.told or len(service.told) > 1 for service in services)
    found = [payload for service in services for payload in service.take_and_ack(topic, 4)]
    assert sorted(found) == sorted([b"mqtt"] * 3 + [b"%d" % number for number in range(1, 10)])
    assert [service.take(topic) for service in services] == [[], [], []]


def test_ids_senders_and_order_are_those_of_where_it_was_published(queues: Queues) -> None:
    topic = queues.wired.topic_in(2)
    service = queues.service(1, topic)
    sent = queues.publish(0, topic, 10)
    queues.carry()
    got = service.take(topic)
    assert [one.message.payload for one in got] == sent
    assert {one.message.client_id for one in got} == {"door"}
    assert len({one.message_id for one in got}) == 10
    assert not any(one.redelivered for one in got)


def test_join_is_answered_when_the_other_shards_look_for_the_topic(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    service = Service(queues, 1)
    queues.wired.held = {(0, 2)}
    service.join(topic)
    queues.carry()
    assert service.told == []
    queues.wired.held = set()
    queues.carry()
    assert service.told == [("join", 0)]
    queues.wired[2].client("w").publish(topic, b"from 2", qos=1, packet_id=1)
    queues.carry()
    assert service.take_and_ack(topic) == [b"from 2"]


def test_nothing_is_answered_before_a_hello_is(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    service = Service(queues, 1)
    service.link.ready = False
    service.join(topic, b"")  # which is refused without a question to anybody
    service.join(topic)
    queues.carry()
    assert service.told == []
    service.link.ready = True
    service.owner.devices.requests.writable(service.caller)
    queues.carry()
    assert service.told == [("join", rc.TOPIC_NAME_INVALID), ("join", 0)]


def test_a_cluster_counts_once_though_its_join_waits_for_other_shards() -> None:
    settings = BrokerSettings()
    settings.clusters_max = 4
    queues = Queues(settings)
    topic, names = queues.wired.topic_in(0), [b"1", b"2", b"3", b"4", b"5"]
    service = Service(queues, 1)
    queues.wired.held = {(0, 2)}
    for name in names:
        service.join(topic, name)
        queues.carry()
    assert service.told == []
    queues.wired.held = set()
    queues.carry()
    assert service.told == [("join", 0)] * 4 + [("join", 0x97)]


def test_a_pull_waits_at_the_home_and_leave_ends_it(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    service = queues.service(1, topic)
    service.pull(topic, 5, 60_000)
    service.pull(topic, 5, 60_000)
    queues.carry()
    assert service.told == [("join", 0)]
    queues.publish(2, topic, 1)
    queues.carry()
    assert service.told[1:] == [("pull", 1)]
    service.leave(topic)
    queues.carry()
    assert sorted(service.told[2:]) == [("leave", 0), ("pull", 0)]
    service.leave(topic)
    queues.carry()
    assert service.told[-1] == ("leave", 0x11)
    with pytest.raises(ProtocolError):
        service.pull(topic)


def test_a_pull_is_answered_with_nothing_when_its_time_is_over(queues: Queues) -> None:
    topic = queues.wired.topic_in(2)
    service = queues.service(0, topic)
    service.pull(topic, 5, 1000)
    queues.carry()
    assert service.told[1:] == []
    queues.wired.advance(2)
    queues.carry()
    assert service.told[1:] == [("pull", 0)]


def test_answers_of_different_homes_come_in_the_order_of_the_requests(queues: Queues) -> None:
    near, far = queues.wired.topic_in(0), queues.wired.topic_in(1)
    service = queues.service(0, near)
    service.join(far)
    queues.carry()
    queues.publish(0, near, 2)
    queues.carry()
    service.pull(far, 1, 1000)
    service.pull(near, 1, 0)
    service.pull(near, 1, 0)
    queues.carry()
    assert ("pull", 1) not in service.told
    queues.publish(2, far, 1)
    queues.carry()
    topics = [one.message.topic.decode() for one in service.ear.got]
    assert topics == [far, near, near]
    ids = [one.message_id for one in service.ear.got]
    service.ack(near, [b"?" * 16])
    service.ack(far, ids[:1])
    service.ack(near, ids[1:])
    service.ack("#", ids[1:])
    queues.carry()
    assert service.told[-4:] == [("ack", 0x92), ("ack", 0), ("ack", 0), ("ack", 0x90)]


def test_a_home_that_is_away_refuses_for_now_and_holds_up_no_other_for_long(queues: Queues) -> None:
    near, far = queues.wired.topic_in(0), queues.wired.topic_in(1)
    queues.wired.isolate(1)
    service = Service(queues, 0)
    queues.services.append(service)
    service.join(far)
    service.join(near)
    service.ack(far, [b"?" * 16])
    queues.carry()
    assert service.told == []
    queues.wired.advance(LATER_S)
    queues.carry()
    assert sorted(service.told) == [("ack", 0x88), ("join", 0), ("join", 0x88)]
    assert [told for told in service.told if told[0] == "join"] == [("join", 0x88), ("join", 0)]
    queues.wired.join_again(1)
    service.join(far)
    queues.carry()
    assert service.told[-1] == ("join", 0)


@pytest.mark.parametrize("ends", ["wire", "connection"])
def test_what_a_consumer_holds_goes_to_another_when_its_wire_or_its_connection_ends(
    queues: Queues, ends: str
) -> None:
    topic = queues.wired.topic_in(0)
    one, two = queues.service(1, topic), queues.service(2, topic)
    queues.publish(0, topic, 4)
    queues.carry()
    assert len(one.take(topic)) == 4
    if ends == "wire":
        queues.wired.disconnect(1, 0)
    else:
        one.end()
    queues.carry()
    if ends == "wire":
        assert one.told[-1] == ("fail", 0x88)
        assert one.link.closed
    got = two.take(topic)
    assert [one.redelivered for one in got] == [True] * 4
    two.ack(topic, [one.message_id for one in got])
    queues.carry()
    assert two.told[-1] == ("ack", 0)


def test_a_home_that_was_killed_has_all_that_was_not_acknowledged_and_nothing_that_was(
    queues: Queues,
) -> None:
    topic = queues.wired.topic_in(0)
    service = queues.service(1, topic)
    sent = queues.publish(2, topic, 20)
    queues.carry()
    done = service.take_and_ack(topic, 5)
    held = [one.message.payload for one in service.take(topic, 5)]
    queues.crash(0)
    assert service.link.closed
    sent += queues.publish(2, topic, 5)
    again = queues.service(1, topic)
    got = again.take(topic)
    assert [one.message.payload for one in got] == [payload for payload in sent if payload not in done]
    assert held == [one.message.payload for one in got[:5] if one.redelivered]


def test_no_more_is_on_its_way_to_a_shard_than_it_takes(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    services = [queues.service(1, topic) for _ in range(8)]
    for _ in range(16):
        queues.publish(0, topic, 1, bytes(1 << 20))
    queues.wired[0].sync()
    for service in services:
        service.pull(topic, 2)
    near, far = queues.wired.wires[1, 0]
    while near.said:  # the requests come, the answers wait
        queues.wired[0].neighbours.heard(far, decode(near.said.popleft()))
        queues.wired[0].sync()
    assert sum(map(len, far.said)) < 7 << 20
    queues.carry()
    assert sum(len(service.ear.got) for service in services) == 8
    assert all(service.told[-1] == ("pull", 1) for service in services)


def test_a_conversation_of_a_shard_with_itself_that_goes_wrong_begins_anew(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    near, far = queues.service(0, topic), queues.service(1, topic)
    queues.publish(0, topic, 2)
    queues.carry()
    assert len(near.take(topic)) == 2
    talk = queues.wired[0].neighbours.queues
    assert isinstance(talk, QueueTalk)
    near.pull(topic, 5, 60_000)
    talk._back.say(Answered(1, ACKS, 0))  # of an ACK that was never sent
    queues.carry()
    assert near.told[-1] == ("fail", 0x88)
    assert near.link.closed
    assert len(far.take_and_ack(topic)) == 2
    again = queues.service(0, topic)
    queues.publish(2, topic, 1)
    queues.carry()
    assert len(again.take_and_ack(topic)) == 1


def test_requests_that_wait_and_consumers_keep_a_long_topic_once(queues: Queues) -> None:
    """PULLs are charged to nobody, since they may wait for a minute: a thousand of them on topics of their own, of 60
    KiB, were 60 MiB of the broker's memory for one connection."""
    topic = queues.wired.topic_in(0, "x" * 60_000)
    service = queues.service(1, topic)
    for number in range(50):
        service.join(topic, b"%d" % number)
        service.pull(topic, 1, 60_000, b"%d" % number)
        with pytest.raises(ProtocolError):
            service.pull(f"{number}{topic}", 1, 60_000)
    queues.carry()
    service.pull(topic, 1, 60_000)
    talk = queues.wired[1].neighbours.queues
    assert isinstance(talk, QueueTalk)
    caller = service.caller
    assert isinstance(caller, FarCaller)
    assert len({id(topic) for _, topic, _ in caller.stays}) == 1
    assert len(caller.pulls.waiting) == 50
    assert len({id(errand.topic) for errand in caller.pulls.waiting}) == 1
    service.end()
    assert not talk.far._topics


class Unlooked(deque[Errand]):
    """A line that is not looked through."""

    def __iter__(self) -> Iterator[Errand]:
        raise AssertionError


def test_leave_looks_through_no_line_of_pulls_and_ends_those_of_its_consumer_alone(queues: Queues) -> None:
    topic = queues.wired.topic_in(0)
    service = queues.service(1, topic)
    service.join(topic, b"d")
    queues.carry()
    for name in (b"c", b"d", b"c"):
        service.pull(topic, 1, 1000, name)
    assert isinstance(service.caller, FarCaller)
    pulls = service.caller.pulls
    pulls.waiting = Unlooked(pulls.waiting)
    service.leave(topic)
    service.leave(topic)
    service.join(topic)
    service.join(topic)
    service.pull(topic, 1, 1000)
    queues.carry()
    assert sorted(service.told[2:4]) == [("leave", 0), ("pull", 0)]
    assert service.told[4:] == [("leave", 0x11), ("join", 0), ("join", 0)]
    queues.publish(2, topic, 3)
    queues.carry()
    assert [count for what, count in service.told[7:] if what == "pull"] == [1, 0, 1]
    assert not service.link.closed


def test_a_pull_that_waits_for_a_consumer_who_may_not_join_ends_the_connection() -> None:
    settings = BrokerSettings()
    settings.clusters_max = 1
    queues = Queues(settings)
    topic = queues.wired.topic_in(0)
    service = queues.service(1, topic)
    service.pull(topic, 1, 60_000)
    service.join(topic, b"d")
    service.pull(topic, 1, 60_000, b"d")
    queues.carry()
    assert service.told[1:] == [("join", 0x97)]
    assert service.link.closed


def test_long_topics_that_devices_publish_to_are_not_remembered(queues: Queues) -> None:
    consuming = queues.wired[0].broker.devices.consuming
    for number in range(100):
        assert consuming.may_have(b"x" * 1000 + b"%d" % number)
        assert consuming.may_have(b"%d" % number)
    assert len(consuming._has_queue) == 100


@pytest.mark.interpreted  # a compiled journal keeps its methods
def test_a_stream_that_cannot_be_read_on_keeps_no_shard_from_its_own_queues(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = queues.wired.topic_in(0), queues.wired.topic_in(1)
    queues.wired.disconnect(1, 0)
    sent = queues.publish(0, far, 3)
    queues.carry()
    service = Service(queues, 0)
    with monkeypatch.context() as patch:
        patch.setattr(queues.wired[0].journal, "fetch", _no_memory)
        queues.wired.connect(1, 0)
        queues.wired.carry()
        service.join(near)
        for _ in range(5):
            queues.wired.carry()
        assert service.told == [("join", 0)]
    queues.wired.advance(1)
    assert queues.service(2, far).take_and_ack(far) == sent


def _no_memory(offset: int) -> None:
    raise MemoryError


class Hoarse(Ear):
    """An ear for which there is no memory in the end."""

    def fail(self, code: int, reason: str) -> None:
        raise MemoryError


@pytest.mark.parametrize("shard", [0, 1])
def test_a_connection_that_cannot_be_told_why_it_ends_keeps_no_other_one_from_its_queue(
    queues: Queues, shard: int
) -> None:
    """A consumer that is not told, and whose home has forgotten it, would wait for ever; so would all that come later,
    if this shard never spoke to itself again."""
    topic = queues.wired.topic_in(0)
    one, two = queues.service(shard, topic), queues.service(shard, topic)
    one.caller.voice = Hoarse()
    if shard == 0:
        talk = queues.wired[0].neighbours.queues
        assert isinstance(talk, QueueTalk)
        talk._back.say(Answered(1, ACKS, 0))  # of an ACK that was never sent
    else:
        queues.wired.disconnect(1, 0)
        queues.wired.connect(1, 0)
    queues.carry()
    assert two.told[-1] == ("fail", 0x88)
    assert one.link.closed
    assert two.link.closed
    again = queues.service(shard, topic)
    queues.publish(2, topic, 1)
    queues.carry()
    assert len(again.take_and_ack(topic)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_answers_come_in_order_whichever_homes_are_slow(seed: int) -> None:
    """One connection asks without waiting; wires carry at random. An answer names nothing: its place says whose it is."""
    rng, queues = random.Random(seed), Queues()
    topics = [queues.wired.topic_in(shard) for shard in range(3)]
    service = Service(queues, 0)
    joins: list[int] = []
    acks: list[int] = []
    pulls: list[str] = []
    for topic in topics:
        service.join(topic)
        joins.append(0)
        queues.publish(rng.randrange(3), topic, 40)
    for _ in range(60):
        topic, step = rng.choice(topics), rng.randrange(5)
        if step == 0:
            wrong = rng.random() < 0.3
            service.join("a/#" if wrong else topic)
            joins.append(0x90 if wrong else 0)
        elif step == 1:
            service.ack(topic, [bytes(16)])
            acks.append(0x92)
        elif step == 2:
            service.pull(topic, 1, 60_000)
            pulls.append(topic)
        else:
            pairs = list(queues.wired.wires)
            queues.wired.held = set(rng.sample(pairs, rng.randrange(len(pairs))))
            queues.wired.sync()
            queues.wired.step()
    queues.wired.held = set()
    queues.carry()
    assert [code for what, code in service.told if what == "join"] == joins
    assert [code for what, code in service.told if what == "ack"] == acks
    assert [one.message.topic.decode() for one in service.ear.got] == pulls


class Cluster:
    """What the consumers of one cluster of a topic have been given and told, whenever it came."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.done: set[bytes] = set()
        self.fresh: set[bytes] = set()

    def given(self, message: Draught) -> None:
        payload = message.message.payload
        assert payload not in self.done
        assert message.redelivered or payload not in self.fresh
        if not message.redelivered:
            self.fresh.add(payload)


class Reader(Ear):
    """Asks for the next messages when it has some, and acknowledges in its own time."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.waits: deque[list[Draught]] = deque()  # ACKs without an answer

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        super().pulled(sn, messages)
        for message in messages:
            self.cluster.given(message)

    def acknowledged(self, sn: bytes, code: int) -> None:
        messages = self.waits.popleft()
        assert code == 0
        self.cluster.done.update(message.message.payload for message in messages)


class Asynchronous(Queues):
    """Consumers, wires and owners that each take their time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.topics = [self.wired.topic_in(shard) for shard in range(3)]
        self.clusters = {topic: Cluster() for topic in self.topics}
        self.reads: dict[Service, str] = {}

    def some(self) -> None:
        """Something of what is under way happens, on some of the wires."""
        pairs = list(self.wired.wires)
        self.wired.held = set(self.rng.sample(pairs, self.rng.randrange(len(pairs) + 1)))
        for _ in range(self.rng.randint(1, 3)):
            self.wired.step()
        self.wired.held = set()
        for service in [one for one in self.services if one.link.closed]:
            self.services.remove(service)
            service.end()

    def open_one(self) -> None:
        topic, service = self.rng.choice(self.topics), Service(self, self.rng.randrange(3))
        service.ear = Reader(self.clusters[topic])
        service.caller.voice = service.ear
        self.services.append(service)
        self.reads[service] = topic
        service.join(topic)
        for _ in range(self.rng.randint(1, 4)):
            service.pull(topic, self.rng.randint(1, 5), 60_000)

    def acknowledge(self) -> None:
        for service in self.services:
            ear, topic = service.ear, self.reads[service]
            assert isinstance(ear, Reader)
            if ear.got and self.rng.random() < 0.7:
                ear.waits.append(ear.got)
                service.ack(topic, [one.message_id for one in ear.got])
                ear.got = []
                service.pull(topic, self.rng.randint(1, 5), 60_000)

    def unanswered(self, topic: str) -> set[bytes]:
        """What was acknowledged on connections that ended before the answer came: it may have been done with."""
        ears = [service.ear for service, read in self.reads.items() if read == topic]
        waits = [messages for ear in ears if isinstance(ear, Reader) for messages in ear.waits]
        return {message.message.payload for messages in waits for message in messages}

    def break_one(self) -> None:
        follower, source = self.rng.choice(list(self.wired.wires))
        self.wired.disconnect(follower, source)
        self.wired.connect(follower, source)


@pytest.mark.parametrize("seed", range(20))
def test_consumers_wires_and_owners_that_take_their_time_lose_nothing(seed: int) -> None:
    queues = Asynchronous(seed)
    for _ in range(120):
        step = queues.rng.randrange(12)
        if step < 3:
            topic, shard = queues.rng.choice(queues.topics), queues.rng.randrange(3)
            queues.clusters[topic].sent |= set(queues.publish(shard, topic, queues.rng.randint(1, 4)))
            queues.wired[shard].sync()
        elif step == 3 and len(queues.services) < 8:
            queues.open_one()
        elif step < 6:
            queues.acknowledge()
        elif step == 6:
            queues.break_one()
        elif step == 7 and queues.rng.random() < 0.4:
            queues.crash(queues.rng.randrange(3))
        queues.some()
    for service in list(queues.services):
        service.link.closed = True
    queues.carry()
    for topic, cluster in queues.clusters.items():
        service = queues.service(1, topic)
        cluster.done |= set(service.take_and_ack(topic))
        assert cluster.done <= cluster.sent
        assert cluster.sent - cluster.done <= queues.unanswered(topic)


class Forgetful(Reader):
    """A reader that takes an ACK that failed for what it is: it is given the messages again."""

    def acknowledged(self, sn: bytes, code: int) -> None:
        messages = self.waits.popleft()
        if code == 0:
            self.cluster.done.update(message.message.payload for message in messages)


class Scarce(Asynchronous):
    """Owners that have no memory for a moment, now and then while `scarce`. What that raises ends the wire on which the
    frame has come, or the connection whose request it was."""

    def __init__(self, seed: int) -> None:
        self.scarce = False
        super().__init__(seed)
        for shard in self.wired.shards:
            self._impoverish(shard)

    def _impoverish(self, shard: WiredShard) -> None:
        broker = shard.broker
        for owner, names in (
            (broker.commit, ("append", "defer", "charge")),
            (broker.clusters, ("_give", "_notify")),
            (broker.timers, ("schedule",)),
        ):
            for name in names:
                setattr(owner, name, self._sometimes(getattr(owner, name)))

    def _sometimes(self, call: Callable[..., object]) -> Callable[..., object]:
        def made(*arguments: object) -> object:
            if self.scarce and self.rng.random() < 0.03:
                raise MemoryError
            return call(*arguments)

        return made

    @contextmanager
    def plenty(self) -> Iterator[None]:
        before, self.scarce = self.scarce, False
        yield
        self.scarce = before

    def some(self) -> None:
        """One wire after another carries what was said; the next one follows on one that has ended."""
        for pair, (near, far) in list(self.wired.wires.items()):
            for end, other in ((near, far), (far, near)):
                for _ in range(self.rng.randrange(len(end.said) + 1)):
                    if self.wired.wires.get(pair) == (near, far):
                        self._hear(pair, other, end.said.popleft())
        self.wired.sync()
        for service in [one for one in self.services if one.link.closed]:
            self.services.remove(service)
            service.end()

    def _hear(self, pair: tuple[int, int], end: End, frame: bytes) -> None:
        try:
            end.shard.neighbours.heard(end, decode(frame))
        except MemoryError:
            end.is_cut = True
        if any(one.is_cut for one in self.wired.wires[pair]):
            with self.plenty():
                self.wired.disconnect(*pair)
                self.wired.connect(*pair)

    def request(self) -> None:
        """One of the clients asks for something."""
        if len(self.services) < 6 and self.rng.random() < 0.3:
            topic, service = self.rng.choice(self.topics), Service(self, self.rng.randrange(3))
            service.ear = service.caller.voice = Forgetful(self.clusters[topic])
            self.services.append(service)
            self.reads[service] = topic
        elif self.services:
            service = self.rng.choice(self.services)
        else:
            return
        try:
            self._ask(service, self.reads[service])
        except MemoryError:
            service.link.closed = True

    def _ask(self, service: Service, topic: str) -> None:
        ear = service.ear
        assert isinstance(ear, Forgetful)
        if not service.told:
            service.join(topic)
        elif ear.got:
            held, ear.got = ear.got, []
            ear.waits.append(held)
            service.ack(topic, [one.message_id for one in held])
        service.pull(topic, self.rng.randint(1, 5), 60_000)


@pytest.mark.interpreted  # compiled classes keep their methods
@pytest.mark.parametrize("seed", range(20))
def test_owners_without_memory_for_a_moment_lose_nothing_and_keep_nothing_for_ever(seed: int) -> None:
    queues = Scarce(seed)
    for _ in range(100):
        with queues.plenty():
            topic, shard = queues.rng.choice(queues.topics), queues.rng.randrange(3)
            if queues.rng.random() < 0.4:
                queues.clusters[topic].sent |= set(queues.publish(shard, topic, queues.rng.randint(1, 4)))
                queues.wired[shard].sync()
        queues.scarce = True
        for _ in range(3):
            queues.request()
        queues.some()
    queues.scarce = False
    for service in queues.services:
        service.link.closed = True
    queues.carry()
    queues.wired.advance(60)
    for topic, cluster in queues.clusters.items():
        service = queues.service(1, topic)
        cluster.done |= set(service.take_and_ack(topic))
        assert cluster.sent - cluster.done <= queues.unanswered(topic)
        service.end()
    queues.carry()
    for wired in queues.wired.shards:
        broker = wired.broker
        assert broker.commit.deferred_bytes == 0
        assert not broker.devices.consuming._making
        assert not any(live.consumers or live.idle for live in broker.clusters.readers.used.values())


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_each_message_is_acknowledged_and_then_never_comes_again(seed: int) -> None:
    rng, queues = random.Random(seed), Queues()
    topics = [queues.wired.topic_in(shard) for shard in range(3)]
    sent: dict[str, set[bytes]] = {topic: set() for topic in topics}
    lost: dict[str, set[bytes]] = {
        topic: set() for topic in topics
    }  # never durable, as far as anybody was told
    done: dict[str, set[bytes]] = {topic: set() for topic in topics}
    fresh: set[bytes] = set()

    def read(service: Service, topic: str, most: int) -> None:
        """Take some, and acknowledge most of them."""
        got = service.take(topic, most)
        assert not done[topic] & {one.message.payload for one in got}
        new = {one.message.payload for one in got if not one.redelivered}
        assert not fresh & new  # what somebody may have had is flagged
        fresh.update(new)
        chosen = [one for one in got if rng.random() < 0.8]
        if chosen and not service.link.closed:
            service.ack(topic, [one.message_id for one in chosen])
            queues.carry()
            if service.told[-1] == ("ack", 0):
                done[topic] |= {one.message.payload for one in chosen}

    for _ in range(60):
        topic, shard, step = rng.choice(topics), rng.randrange(3), rng.randrange(10)
        if step < 4:
            payloads = set(queues.publish(shard, topic, rng.randint(1, 5)))
            if rng.random() < 0.2:
                lost[topic] |= payloads
                queues.crash(shard)
            else:
                sent[topic] |= payloads
                queues.wired[shard].sync()
        elif step < 7:
            read(queues.service(shard, topic), topic, rng.randint(1, 8))
        elif step == 7:
            if rng.random() < 0.5:
                queues.carry()
            queues.crash(shard)
        elif step == 8:
            other = (shard + 1) % 3
            queues.wired.disconnect(shard, other)
            queues.carry()
            queues.wired.connect(shard, other)
            queues.carry()
        elif queues.services:
            queues.services[0].link.closed = True
            queues.carry()
    queues.carry()
    for topic in topics:
        service = queues.service(0, topic)
        queues.wired.advance(60)  # what is held goes back
        queues.carry()
        done[topic] |= set(service.take_and_ack(topic))
        assert sent[topic] <= done[topic] <= sent[topic] | lost[topic]
        queue = queues.queue(topics.index(topic), topic)
        assert queue is not None
        assert queue.next_serial - 1 == len(done[topic])  # each came once
