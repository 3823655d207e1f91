"""Bridges and kill -9 of either broker: nothing acknowledged is lost, QoS 2 crosses exactly once, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.bridging import bridge, configure, topic, wait_metric, wait_up
from e2e.consumer import Consumer
from e2e.producer import Producer

Brokers = Callable[..., BrokerProcess]
ROOMY: dict[str, object] = {"session.backlog_messages_max": 65_535}


@pytest.mark.parametrize(
    ("direction", "qos"),
    [
        ("out", 2),
        ("in", 2),
        pytest.param("out", 1, marks=pytest.mark.deep),
        pytest.param("in", 1, marks=pytest.mark.deep),
    ],
)
def test_kill_either_broker_under_load(brokers: Brokers, direction: str, qos: int) -> None:
    own, remote = brokers(ROOMY), brokers(ROOMY)
    configure(own, bridge(remote, topic("load/#", direction, qos), inflight_max=50))
    remote.start()
    own.start()
    wait_up(own)
    source, sink = (own, remote) if direction == "out" else (remote, own)
    consumer = Consumer(sink, "consumer", "load/#", qos)
    consumer.start()
    producers = [
        Producer(source, f"p{n}", f"load/{n}", qos=qos, window=window, rate=500, padding=64)
        for n, window in enumerate((1, 32))
    ]
    for producer in producers:
        producer.start()
    for victim in (own, remote):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 100)
        victim.crash()
        wait_up(own)
    crash_together(own, remote)
    wait_up(own)
    for producer in producers:
        producer.wait_acked(len(producer.acked) + 100)
        producer.finish()
    for producer in producers:
        producer.join_finished()
    consumer.finish(producers, 120)
    assert consumer.sessions_lost == 0
    assert consumer.ledger.missing(producers) == {}
    if qos == 2:
        assert [consumer.ledger.repeated(producer.name) for producer in producers] == [set(), set()]
        assert consumer.ledger.faults(producers) == []
    wait_metric(own, 'headrace_bridge_backlog_messages{bridge="b"}', 0)


def crash_together(*victims: BrokerProcess) -> None:
    threads = [threading.Thread(target=victim.crash) for victim in victims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
