"""Brokers whose journals are in a real Kafka: killed, emptied, doubled, and with Kafka killed beneath them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import PYTHON, BrokerProcess, build_environment, headrace, make_broker, wait_until
from e2e.raw import RawClient
from e2e.wire import PUBACK
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
Nodes = Callable[..., BrokerProcess]


@pytest.fixture
def cluster(kafka: KafkaServer) -> str:
    """The address of a cluster of one shard."""
    return kafka.make_cluster(1)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Makes nodes of a cluster: `nodes(url, "n0")`, with settings if any."""
    made: list[BrokerProcess] = []

    def make(url: str, node: str, settings: dict[str, object] | None = None) -> BrokerProcess:
        made.append(make_broker(tmp_path / node, settings, ["--cluster", url, "--node", node]))
        return made[-1]

    yield make
    for broker in made:
        broker.end()
        assert not broker.trouble, broker.trouble


def filled(broker: BrokerProcess, messages: int) -> None:
    """Messages for a session that is away, each acknowledged."""
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        away.subscribe("t", qos=1)
    published(broker, 0, messages)


def published(broker: BrokerProcess, first: int, messages: int) -> None:
    with RawClient(broker.address, "p") as publisher:
        publisher.connect()
        for number in range(first, first + messages):
            publisher.deliver("t", b"%d" % number)


def drained(broker: BrokerProcess, messages: int) -> list[int]:
    """What that session gets."""
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        return [int(away.receive().payload) for _ in range(messages)]


def test_kill_9_and_an_empty_data_directory_lose_nothing(cluster: str, nodes: Nodes) -> None:
    broker = nodes(cluster, "n0").start(WITHIN_S)
    assert "min.insync.replicas" in broker.stderr
    filled(broker, 100)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start(WITHIN_S)
    published(broker, 100, 20)
    broker.crash()  # with the cache that it has now
    assert broker.get("/readyz").status == 200
    assert broker.metrics()["headrace_journal_high_watermark"] > 120
    assert drained(broker, 120) == list(range(120))
    broker.stop()
    broker.start(WITHIN_S)


def test_what_nobody_needs_goes_from_kafka_and_what_waits_for_a_session_stays(
    kafka: KafkaServer, cluster: str, nodes: Nodes
) -> None:
    broker = nodes(cluster, "n0", {"journal.snapshot_interval_bytes": 4096}).start(WITHIN_S)
    filled(broker, 1)
    until = time.monotonic() + WITHIN_S
    number = 0
    while kafka.state_of(cluster).shards[0].start == 0:
        assert time.monotonic() < until
        assert drained(broker, 1) == [number]
        with RawClient(broker.address, "p") as publisher:
            publisher.connect()
            for _ in range(10):
                publisher.deliver("other", bytes(2000))
            number += 1
            publisher.deliver("t", b"%d" % number)
    published(broker, number + 1, 5)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start(WITHIN_S)
    assert "snapshot=None" not in broker.stderr.rpartition("recovered")[2]
    assert drained(broker, 6) == list(range(number, number + 6))


def test_what_makes_a_journal_on_disk_is_refused(tmp_path: Path) -> None:
    url = "kafka://127.0.0.1:1/none"
    bootstrap = ["--bootstrap", str(tmp_path), "--data-dir", str(tmp_path / "data")]
    found = headrace("serve", "--cluster", url, *bootstrap, deadline_s=WITHIN_S)
    assert (found.returncode, "--bootstrap" in found.stderr) == (2, True), found.stderr


def test_two_shards_are_served_by_one_node(kafka: KafkaServer, nodes: Nodes) -> None:
    broker = nodes(kafka.make_cluster(2), "n0").start(WITHIN_S)
    filled(broker, 20)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start(WITHIN_S)
    assert drained(broker, 20) == list(range(20))


@pytest.fixture
def pair(cluster: str, nodes: Nodes) -> tuple[BrokerProcess, BrokerProcess]:
    """A node that serves, with ten messages for a session that is away, and one that stands by."""
    first, second = nodes(cluster, "n0"), nodes(cluster, "n1")
    first.start(WITHIN_S)
    filled(first, 10)
    second.spawn()
    second.wait_for_line("standing by", WITHIN_S)
    return first, second


