"""A broker that runs out of descriptors: nobody loses a message, nothing ends, and what was held up goes on by itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.raw import RawClient, SilenceError
from e2e.wire import PUBACK

pytestmark = pytest.mark.slow

Brokers = Callable[..., BrokerProcess]
Clients = Callable[..., RawClient]
COUNT = 300
SETTINGS: dict[str, object] = {"journal.segment_bytes_max": 1 << 20}


@contextmanager
def no_descriptors(broker: BrokerProcess) -> Iterator[None]:
    """Every descriptor that could be given out is one that is open already."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def accepted(broker: BrokerProcess, client_id: str) -> RawClient:
    """A connection that has sent nothing yet."""
    before = descriptors(broker)
    client = RawClient(broker.address, client_id, 4)
    wait_until(lambda: descriptors(broker) > before, "accepted")
    return client


def test_a_returning_client_waits_until_it_can_be_read_for(brokers: Brokers, clients: Clients) -> None:
    broker = brokers(SETTINGS).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    publisher = clients(broker, "p")
    for number in range(COUNT):
        publisher.deliver("t", b"%08d" % number)
    publisher.close()
    broker.crash()  # nothing is in memory any more
    away = accepted(broker, "away")
    live = clients(broker, "live")
    live.subscribe("live", qos=1)
    other = clients(broker, "other")
    with no_descriptors(broker):
        away.connect(clean=False)
        broker.wait_for_line("cannot be read now")
        away.expect_nothing(0.5)
        other.deliver("live", b"through")
        assert live.receive().payload == b"through", "everybody else goes on"
    assert [int(away.receive().payload) for _ in range(COUNT)] == list(range(COUNT))
    metrics = broker.metrics()
    assert metrics["headrace_journal_failed_reads_total"] >= 1
    assert metrics['headrace_paused_connections{reason="disk_read"}'] == 0
    away.close()
    assert not [line for line in broker.lines if "unreadable" in line]
    broker.stop()


def test_a_segment_is_begun_when_there_is_a_descriptor_again(brokers: Brokers, clients: Clients) -> None:
    broker = brokers(SETTINGS).start()
    publisher = clients(broker, "p")
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    sent = acknowledged = 0
    with no_descriptors(broker):
        try:
            while sent < 1000:
                waiting = publisher.publish("t", b"%08d" % sent + bytes(8000), 1)
                sent += 1
                found = publisher.read(2.0)
                assert (found.kind, found.packet_id) == (PUBACK, waiting)
                acknowledged += 1
        except SilenceError:
            broker.wait_for_line("cannot be written now: Too many open files")
        assert 50 < acknowledged < sent
        assert broker.running
    assert publisher.read().kind == PUBACK
    for _ in range(5):
        publisher.deliver("t", b"%08d" % sent + bytes(8000))
        sent += 1
    broker.crash()
    away = clients(broker, "away", clean=False)
    assert [int(away.receive().payload[:8]) for _ in range(sent)] == list(range(sent))
    broker.stop()
