"""A worker that stands still, while clients of others go on: none of those is cut, and none loses its place."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from e2e.test_handover import Doors, _read, _tcp
from e2e.test_workers import PATIENCE_S, Workers, workers
from headrace.core.homes import Homes
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.packets import Will as LastWill

pytestmark = pytest.mark.slow

CONNACK = bytes([0x20, 2, 0, 0])
PINGRESP = bytes([0xD0, 0])
KEEP_ALIVE_S = 2
STOPPED_S = 6.0


def names_at(home: int, of: int, count: int, prefix: str) -> list[str]:
    """So many client ids that are at home in one shard of so many."""
    homes, found = Homes(of), []
    for number in range(10_000):
        if homes.of_client("default", f"{prefix}{number}") == home:
            found.append(f"{prefix}{number}")
        if len(found) == count:
            return found
    raise AssertionError


def connect_of(name: str, keep_alive_s: int = 0, will: bytes = b"gone") -> bytes:
    packet = Connect(4, name, True, keep_alive_s)
    packet.will = LastWill("will", will, 1, False)
    return codec.encode_connect(packet)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Watcher:
    """Waits for wills."""

    def __init__(self, node: Workers, name: str) -> None:
        self.client = _tcp(node.port)
        self.client.sendall(codec.encode_connect(Connect(4, name, True)))
        assert _read(self.client, 4) == CONNACK
        self.client.sendall(codec.encode_subscribe(4, 7, [SubscriptionRequest("will", 0)]))
        assert _read(self.client, 5) == bytes([0x90, 3, 0, 7, 0])

    def hears(self, seconds: float) -> bytes:
        """What comes within so many seconds."""
        self.client.settimeout(seconds)
        try:
            return self.client.recv(1000)
        except TimeoutError:
            return b""


class Tls:
    def __init__(self, doors: Doors, name: str) -> None:
        self._client = doors.tls()
        self._client.sendall(connect_of(name, KEEP_ALIVE_S))
        assert _read(self._client, 4) == CONNACK

    def ping(self) -> None:
        self._client.sendall(codec.PINGREQ)

    def answers(self, count: int) -> bytes:
        return _read(self._client, 2 * count)

    def close(self) -> None:
        self._client.close()


class Web:
    def __init__(self, doors: Doors, name: str) -> None:
        self._stack = ExitStack()
        url = f"ws://127.0.0.1:{doors.ports['ws']}/mqtt"
        self._client: ClientConnection = self._stack.enter_context(connect(url, subprotocols=["mqtt"]))  # type: ignore[list-item]
        self._client.send(connect_of(name, KEEP_ALIVE_S))
        assert self.answers(2) == CONNACK

    def ping(self) -> None:
        self._client.send(codec.PINGREQ)

    def answers(self, count: int) -> bytes:
        found = b""
        while len(found) < 2 * count:
            found += bytes(self._client.recv(timeout=PATIENCE_S))  # type: ignore[arg-type]
        return found

    def close(self) -> None:
        self._stack.close()


def pinged(clients: Sequence[Tls | Web], seconds: float) -> int:
    """What clients do that ping twice a second and wait for no answer; returns how often each did."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for client in clients:
            client.ping()
        count += 1
        time.sleep(0.5)
    return count


@pytest.mark.parametrize("way", [Tls, Web])
def test_a_worker_that_holds_sockets_of_others_stands_still_and_nobody_is_cut(
    tmp_path: Path, way: Callable[[Doors, str], Tls | Web]
) -> None:
    doors = Doors(tmp_path)
    with workers(tmp_path, *doors.options) as node, ExitStack() as stack:
        node.start()
        clients = [way(doors, f"c{number}") for number in range(16)]
        for client in clients:
            stack.callback(client.close)
        watchers = [Watcher(node, names_at(home, 2, 1, "watcher")[0]) for home in range(2)]
        for watcher in watchers:
            stack.callback(watcher.client.close)
        for worker in range(2):
            with stopped(node.pids[worker]):
                count = pinged(clients, STOPPED_S)
            count += pinged(clients, 2.5)
            for client in clients:
                assert client.answers(count) == PINGRESP * count
        for watcher in watchers:
            assert watcher.hears(0.1) == b""
        assert node.stop() == 0


def test_a_client_behind_a_relay_that_says_nothing_goes_in_time(tmp_path: Path) -> None:
    """[MQTT-3.1.2-22] What excuses silence is that of the worker, not that of the client."""
    doors = Doors(tmp_path)
    with workers(tmp_path, *doors.options) as node, ExitStack() as stack:
        node.start()
        clients = [Tls(doors, f"c{number}") for number in range(8)]
        for client in clients:
            stack.callback(client.close)
        began = time.monotonic()
        for client in clients:
            assert client.answers(1) == b""  # the end
        assert 1.4 * KEEP_ALIVE_S < time.monotonic() - began < 1.5 * KEEP_ALIVE_S + 6
        assert node.stop() == 0


def test_of_two_connections_that_waited_for_a_worker_the_later_one_stays(tmp_path: Path) -> None:
    """Their CONNECT waits in the sockets of two other workers, and comes home in any order."""
    names = names_at(0, 3, 60, "c")
    with workers(tmp_path, "--workers", "3") as node, ExitStack() as stack:
        node.start()
        watcher = Watcher(node, names_at(1, 3, 1, "watcher")[0])
        stack.callback(watcher.client.close)
        with stopped(node.pids[0]):
            before = [_come(node, name, b"before") for name in names]
            time.sleep(0.3)
            for client in before[::2]:
                client.close()  # the others hang, as where a network has gone
            time.sleep(0.3)
            later = [_come(node, name, b"later") for name in names]
            for client in (*before[1::2], *later):
                stack.callback(client.close)
            time.sleep(0.3)
        for name, client in zip(names, later, strict=True):
            assert _read(client, 4) == CONNACK, name
        for client in before[1::2]:
            while client.recv(100):
                pass  # taken over, or refused
        for name, client in zip(names, later, strict=True):
            client.sendall(codec.PINGREQ)
            assert _read(client, 2) == PINGRESP, name
        assert b"later" not in watcher.hears(1.0)
        assert node.stop() == 0


def _come(node: Workers, name: str, will: bytes) -> socket.socket:
    client = _tcp(node.port)
    client.sendall(connect_of(name, 0, will))
    return client
