"""Queues in a Redis that the nodes of a cluster share: what only it has outlives the node that put it there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, make_broker, wait_until
from e2e.raw import RawClient
from headrace.core.homes import Homes
from kafka_server import WITHIN_S, KafkaServer
from redis_servers import RedisServer, redis_servers

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.slow, pytest.mark.time_limit(300)]
SHARDS = 2


def client_of(shard: int, prefix: str) -> str:
    """A client id that is at home in a shard."""
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if Homes(SHARDS).of_client("default", name) == shard)


AWAY = [client_of(shard, "away") for shard in range(SHARDS)]
PUBLISHERS = [client_of(shard, "p") for shard in range(SHARDS)]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_servers() as found:
        yield found.single()


class Pair:
    """Two nodes of a cluster with one store."""

    def __init__(self, kafka: KafkaServer, redis: RedisServer, folder: Path) -> None:
        self._kafka = kafka
        self._cluster = kafka.make_cluster(SHARDS)
        self._settings = {
            "queues.device": f"redis://{redis.place}",
            "queues.window_s": 0,
            "journal.snapshot_interval_bytes": 16_384,
        }
        self.nodes = [self._node(name, folder) for name in ("n0", "n1")]

    def _node(self, name: str, folder: Path) -> BrokerProcess:
        more = ["--cluster", self._cluster, "--node", name, "--peer-listen", f"tcp://127.0.0.1:{free_port()}"]
        return make_broker(folder / name, dict(self._settings), more)

    def owns(self, **wanted: int) -> None:
        def are_so() -> bool:
            found = self._kafka.shards_of_nodes(self._cluster)
            return all(found.get(name) == number for name, number in wanted.items())

        wait_until(are_so, f"shards are dealt out as {wanted}", WITHIN_S)

    def is_deleted_behind(self, ends: list[int]) -> bool:
        state = self._kafka.state_of(self._cluster)
        return all(one.start >= end for one, end in zip(state.shards, ends, strict=True))

    def ends(self) -> list[int]:
        return [one.end for one in self._kafka.state_of(self._cluster).shards]


@pytest.fixture
def pair(kafka: KafkaServer, redis: RedisServer, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(kafka, redis, tmp_path)
    try:
        for node in made.nodes:
            node.start(WITHIN_S)
        made.owns(n0=1, n1=1)
        yield made
    finally:
        for node in made.nodes:
            if node.running:
                node.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            node.end()
            assert "Traceback" not in node.stderr, node.stderr


def figure(nodes: list[BrokerProcess], name: str) -> float:
    """The sum of a metric over nodes and labels."""
    figures = [pair for node in nodes for pair in node.metrics().items()]
    return sum(value for key, value in figures if key.partition("{")[0] == f"headrace_{name}")


def subscribed(node: BrokerProcess) -> None:
    for name in AWAY:
        with RawClient(node.address, name) as away:
            away.connect(clean=False, deadline_s=WITHIN_S)
            away.subscribe("t", qos=1)
            away.disconnect()


def published(node: BrokerProcess, numbers: range, topic: str = "t", name: str = PUBLISHERS[0]) -> None:
    with RawClient(node.address, name) as publisher:
        publisher.connect(deadline_s=WITHIN_S)
        for number in numbers:
            publisher.deliver(topic, b"%0400d" % number)


def drained(node: BrokerProcess, name: str, count: int) -> list[int]:
    with RawClient(node.address, name) as away:
        away.connect(clean=False, deadline_s=WITHIN_S)
        found = [int(away.receive(WITHIN_S).payload) for _ in range(count)]
        assert away.ping() == []
        away.disconnect()
    return found


def let_go(pair: Pair, node: BrokerProcess, count: int) -> None:
    """Wait until the journals have let go of so many messages of each session, and Kafka has them no more."""
    wait_until(lambda: figure(pair.nodes, "store_let_go_total") >= count * SHARDS, "let go of", WITHIN_S)
    ends = pair.ends()

    def is_gone() -> bool:
        for name in PUBLISHERS:  # what nobody wants is in their shards alone
            published(node, range(20), "none", name)
        return pair.is_deleted_behind(ends)

    wait_until(is_gone, "Kafka has it no more", 2 * WITHIN_S)


def test_what_only_the_store_has_outlives_the_node_that_put_it_there(pair: Pair, redis: RedisServer) -> None:
    first, second = pair.nodes
    subscribed(first)
    published(second, range(100))
    let_go(pair, second, 100)
    published(second, range(100, 110))
    first.kill()
    pair.owns(n1=SHARDS)
    published(second, range(110, 120))
    for name in AWAY:
        assert drained(second, name, 120) == list(range(120))
    assert figure([second], "store_read_total") >= 100
    assert figure([second], "store_forgotten_total") == 0
    wait_until(
        lambda: not redis.ask("KEYS", "headrace:*:*:*:*"), "nothing of it is left in the store", WITHIN_S
    )


@pytest.mark.deep
def test_a_node_that_stood_still_does_no_harm_to_what_another_one_goes_on_with(
    pair: Pair, redis: RedisServer
) -> None:
    first, second = pair.nodes
    subscribed(first)
    published(second, range(100))
    let_go(pair, second, 100)
    first.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
    pair.owns(n1=SHARDS)
    published(second, range(100, 150))
    for name in AWAY[:1]:
        assert drained(second, name, 150) == list(range(150))
    published(second, range(150, 200))
    first.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
    pair.owns(n0=1, n1=1)
    assert drained(second, AWAY[0], 50) == list(range(150, 200))
    assert drained(second, AWAY[1], 200) == list(range(200))
    assert figure(pair.nodes, "store_forgotten_total") == 0
    wait_until(
        lambda: not redis.ask("KEYS", "headrace:*:*:*:*"), "nothing of it is left in the store", WITHIN_S
    )