def test_a_node_that_stands_by_serves_once_the_other_one_is_killed(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    first, second = pair
    published(first, 10, 5)
    assert "recovered" not in second.stderr
    first.kill()
    second.wait_for_line(second.ready_line, WITHIN_S)
    assert drained(second, 15) == list(range(15))


def test_a_node_that_stands_by_serves_at_once_when_the_other_one_is_stopped(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    first, second = pair
    first.stop()
    second.wait_for_line(second.ready_line, WITHIN_S)
    seen = len(first.lines)
    first.spawn()
    first.wait_for_line("standing by", WITHIN_S, after=seen)
    published(second, 10, 5)
    second.stop()
    first.wait_for_line(first.ready_line, WITHIN_S, after=seen)
    assert drained(first, 15) == list(range(15))


def test_a_node_that_stands_still_is_replaced_and_ends_when_it_goes_on(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    first, second = pair
    os.kill(first.pid, signal.SIGSTOP)
    second.wait_for_line(second.ready_line, WITHIN_S)
    assert drained(second, 10) == list(range(10))
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(WITHIN_S) == 1
    published(second, 10, 5)
    assert drained(second, 5) == list(range(10, 15))


def test_kafka_that_is_killed_keeps_publishers_waiting_and_loses_nothing(
    kafka: KafkaServer, cluster: str, nodes: Nodes
) -> None:
    broker = nodes(cluster, "n0").start(WITHIN_S)
    filled(broker, 10)
    kafka.kill()
    is_back = False
    waiting = subprocess.Popen(
        [PYTHON, "-m", "headrace", "pub", "-p", str(broker.port), "-t", "t", "-q", "1", "-m", "10"],
        env=build_environment(),
        cwd="/",
    )
    try:
        broker.wait_for_line("the journal cannot be written now", WITHIN_S)
        assert waiting.poll() is None
        is_back = True
        kafka.start()
        assert waiting.wait(WITHIN_S) == 0
    finally:
        waiting.kill()
        waiting.wait()
        if not is_back:  # the other tests need it
            kafka.start()
    assert drained(broker, 11) == list(range(11))


def test_what_is_not_acknowledged_waits_for_kafka_and_what_is_outlives_the_node_too(
    kafka: KafkaServer, cluster: str, nodes: Nodes
) -> None:
    broker = nodes(cluster, "n0").start(WITHIN_S)
    filled(broker, 10)
    with RawClient(broker.address, "p") as publisher:
        publisher.connect()
        with kafka.stopped():
            publisher.publish("t", b"10", qos=1)
            broker.wait_for_line("nothing new is acknowledged", WITHIN_S)
            assert broker.get("/readyz").status == 503
            assert publisher.ping() == []
        publisher.expect(PUBACK, WITHIN_S)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start(WITHIN_S)
    assert drained(broker, 11) == list(range(11))


def test_a_directory_with_a_journal_is_not_taken_for_a_cache(cluster: str, tmp_path: Path) -> None:
    own = make_broker(tmp_path / "own").start()
    own.stop()
    found = headrace("serve", "--data-dir", str(own.data_dir), "--cluster", cluster, deadline_s=WITHIN_S)
    assert found.returncode == 2
    assert "holds a journal of its own" in found.stderr


def test_a_topic_by_which_messages_would_be_lost_is_not_served(
    kafka: KafkaServer, cluster: str, nodes: Nodes
) -> None:
    kafka.set_on_topic(f"{cluster.rpartition('/')[2]}.journal", "retention.ms", "3600000")
    broker = nodes(cluster, "n0")
    broker.spawn()
    assert broker.wait(WITHIN_S) == 1
    wait_until(lambda: "retention.ms is 3600000, and must be -1" in broker.stderr, "it is said")


def test_a_setting_that_somebody_changes_while_a_node_runs_is_named(kafka: KafkaServer, cluster: str) -> None:
    from headrace.services.watchdog import Watchdog
    from headrace.storage.kafka.cluster import Cluster
    from headrace.storage.kafka.storage import SnapshotIntervals

    joined = Cluster.open(cluster, "n0", SnapshotIntervals(), Watchdog())
    kafka.set_on_topic(f"{cluster.rpartition('/')[2]}.snapshots", "retention.bytes", "1000000")
    wanted = f"{cluster.rpartition('/')[2]}.snapshots: retention.bytes is 1000000, and must be -1"
    wait_until(lambda: joined.look() == [wanted], "it is named", WITHIN_S)
