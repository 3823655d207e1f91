"""Calls on sockets that fail once, each with every error that it may have: one connection at most pays, and nothing that
was acknowledged is missing (P1, P2, P9)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BUILD, BrokerProcess, make_broker, wait_until
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PUBACK
from faults.broker.conftest import Faults

# recv and send are those of `syscalls.pyx`; the interpreter's own calls are read and write, of everything else as well.
CALLS = ["accept", "setsockopt", *(["recv", "send"] if BUILD == "compiled" else [])]
ERRORS = ["EINTR", "EAGAIN", "ENOMEM", "ENOBUFS", "EMFILE", "ENFILE", "EIO", "EPERM", "EPIPE"]
ERRORS += ["ECONNABORTED", "ECONNRESET"]


class Exchange:
    """Two clients of one broker; `acknowledged` of what one published must come to the other, which never goes."""

    def __init__(self, broker: BrokerProcess, clients: Callable[..., RawClient]) -> None:
        self._broker, self._clients = broker, clients
        self.acknowledged: list[int] = []
        self.number = 0

    def publish(self) -> None:
        """A publisher comes and publishes; whatever happens to it is no error of the test's, as long as it is told."""
        try:
            publisher = self._clients(self._broker, "p")
            for _ in range(3):
                self.number += 1
                publisher.publish("t", str(self.number), 1)
                publisher.expect(PUBACK, 5)
                self.acknowledged.append(self.number)
        except (ClosedError, SilenceError, OSError):
            return

    def received(self) -> set[int]:
        """All that came to a client that was away, after another message that marks the end."""
        away = self._clients(self._broker, "away", clean=False)
        found: set[int] = set()
        away.subscribe("end", qos=1)
        away.deliver("end", b"")
        while (packet := away.receive()).topic != "end":
            found.add(int(packet.payload))
        away.disconnect()
        return found


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_once_costs_one_connection(
    call: str, faults: Faults, tmp_path: Path, clients: Callable[..., RawClient]
) -> None:
    broker = make_broker(tmp_path, {}, environment=faults.environment).start()
    try:
        away = clients(broker, "away", clean=False)
        away.subscribe("t", qos=1)
        away.disconnect()
        neighbour = clients(broker, "neighbour", keep_alive_s=0)
        exchange = Exchange(broker, clients)
        for name in ERRORS:
            faults.set(call, getattr(errno, name))
            exchange.publish()
            with suppress(OSError):
                socket.create_connection(broker.address, 5).close()
            wait_until(lambda: not (faults.folder / call).exists(), f"{call} fails with {name}")
            exchange.publish()
            assert neighbour.ping() == [], name
        assert len(exchange.acknowledged) >= 3 * len(ERRORS)
        assert exchange.received() >= set(exchange.acknowledged)
        broker.stop()
    finally:
        broker.end()
    assert not broker.trouble, broker.trouble
