"""Three Kafka nodes beneath headrace, replication 3, of which one is killed under load, and two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Condition, Event, Thread

import pytest

from broker_process import BrokerProcess, free_port, make_broker, wait_until
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from kafka_server import WITHIN_S, KafkaServers, kafka_servers

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.time_limit(600)]
WINDOW = 50  # unacknowledged messages of a publisher, fewer than Receive Maximum
PACE_S = 0.04  # the session that is away has room for 10 000
BACK_S = 90.0  # for what two cores do beside three Javas
SHARDS = 2
Nodes = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def kafkas() -> Iterator[KafkaServers]:
    with kafka_servers() as servers:
        yield servers


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Makes nodes of a cluster: `nodes(url, "n0")`."""
    made: list[BrokerProcess] = []

    def make(url: str, node: str, *extra: str) -> BrokerProcess:
        made.append(make_broker(tmp_path / node, None, ["--cluster", url, "--node", node, *extra]))
        return made[-1]

    yield make
    for broker in made:
        broker.end()
        assert "Traceback" not in broker.stderr, broker.stderr


class Load:
    """A publisher on a thread of its own: one connection, numbered messages at a slow pace, few of them unanswered."""

    def __init__(self, broker: BrokerProcess, name: str, qos: int) -> None:
        self.topic = f"load/{name}"
        self.sent = 0
        self.done = 0
        self.longest_s = 0.0
        self.failure = ""
        self._qos = qos
        self._client = RawClient(broker.address, name)
        self._client.connect()
        self._is_over = Event()
        self._is_answered = Condition()
        self._threads = [Thread(target=self._guard, args=(one,)) for one in (self._publish, self._hear)]
        for thread in self._threads:
            thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ClosedError, OSError, AssertionError) as error:
            with self._is_answered:
                self.failure = self.failure or f"{work.__name__}: {error!r}"
                self._is_answered.notify_all()

    def _publish(self) -> None:
        while not self._is_over.wait(PACE_S) and not self.failure:
            with self._is_answered:
                self._is_answered.wait_for(lambda: self.sent - self.done < WINDOW or self.failure, 1.0)
                if self.sent - self.done >= WINDOW:
                    continue
                self.sent += 1
            self._client.publish(self.topic, b"%d" % (self.sent - 1), self._qos)

    def _hear(self) -> None:
        answered = time.monotonic()
        while not (self._is_over.is_set() and self.done == self.sent) and not self.failure:
            try:
                found = self._client.read(1.0)
            except SilenceError:
                continue
            if found.kind == PUBREC:
                self._client.ack(PUBREL, found.packet_id)
                continue
            assert found.kind == (PUBACK if self._qos == 1 else PUBCOMP), found
            now = time.monotonic()
            self.longest_s, answered = max(self.longest_s, now - answered), now
            with self._is_answered:
                self.done += 1
                self._is_answered.notify_all()

    def goes_on(self) -> None:
        """Wait until more are acknowledged than are under way now."""
        wanted = self.done + WINDOW + 20
        wait_until(lambda: bool(self.failure) or self.done >= wanted, "it goes on", BACK_S)
        assert not self.failure

    def end(self) -> int:
        """Publish nothing more, and wait until everything is acknowledged; returns how many there were."""
        self._is_over.set()
        wait_until(
            lambda: bool(self.failure) or not self._threads[1].is_alive(), "all is acknowledged", BACK_S
        )
        assert not self.failure
        return self.sent

    def close(self) -> None:
        self._is_over.set()
        self.failure = self.failure or "closed"
        self._client.close()
        for thread in self._threads:
            thread.join(WITHIN_S)


@pytest.fixture
def load() -> Iterator[Callable[[BrokerProcess, str, int], Load]]:
    """Begins a load: `load(broker, name, qos)`."""
    made: list[Load] = []

    def begin(broker: BrokerProcess, name: str, qos: int) -> Load:
        made.append(Load(broker, name, qos))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def subscribed(broker: BrokerProcess) -> None:
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        away.subscribe("load/#", qos=2)
        away.disconnect()


def drained(broker: BrokerProcess, counts: dict[str, int]) -> dict[str, list[int]]:
    """What the session that was away gets of each topic."""
    found: dict[str, list[int]] = {topic: [] for topic in counts}
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        for _ in range(sum(counts.values())):
            message = away.receive(WITHIN_S)
            found[message.topic].append(int(message.payload))
        assert [one.kind for one in away.ping()].count(PUBLISH) == 0
    return found


Begin = Callable[[BrokerProcess, str, int], Load]


def test_a_kafka_node_that_dies_under_load_and_a_second_one_lose_nothing_and_close_nobody(
    kafkas: KafkaServers, nodes: Nodes, load: Begin
) -> None:
    cluster = kafkas.make_cluster(SHARDS)
    broker = nodes(cluster, "n0").start(WITHIN_S)
    subscribed(broker)
    loads = [load(broker, "one", 1), load(broker, "two", 2)]
    for one in loads:
        one.goes_on()
    first = kafkas.leader_of(cluster, 0)
    first.kill()
    for one in loads:
        one.goes_on()  # what another one leads
    second, _third = (node for node in kafkas.nodes if node is not first)
    second.kill()
    wait_until(lambda: broker.get("/readyz").status == 503, "nothing is acknowledged", WITHIN_S)
    with RawClient(broker.address, "asks") as other:
        other.connect()  # a clean session of QoS 0 needs no Kafka
        assert other.ping() == []
    assert [one.failure for one in loads] == ["", ""]
    first.begin()
    second.begin()
    for node in (first, second):
        node.wait_for(3)
    for one in loads:
        one.goes_on()
    counts = {one.topic: one.end() for one in loads}
    assert drained(broker, counts) == {topic: list(range(count)) for topic, count in counts.items()}


@pytest.mark.deep
def test_nodes_that_share_shards_keep_them_while_each_kafka_node_is_killed_in_turn(
    kafkas: KafkaServers, nodes: Nodes, load: Begin
) -> None:
    """The coordinator of their group is one of them: to lose it is not to lose a shard."""
    cluster = kafkas.make_cluster(SHARDS)
    brokers = [nodes(cluster, f"n{n}", "--peer-listen", f"tcp://127.0.0.1:{free_port()}") for n in range(2)]
    for broker in brokers:
        broker.start(WITHIN_S)
    wait_until(lambda: kafkas.shards_of_nodes(cluster) == {"n0": 1, "n1": 1}, "each has its share", BACK_S)
    subscribed(brokers[0])
    loads = [load(broker, f"{number}{qos}", qos) for number, broker in enumerate(brokers) for qos in (1, 2)]
    for node in kafkas.nodes:
        for one in loads:
            one.goes_on()
        node.kill()
        for one in loads:
            one.goes_on()
        node.start()
        for other in kafkas.nodes:
            other.wait_for(3)
        wait_until(
            lambda: all(len(one.in_sync) == 3 for one in kafkas.state_of(cluster).shards), "in sync", BACK_S
        )
    assert [broker.stderr.count("another node owns it") for broker in brokers] == [0, 0]
    counts = {one.topic: one.end() for one in loads}
    assert drained(brokers[1], counts) == {topic: list(range(count)) for topic, count in counts.items()}
