"""P9: 2,000 connections drip a CONNECT that never ends. A probe is served, they go at the deadline, memory stays."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import connect_packet

LORISES = 2_000
DEADLINE_S = 60.0
GROWTH_MAX = 64 << 20  # 32 KiB each, most of it sockets and their buffers
STREAM = connect_packet("x" * 60_000, version=4)


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Room for all the sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Herd:
    """Connections that are still open, each a few bytes into its CONNECT."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.open: dict[int, socket.socket] = {}
        self.heard = b""
        self.sent = 0
        self._poll = select.poll()
        for _ in range(LORISES):
            one = socket.create_connection(address, timeout=DEADLINE_S)
            one.setblocking(False)
            self.open[one.fileno()] = one
            self._poll.register(one, select.POLLIN)

    def drip(self) -> None:
        """The next byte on each."""
        byte = STREAM[self.sent : self.sent + 1]
        self.sent += 1
        for one in self.open.values():
            with contextlib.suppress(ConnectionError):
                one.send(byte)

    def bury(self) -> None:
        """Forget those that the broker has closed."""
        for number, _ in self._poll.poll(0):
            with contextlib.suppress(ConnectionError):
                self.heard += self.open[number].recv(100)
            self._poll.unregister(number)
            self.open.pop(number).close()


@pytest.mark.slow
def test_two_thousand_lorises(
    descriptors: None, brokers: Callable[..., BrokerProcess], clients: Callable[..., RawClient]
) -> None:
    broker = brokers({"limits.connect_timeout_s": 4, "durability": "none"}).start()
    process = psutil.Process(broker.pid)
    probe = clients(broker, "probe")
    probe.subscribe("probe", qos=1)
    before = process.memory_info().rss
    herd = Herd(broker.address)
    until, rounds, most = time.monotonic() + DEADLINE_S, 0, 0
    while herd.open and time.monotonic() < until:
        herd.drip()
        probe.deliver("probe", b"%d" % rounds, 1)
        assert probe.receive().payload == b"%d" % rounds
        most = max(most, process.memory_info().rss - before)
        herd.bury()
        rounds += 1
    assert not herd.open, f"{len(herd.open)} of {LORISES} are still there"
    assert herd.sent < len(STREAM)
    assert herd.heard == b""
    assert most < GROWTH_MAX, f"{most >> 20} MiB more"
    assert probe.ping() == []
    turned_away = [
        value
        for name, value in broker.metrics().items()
        if name.startswith("headrace_listener_turned_away_total") and 'reason="connect_timeout"' in name
    ]
    assert turned_away == [LORISES]
