"""Of the messages that a flush wrote something of, one acknowledgement and one delivery is told."""

from __future__ import annotations

import pytest

from conformance.peer import Peer
from harness import START_US, Harness
from headrace.core.ports.latencies import Latencies


class Told(Latencies):
    def __init__(self) -> None:
        self.acknowledgements: list[int] = []
        self.deliveries: list[int] = []

    def acknowledged(self, arrived_us: int) -> None:
        self.acknowledgements.append(arrived_us - START_US)

    def delivered(self, arrived_us: int) -> None:
        self.deliveries.append(arrived_us - START_US)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def told(harness: Harness) -> Told:
    found = Told()
    harness.worker.latencies = found
    return found


def test_the_oldest_of_a_flush_is_told_once_for_all(harness: Harness, told: Told) -> None:
    watcher, publisher = Peer(harness, "w"), harness.client("p", clean=True)
    watcher.subscribe("t")
    for microseconds in (7, 8, 9):
        harness.now_us = START_US + microseconds
        publisher.publish("t", b"x", sync=False)
    assert (told.acknowledgements, told.deliveries) == ([], [])
    harness.sync()
    assert (told.acknowledgements, told.deliveries) == ([7], [7])
    harness.now_us = START_US + 2000
    publisher.publish("t", b"x")
    assert (told.acknowledgements, told.deliveries) == ([7, 2000], [7, 2000])


def test_one_flush_a_millisecond_tells(harness: Harness, told: Told) -> None:
    publisher = harness.client("p", clean=True)
    for microseconds in (0, 500, 999, 1000, 1500, 2600):
        harness.now_us = START_US + microseconds
        publisher.publish("t", b"x")
    assert told.acknowledgements == [0, 1000, 2600], "what was left out makes no later one look slow"


def test_a_clock_that_was_set_back_does_not_silence_it(harness: Harness, told: Told) -> None:
    publisher = harness.client("p", clean=True)
    for microseconds in (0, -5_000_000, -4_999_999):
        harness.now_us = START_US + microseconds
        publisher.publish("t", b"x")
    assert told.acknowledgements == [0, -5_000_000]


def test_qos_2_is_acknowledged_by_pubrec(harness: Harness, told: Told) -> None:
    Peer(harness, "p").publish("t", qos=2)
    assert (told.acknowledgements, told.deliveries) == ([0], [])


def test_qos_0_is_not_told(harness: Harness, told: Told) -> None:
    Peer(harness, "w").subscribe("t")
    publisher = Peer(harness, "p")
    publisher.publish("t")
    publisher.publish("t", retain=True)
    assert (told.acknowledgements, told.deliveries) == ([], [])


def test_what_waited_for_its_client_is_no_latency_of_ours(harness: Harness, told: Told) -> None:
    away = Peer(harness, "away", clean=False, session_expiry_interval=99)
    away.subscribe("t")
    away.lose()
    Peer(harness, "p").publish("t", qos=1)
    harness.advance(10)
    back = Peer(harness, "away", clean=False, session_expiry_interval=99)
    assert len(back.publishes()) == 1
    assert told.deliveries == []


def test_nor_is_a_retained_message_that_waited_for_a_subscription(harness: Harness, told: Told) -> None:
    late = Peer(harness, "late")
    Peer(harness, "p").publish("t", qos=1, retain=True)
    harness.advance(10)
    late.subscribe("t")
    assert told.acknowledgements == [0]
    assert told.deliveries == []


def test_a_client_that_reads_late_gets_it_late(harness: Harness, told: Told) -> None:
    watcher = Peer(harness, "w", receive_maximum=1)
    watcher.subscribe("t")
    publisher = Peer(harness, "p")
    publisher.publish("t", qos=1)
    harness.advance(1)
    publisher.publish("t", qos=1)
    assert told.deliveries == [0]
    harness.advance(1)
    harness.broker.on_puback(watcher.link, 1, 0)
    harness.sync()
    assert told.deliveries == [0, 1_000_000], "when it came, not when there was room"


def test_what_it_raises_costs_nobody_anything(harness: Harness) -> None:
    class Broken(Latencies):
        def acknowledged(self, arrived_us: int) -> None:
            raise ValueError("no")

    harness.worker.latencies = Broken()
    publisher = Peer(harness, "p")
    for _ in range(2):
        harness.advance(1)
        assert len(publisher.publish("t", qos=1)) == 1
    assert harness.worker.failures.counts["latencies"] == 2
