"""Clients of every kind of listener find the worker of their home, wherever they come in; one takes the other over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from certificates import Authority
from e2e.test_workers import PATIENCE_S, Workers, until, workers
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, PING, RESPONSE, encode_frame
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.packets import Will as LastWill
from headrace.testing.ports import free_port

pytestmark = pytest.mark.slow

CONNACK = bytes([0x20, 2, 0, 0])
PUBACK = bytes([0x40, 2, 0, 1])
PUBLISH = codec.encode_publish(4, b"plant/t", b"21.5", 1, False, False, 1, b"", -1)
PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(
    ">H4s4sHH", 12, bytes([198, 51, 100, 7]), bytes(4), 5555, 1883
)
NAMES = [f"client-{number}" for number in range(6)]  # of both homes


class Doors:
    """A node with a listener of each kind, and a way in through each of them."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.certificate, key = self.authority.issue("server")
        self.ports = {name: free_port() for name in ("proxied", "tls", "ws", "frame")}
        at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        urls = [
            f"tcp://{at['proxied']}?proxy=required",
            f"tls://{at['tls']}?cert={self.certificate}&key={key}",
            f"ws://{at['ws']}",
            f"frame://{at['frame']}",
        ]
        self.options = ["--workers", "2", *(part for url in urls for part in ("--listen", url))]

    def ways(self, node: Workers) -> dict[str, Callable[[], socket.socket]]:
        return {
            "tcp": lambda: _tcp(node.port),
            "unix": lambda: _unix(node.unix),
            "PROXY 1": lambda: _tcp(
                self.ports["proxied"], b"PROXY TCP4 198.51.100.7 127.0.0.1 5555 1883\r\n"
            ),
            "PROXY 2": lambda: _tcp(self.ports["proxied"], PROXY_2),
            "TLS": self.tls,
        }

    def tls(self) -> socket.socket:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return context.wrap_socket(_tcp(self.ports["tls"]), server_hostname="localhost")


def _tcp(port: int, first: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    made.sendall(first)
    return made


def _unix(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(str(path))
    return made


def _read(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = client.recv(count - len(found))
        if not more:
            break
        found += more
    return found


def _serve(client: socket.socket, name: str) -> None:
    """CONNECT with a message behind it, in one piece."""
    client.sendall(codec.encode_connect(Connect(4, name, True)) + PUBLISH)
    assert _read(client, 8) == CONNACK + PUBACK, name


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    return Doors(tmp_path_factory.mktemp("handover"))


def test_each_client_is_served_through_each_listener_and_taken_over(doors: Doors, tmp_path: Path) -> None:
    with workers(tmp_path, *doors.options) as node:
        node.start()
        before: dict[str, socket.socket] = {}
        for way, come in doors.ways(node).items():
            for name in NAMES:
                client = come()
                _serve(client, name)
                if name in before:
                    assert before[name].recv(1) == b"", (way, name)  # [MQTT-3.1.4-3]
                    before[name].close()
                before[name] = client
        for name in NAMES:
            _websocket(doors.ports["ws"], name)
            assert before[name].recv(1) == b""
            before[name].close()
            _device(doors.ports["frame"], name.encode())
        assert node.stop() == 0


def _websocket(port: int, name: str) -> None:
    with connect(f"ws://127.0.0.1:{port}/mqtt", subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
        client.send(codec.encode_connect(Connect(4, name, True)))
        client.send(PUBLISH)
        assert _messages(client, 8) == CONNACK + PUBACK, name


def _messages(client: ClientConnection, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += bytes(client.recv(timeout=PATIENCE_S))  # type: ignore[arg-type]
    return found


def _device(port: int, sn: bytes) -> None:
    with _tcp(port) as client:
        pong = encode_frame(2, PING | RESPONSE, sn, b"")
        client.sendall(encode_frame(2, HELLO, sn, hello_body("", b"")) + encode_frame(2, PING, sn, b""))
        found = b""
        while not found.endswith(pong):
            more = client.recv(1000)
            assert more, sn
            found += more


def test_a_worker_killed_while_hundreds_reconnect_costs_no_descriptor_and_nobody_hangs(
    tmp_path: Path,
) -> None:
    """Each one is served or turned away, at once or after the wait that it is told; then all are served."""
    names = [f"many-{number}" for number in range(300)]

    def come(node: Workers, name: str) -> bool:
        with contextlib.suppress(OSError), _tcp(node.port) as client:
            client.sendall(codec.encode_connect(Connect(4, name, True)) + PUBLISH)
            return _read(client, 4) == CONNACK
        return False

    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        assert all(come(node, name) for name in names[:20])
        stays = node.pids[0]
        with ThreadPoolExecutor(30) as pool:
            rush = [pool.submit(come, node, name) for name in names]
            os.kill(node.pids[1], signal.SIGKILL)
            served = sum(one.result(2 * PATIENCE_S) for one in rush)
            assert served > 0
            until(lambda: all(pool.map(partial(come, node), names)), "everybody is served")
        until(lambda: _sockets(stays) <= 16, "no socket of a client stays")
        assert node.stop() == 0


def _sockets(pid: int) -> int:
    """How many sockets a process has."""
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(one).startswith("socket:")
    return found


def test_a_node_that_stops_says_so_to_clients_behind_tls_and_publishes_no_will(
    doors: Doors, tmp_path: Path
) -> None:
    with workers(tmp_path, *doors.options) as node:
        node.start()
        held = []
        for name in NAMES:
            client = doors.tls()
            packet = Connect(5, name, True)
            packet.will = LastWill("plant/will", name.encode(), 1, True)
            packet.properties.session_expiry_interval = 600
            client.sendall(codec.encode_connect(packet))
            assert client.recv(1) == b"\x20", name
            held.append(client)
        assert node.stop() == 0
        for client in held:
            last = b""
            while more := client.recv(1000):
                last = more
            assert last[0] == 0xE0  # DISCONNECT, Server shutting down
            assert last[2] == 0x8B
            client.close()
        node.start()
        with _tcp(node.port) as reader:
            until(lambda: not node.over(), "the second start")
            _serve(reader, "reader")
            reader.sendall(codec.encode_subscribe(4, 7, [_all()]))
            assert _read(reader, 5) == bytes([0x90, 3, 0, 7, 1])
            reader.sendall(codec.PINGREQ)
            assert _read(reader, 2) == bytes([0xD0, 0])  # and no will before it
        assert node.stop() == 0


def _all() -> SubscriptionRequest:
    return SubscriptionRequest("plant/will", 1)
