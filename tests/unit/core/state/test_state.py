"""One history: the state in memory equals the fold over the journal, with and without a snapshot (decisions: replay)."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness import Client, Harness, recover, state
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.state import Fold
from headrace.mqtt import codec

SUBSCRIBERS = ["s1", "s2"]
FILTERS = ["a/+", "a/1", "#", "b/2", "$share/g/a/+"]
TOPICS = ["a/1", "a/2", "b/2"]

steps = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from(SUBSCRIBERS), st.sampled_from([4, 5]), st.integers(1, 4)),
    st.tuples(st.just("fresh"), st.sampled_from(SUBSCRIBERS)),
    st.tuples(st.just("lose"), st.sampled_from(SUBSCRIBERS)),
    st.tuples(st.just("disconnect"), st.sampled_from(SUBSCRIBERS)),
    st.tuples(
        st.just("subscribe"), st.sampled_from(SUBSCRIBERS), st.sampled_from(FILTERS), st.integers(0, 2)
    ),
    st.tuples(st.just("unsubscribe"), st.sampled_from(SUBSCRIBERS), st.sampled_from(FILTERS)),
    st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(0, 2), st.booleans(), st.booleans()),
    st.tuples(st.just("expiring"), st.sampled_from(TOPICS)),
    st.tuples(st.just("ack"), st.sampled_from(SUBSCRIBERS), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.integers(1, 20)),
    st.tuples(st.just("sync")),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("crash")),
)


class History:
    """Runs steps against a broker; `check` compares its state with what the journal says."""

    def __init__(self) -> None:
        limits = BrokerSettings()
        limits.backlog_messages_max = 4
        self.harness = Harness(limits)
        self.clients: dict[str, Client] = {}
        self.unacked: dict[str, list[tuple[int, int]]] = {name: [] for name in SUBSCRIBERS}
        self.publisher = self.harness.client("p")
        self.sent = 0

    def run(self, step: tuple[object, ...]) -> None:
        getattr(self, str(step[0]))(*step[1:])

    def connect(self, name: str, version: int, window: int) -> None:
        self.unacked[name] = []
        self.clients[name] = self.harness.client(name, version=version, receive_maximum=window)

    def fresh(self, name: str) -> None:
        self.harness.client(name, clean=True, version=4).disconnect()
        self.clients.pop(name, None)

    def lose(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None and not client.link.closed:
            client.lose()

    def disconnect(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.disconnect()

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        if name in self.clients:
            self.clients[name].subscribe(topic_filter, qos)

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        if name in self.clients:
            self.clients[name].feed(codec.encode_unsubscribe(self.clients[name].version, 9, [topic_filter]))

    def publish(self, topic: str, qos: int, retain: bool, sync: bool) -> None:
        self.sent += 1
        self.publisher.publish(topic, b"%d" % self.sent, qos, retain, sync=sync)

    def expiring(self, topic: str) -> None:
        publisher = self.harness.client("p5", version=5, clean=True)
        publisher.publish(topic, b"brief", 1, expiry_s=5)

    def ack(self, name: str, which: int) -> None:
        client = self.clients.get(name)
        if client is None:
            return
        self.unacked[name] += [(packet_id, qos) for packet_id, _, _, qos in client.publishes() if qos]
        if self.unacked[name]:
            packet_id, qos = self.unacked[name].pop(which % len(self.unacked[name]))
            if qos == 1:
                client.ack(packet_id, sync=False)
            else:
                client.feed(codec.encode_pubrec(client.version, packet_id))
                if which % 2:
                    client.feed(codec.encode_pubcomp(client.version, packet_id), sync=False)

    def advance(self, seconds: int) -> None:
        self.harness.advance(seconds)

    def sync(self) -> None:
        self.harness.sync()

    def snapshot(self) -> None:
        self.harness.take_snapshot()

    def crash(self) -> None:
        self.harness.crash()
        self.clients.clear()
        self.publisher = self.harness.client("p")

    def check(self) -> None:
        self.harness.sync()
        live = self._disconnected_state()
        for snapshot in (None, self.harness.snapshot):
            fold = Fold(self.harness.journal)
            recover(fold, self.harness.journal.bodies, snapshot)
            assert state(fold) == live

    def _disconnected_state(self) -> list[bytes]:
        """After every connection is gone nothing of the moment is left: the state is what the journal says."""
        for name in [*SUBSCRIBERS]:
            self.lose(name)
        self.publisher.lose()
        return state(self.harness.broker.fold)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=40))
@example(
    [
        ("connect", "s1", 4, 1),
        ("subscribe", "s1", "a/+", 1),
        ("publish", "a/1", 1, False, False),
        ("lose", "s1"),
    ]
).via("a queue that begins behind the record of its session's close")
def test_the_state_is_the_fold_of_the_journal(history: list[tuple[object, ...]]) -> None:
    run = History()
    for step in history:
        run.run(step)
    run.check()
