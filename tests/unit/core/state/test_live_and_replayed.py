"""What is held live is what a replay gives, with and without a snapshot that was taken while all this went on.

The histories of `test_state` with more that may happen: groups that end and are made anew, wills and sessions that wait
for their time, rights that are withdrawn and given back, pages of long backlogs, limits of a tenant, queues for which
there is no memory for a moment, and a snapshot in the smallest slices, between any two of which something happens.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness import Client, Harness, held, recover
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.backlog import Backlog
from headrace.core.state.snapshots import SnapshotPass
from headrace.core.state.state import Fold
from headrace.mqtt import codec
from headrace.mqtt.packets import Will

NAMES = ["s1", "s2", "s3"]
FILTERS = ["a/+", "#", "b/2", "$share/g/a/+", "$share/h/#"]
TOPICS = ["a/1", "a/2", "b/2"]

name = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("connect"), name, st.integers(1, 4), st.sampled_from([0, 8, 0xFFFFFFFF])),
    st.tuples(st.just("with_will"), name, st.integers(0, 12), st.sampled_from([0, 5, 30])),
    st.tuples(st.just("fresh"), name),
    st.tuples(st.just("lose"), name),
    st.tuples(st.just("lose_unsynced"), name),
    st.tuples(st.just("disconnect"), name),
    st.tuples(st.just("put_out"), name, st.sampled_from([0x8B, 0x9C])),
    st.tuples(st.just("subscribe"), name, st.sampled_from(FILTERS), st.integers(0, 2)),
    st.tuples(st.just("unsubscribe"), name, st.sampled_from(FILTERS)),
    st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(0, 2), st.booleans(), st.booleans()),
    st.tuples(st.just("publish_some"), st.sampled_from(TOPICS), st.integers(2, 12)),
    st.tuples(st.just("ack"), name, st.integers(0, 5)),
    st.tuples(st.just("withdraw"), name, st.sampled_from(TOPICS)),
    st.tuples(st.just("give_back"), name),
    st.tuples(st.just("short"), name, st.integers(1, 3)),
    st.tuples(st.just("short_of_groups"), st.integers(1, 3)),
    st.tuples(st.just("advance"), st.integers(1, 20)),
    st.tuples(st.just("sync")),
    st.tuples(st.just("begin_snapshot")),
    st.tuples(st.just("slice"), st.integers(1, 5)),
    st.tuples(st.just("crash")),
)


class Rights(Access):
    """Everybody may do everything, but for what was withdrawn: a topic that a client may not receive any more."""

    def __init__(self) -> None:
        super().__init__()
        self.withdrawn: set[tuple[str, bytes]] = set()

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return (link.client_id, topic) not in self.withdrawn

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        shared = topic_filter.startswith("$share")
        return not (shared and any(client_id == link.client_id for client_id, _ in self.withdrawn))


class Short(Backlog):
    """A queue that there is no memory for, so many times; each time it fails half way."""

    left = 0

    def push(self, ref: int, size: int) -> None:
        if Short.left > 0:
            Short.left -= 1
            (self.refs if self.behind is None else self.behind.refs).append(ref)
            raise MemoryError("push")
        super().push(ref, size)


class History:
    """Runs steps against a broker; `check` compares its state with what the journal says."""

    def __init__(self) -> None:
        limits = BrokerSettings()
        limits.backlog_messages_max = 9
        limits.backlog_page = 2
        limits.tenant_backlog_bytes_max = 120
        limits.deliveries_at_once = 2
        self.rights = Rights()
        self.harness = Harness(limits)
        self.clients: dict[str, Client] = {}
        self.unacked: dict[str, list[tuple[int, int]]] = {}
        self.walk: SnapshotPass | None = None
        self.slices: Iterator[list[bytes]] = iter([])
        self.entries: list[bytes] = []
        self.sent = 0
        Short.left = 0
        self._start()

    def _start(self) -> None:
        self.clients.clear()
        self.walk = None
        self.harness.worker.guard(self.rights)
        self.publisher = self.harness.client("p", clean=True)

    def run(self, step: tuple[object, ...]) -> None:
        getattr(self, str(step[0]))(*step[1:])

    def connect(self, name: str, window: int, expiry_s: int, will: Will | None = None) -> None:
        self.unacked[name] = []
        clean = expiry_s == 0
        self.clients[name] = self.harness.client(
            name, version=5, receive_maximum=window, expiry_s=expiry_s, clean=clean, will=will
        )

    def with_will(self, name: str, delay_s: int, expiry_s: int) -> None:
        self.connect(name, 3, expiry_s, Will("a/1", b"will of " + name.encode(), 1, False, b"", delay_s))

    def fresh(self, name: str) -> None:
        self.clients.pop(name, None)
        self.harness.client(name, clean=True, version=4).disconnect()

    def lose(self, name: str) -> None:
        client = self._taken(name)
        if client is not None:
            client.lose()

    def lose_unsynced(self, name: str) -> None:
        client = self._taken(name)
        if client is not None:
            client.lose_unsynced()

    def disconnect(self, name: str) -> None:
        client = self._taken(name)
        if client is not None:
            client.disconnect()

    def put_out(self, name: str, code: int) -> None:
        client = self._taken(name)
        if client is not None:
            self.harness.broker.put_out(client.link, code, "asked away")

    def _taken(self, name: str) -> Client | None:
        client = self.clients.pop(name, None)
        return None if client is None or client.link.closed else client

    def _client(self, name: str) -> Client | None:
        client = self.clients.get(name)
        return None if client is None or client.link.closed else client

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        client = self._client(name)
        if client is not None:
            client.subscribe(topic_filter, qos)

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self._client(name)
        if client is not None:
            client.feed(codec.encode_unsubscribe(5, 9, [topic_filter]), sync=False)

    def publish(self, topic: str, qos: int, retain: bool, sync: bool) -> None:
        self.sent += 1
        self.publisher.publish(topic, b"%d" % self.sent, qos, retain, sync=sync)

    def publish_some(self, topic: str, count: int) -> None:
        for _ in range(count):
            self.publish(topic, 1, False, False)

    def ack(self, name: str, which: int) -> None:
        client = self._client(name)
        if client is None:
            return
        unacked = self.unacked[name]
        unacked += [(packet_id, qos) for packet_id, _, _, qos in client.publishes() if qos]
        if unacked:
            packet_id, qos = unacked.pop(which % len(unacked))
            if qos == 1:
                client.ack(packet_id, sync=False)
            else:
                client.feed(codec.encode_pubrec(5, packet_id))
                if which % 2:
                    client.feed(codec.encode_pubcomp(5, packet_id), sync=False)

    def withdraw(self, name: str, topic: str) -> None:
        self.rights.withdrawn.add((name, topic.encode()))
        self.rights.generation += 1

    def give_back(self, name: str) -> None:
        self.rights.withdrawn = {found for found in self.rights.withdrawn if found[0] != name}
        self.rights.generation += 1

    def short(self, name: str, times: int) -> None:
        session = self.harness.broker.fold.tenant("default").sessions.get(name)
        if session is not None and session.queue is not None:
            session.queue.backlog.__class__ = Short
            Short.left = times

    def short_of_groups(self, times: int) -> None:
        for group in self.harness.broker.fold.tenant("default").groups.values():
            group.backlog.__class__ = Short
            Short.left = times

    def advance(self, seconds: int) -> None:
        self.harness.advance(seconds)

    def sync(self) -> None:
        self.harness.sync()

    def begin_snapshot(self) -> None:
        self.walk = SnapshotPass(self.harness.broker.fold, self.harness.broker.commit)
        self.slices, self.entries = self.walk.slices(1), []

    def slice(self, count: int) -> None:
        for _ in range(count):
            if self.walk is None:
                return
            try:
                self.entries += next(self.slices)
            except StopIteration:  # it counts once all that is in it is durable
                self.harness.sync()
                self.harness.snapshot = (self.walk.position, self.entries)
                self.walk = None
            except MemoryError:
                self.walk = None

    def crash(self) -> None:
        self.harness.crash()
        self._start()

    def check(self) -> None:
        Short.left = 0
        for name in NAMES:
            self.lose(name)
        self.publisher.lose()
        self.harness.sync()
        for session in self.harness.broker.fold.by_incarnation.values():
            session.settle()
        for group in self.harness.broker.fold.groups.all():
            group.carrier.settle()
        live = held(self.harness.broker.fold)
        for snapshot in (None, self.harness.snapshot):
            fold = Fold(self.harness.journal)
            recover(fold, self.harness.journal.bodies, snapshot)
            assert held(fold) == live


@pytest.mark.interpreted
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=50))
@example(
    [
        ("connect", "s2", 1, 0xFFFFFFFF),
        ("subscribe", "s2", "$share/g/a/+", 0),
        ("connect", "s1", 1, 0),
        ("short_of_groups", 1),
        ("publish_some", "a/1", 2),
        ("connect", "s1", 1, 0),
    ]
).via("a message that a group could not be given was numbered twice")
def test_what_is_held_live_is_what_a_replay_gives(history: list[tuple[object, ...]]) -> None:
    run = History()
    for step in history:
        run.run(step)
    run.check()
