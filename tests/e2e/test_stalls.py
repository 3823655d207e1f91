"""A broker that is stopped, held up or short of descriptors: no client pays for that, and SIGTERM waits for nobody."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from broker_process import BrokerExitedError, BrokerProcess, wait_until
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PINGRESP, PUBACK, SESSION_EXPIRY, WILL_DELAY, connect_packet, packet

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]
pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
HALF_A_POST = (
    b"POST /v1/journal/consumers/x/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
)


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Closed at the end."""
    held: list[socket.socket] = []
    yield held
    for one in held:
        one.close()


@pytest.mark.parametrize("sent", [b"", b"GET /", HALF_A_POST])
def test_sigterm_waits_for_no_admin_client(
    own_broker: BrokerProcess, sockets: list[socket.socket], sent: bytes
) -> None:
    for _ in range(3):
        sockets.append(socket.create_connection(("127.0.0.1", own_broker.admin_port), timeout=10))
        sockets[-1].sendall(sent)
    assert own_broker.get("/healthz").status == 200  # they were accepted before
    own_broker.stop(15)


def pinged(client: RawClient) -> None:
    """What a client does that sends PINGREQ and goes on without waiting."""
    client.send(bytes([0xC0, 0]))


@pytest.mark.parametrize("stopped_s", [4.0, 1.0])
def test_sigstop_cuts_nobody_that_speaks_and_fires_no_will(
    own_broker: BrokerProcess, clients: Clients, stopped_s: float
) -> None:
    """Keep alive 2: each pinged while the broker stood still, longer than one and a half times that."""
    watcher = clients(own_broker, "watcher", 5, keep_alive_s=0)
    watcher.subscribe("will/#", qos=1)
    alive = [
        clients(own_broker, f"c{n}", 4, keep_alive_s=2, will=(f"will/{n}", b"gone"), will_qos=1)
        for n in range(20)
    ]
    os.kill(own_broker.pid, signal.SIGSTOP)
    until = time.monotonic() + stopped_s
    try:
        while time.monotonic() < until:
            for client in alive:
                pinged(client)
            time.sleep(0.5)
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        for client in alive:
            pinged(client)
        time.sleep(0.5)
    assert watcher.ping() == []
    for client in alive:
        client.publish("t", b"still here", 1)
        while client.expect_any(PINGRESP, PUBACK).kind != PUBACK:
            pass


def test_a_client_that_returns_while_the_broker_stands_still_cancels_its_will(
    own_broker: BrokerProcess, clients: Clients
) -> None:
    """Will delay 2 s; the CONNECT of the return waits in the socket when the time is over (P5)."""
    watcher = clients(own_broker, "watcher", 5)
    watcher.subscribe("will", qos=1)
    fields: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: 100}}
    fields |= {"will": ("will", b"gone"), "will_qos": 1, "will_properties": {WILL_DELAY: 2}}
    first = clients(own_broker, "c", 5, **fields)
    first.close()
    wait_until(lambda: own_broker.metrics()["headrace_connections"] == 1, "it is gone")
    os.kill(own_broker.pid, signal.SIGSTOP)
    again = RawClient(own_broker.address, "c", 5)
    try:
        again.send(connect_packet("c", version=5, **fields))
        time.sleep(3)
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    with pytest.raises(SilenceError):
        watcher.receive(3)
    again.close()


def test_a_dead_client_goes_after_a_stall_as_well(own_broker: BrokerProcess, clients: Clients) -> None:
    watcher = clients(own_broker, "watcher", 5, keep_alive_s=0)
    watcher.subscribe("will", qos=1)
    clients(own_broker, "dead", 4, keep_alive_s=1, will=("will", b"gone"), will_qos=1)
    os.kill(own_broker.pid, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(own_broker.pid, signal.SIGCONT)
    assert watcher.receive(8).payload == b"gone"


def drip(client: RawClient, stream: bytes) -> None:
    for at in range(0, len(stream), 2):
        client.send(stream[at : at + 2])
        time.sleep(0.3)


def test_bytes_of_an_unfinished_packet_keep_nobody_alive(own_broker: BrokerProcess, clients: Clients) -> None:
    """[MQTT-3.1.2-22] PUBLISH of 500 bytes, two at a time."""
    client = clients(own_broker, "slow", 4, keep_alive_s=1)
    stream = packet(0x30, b"\x00\x01t" + bytes(500))
    started = time.monotonic()
    with pytest.raises(ClosedError):
        drip(client, stream[:60])
    assert 1.4 < time.monotonic() - started < 6


LIMITED = ["bash", "-c", 'ulimit -n "$0" && exec "$@"', "64"]


class FewDescriptors(BrokerProcess):
    """A broker with 64 descriptors."""

    def command(self) -> list[str]:
        return [*LIMITED, *super().command()]


def few(broker: BrokerProcess) -> BrokerProcess:
    """The same broker with 64 descriptors."""
    broker.__class__ = FewDescriptors
    return broker


def test_connections_leave_descriptors_for_the_journal(
    brokers: Brokers, clients: Clients, sockets: list[socket.socket]
) -> None:
    """Idle connections up to the limit and beyond: what is acknowledged goes on, comes to those who return, and no file
    is missing to the journal, which starts a segment every few messages."""
    settings = {"journal.segment_bytes_max": 8192, "journal.snapshot_interval_bytes": 8192}
    broker = few(brokers(settings)).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.disconnect()
    publisher = clients(broker, "p")
    for _ in range(100):
        one = socket.create_connection(broker.address, timeout=10)
        one.sendall(connect_packet(f"idle-{len(sockets)}", version=4))
        sockets.append(one)
    for number in range(200):
        publisher.deliver("t", b"%d" % number + bytes(500))
    publisher.disconnect()
    wait_until(lambda: psutil.Process(broker.pid).num_fds() < 64, "there is room")
    away = _returns(broker, clients)
    found = [int(away.receive().payload.rstrip(b"\0")) for _ in range(200)]
    assert found == list(range(200))
    assert not [value for name, value in broker.metrics().items() if "dropped" in name and value]
    assert "connection limit reached" in broker.stderr
    assert "accepting pauses" not in broker.stderr
    broker.stop()


def _returns(broker: BrokerProcess, clients: Clients) -> RawClient:
    """The place of the publisher is free as soon as its end was read."""
    until = time.monotonic() + 10
    while True:
        try:
            return clients(broker, "away", clean=False)
        except ClosedError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_limit_that_does_not_fit_refuses_the_start_by_its_name(brokers: Brokers) -> None:
    with pytest.raises(BrokerExitedError) as refused:
        few(brokers({"limits.connections_max": 60})).start()
    assert "limits.connections_max" in refused.value.stderr
    assert refused.value.code in (1, 2)


def test_fewer_connections_than_usual_are_told(brokers: Brokers) -> None:
    assert "connections=16" in few(brokers()).start().stderr
