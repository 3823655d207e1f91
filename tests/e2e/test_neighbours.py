"""What one client writes and does not read, on every transport, before CONNECT and after: it is cut, and counted."""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from broker_process import free_port, make_broker
from certificates import Authority
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import connect_packet

pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
SCHEMES = ("tcp", "tls", "ws", "wss")
MIB = 1 << 20
Clients = Callable[..., RawClient]


def frame(opcode: int, data: bytes) -> bytes:
    """As a client sends it, masked with zeros; up to 64 KiB."""
    head = bytes([0x80 | opcode])
    if len(data) < 126:
        return head + bytes([0x80 | len(data), 0, 0, 0, 0]) + data
    return head + b"\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


class Doors:
    """A broker with a listener of each kind and small limits."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("server")
        self.ports = {scheme: free_port() for scheme in SCHEMES}
        extra = [
            part for name, port in self.ports.items() for part in ("--listen", f"{name}://127.0.0.1:{port}")
        ]
        settings = {
            "tls.certificate": certificate,
            "tls.key": key,
            "durability": "none",
            "limits.pending_bytes_max": MIB,
            "limits.write_buffer_high": 64 << 10,
        }
        self.broker = make_broker(folder / "broker", settings, extra)

    def open(self, scheme: str, client_id: str = "") -> socket.socket:
        """Shaken hands and upgraded, and connected if it gets a client id; it receives into a small buffer."""
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(20)
        one.connect(("127.0.0.1", self.ports[scheme]))
        if scheme in ("tls", "wss"):
            context = ssl.create_default_context(cafile=str(self.authority.ca))
            one = context.wrap_socket(one, server_hostname="localhost")
        websocket = scheme in ("ws", "wss")
        if websocket:
            one.sendall(UPGRADE)
            assert b" 101 " in one.recv(4096)
        if client_id:
            packet = connect_packet(client_id, version=4, keep_alive_s=0)
            one.sendall(frame(2, packet) if websocket else packet)
            assert one.recv(100)
        return one

    def turned_away(self, scheme: str, reason: str) -> float:
        wanted = f":{self.ports[scheme]}"
        return sum(
            value
            for name, value in self.broker.metrics().items()
            if name.startswith("headrace_listener_turned_away_total")
            and wanted in name
            and f'reason="{reason}"' in name
        )


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("doors"))
    made.broker.start()
    try:
        yield made
    finally:
        finish(made.broker)


def flood(one: socket.socket, data: bytes, deadline_s: float) -> bool:
    """Send and never read; whether the broker ended it in time."""
    until = time.monotonic() + deadline_s
    one.settimeout(1)
    with contextlib.closing(one):
        while time.monotonic() < until:
            try:
                one.sendall(data)
            except TimeoutError:
                continue  # not read for a moment
            except (ssl.SSLError, OSError):
                return True
    return False


PINGS = bytes([0xC0, 0]) * 16_000
FLOODS = {
    "tcp": (True, PINGS),
    "tls": (True, PINGS),
    "ws": (True, frame(2, PINGS)),
    "wss": (True, frame(2, PINGS)),
    "ws before CONNECT": (False, frame(9, b"x" * 125) * 500),
    "wss before CONNECT": (False, frame(9, b"x" * 125) * 500),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_answers_that_nobody_reads_end_the_connection(doors: Doors, kind: str) -> None:
    connected, data = FLOODS[kind]
    scheme = kind.partition(" ")[0]
    process = psutil.Process(doors.broker.pid)
    before, counted = process.memory_info().rss, doors.turned_away(scheme, "pending_bytes")
    assert flood(doors.open(scheme, "deaf" if connected else ""), data, 60)
    assert doors.turned_away(scheme, "pending_bytes") == counted + 1
    assert process.memory_info().rss - before < 32 * MIB


class KeyUpdates:
    """Asks for new keys again and again, which Python's ssl has no call for: OpenSSL's own are called, with the SSL that
    stands behind the object's head and its socket."""

    ENDED = (1, 5, 6)  # SSL_ERROR_SSL, SSL_ERROR_SYSCALL, SSL_ERROR_ZERO_RETURN
    BEHIND = 24

    def __init__(self, one: ssl.SSLSocket) -> None:
        # Its symbols are those of the OpenSSL it uses; the driver of a database may have brought another one.
        library = getattr(_ssl, "__file__", None)
        if library is None:
            pytest.skip("this Python has OpenSSL within itself")
        self._one = one
        self._openssl = ctypes.CDLL(library)
        self._ssl = ctypes.c_void_p.from_address(id(one._sslobj) + self.BEHIND)  # type: ignore[attr-defined]

    def flood(self, deadline_s: float) -> bool:
        """Whether the broker ended it in time."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self._openssl.SSL_key_update(self._ssl, 1) != 1:
                return True
            done = self._openssl.SSL_do_handshake(self._ssl)
            if done != 1 and self._openssl.SSL_get_error(self._ssl, done) in self.ENDED:
                return True
        return False


@pytest.mark.parametrize("client_id", ["", "rekeying"])
@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_key_updates_without_end_are_cut(doors: Doors, clients: Clients, scheme: str, client_id: str) -> None:
    """A pass of the loop took all that one connection had sent, for seconds: others would see it here."""
    other = clients(doors.broker, "neighbour")
    counted = doors.turned_away(scheme, "tls_messages")
    with doors.open(scheme, client_id) as one:
        assert isinstance(one, ssl.SSLSocket)
        assert KeyUpdates(one).flood(30)
    assert doors.turned_away(scheme, "tls_messages") == counted + 1
    assert other.ping() == []


TINY = {"empty": frame(2, b""), "one byte": frame(2, b"\xc0") + frame(2, b"\x00"), "pings": frame(9, b"")}


@pytest.mark.parametrize("kind", TINY)
def test_tiny_frames_leave_room_for_others(doors: Doors, clients: Clients, kind: str) -> None:
    """It sends without a pause, and reads; another one is served all the while.

    That its turns come after a bounded number of frames is what the unit tests count; here no answer may take a second.
    """
    one = doors.open("ws", f"tiny-{kind}")
    other = clients(doors.broker, "neighbour")
    other.subscribe("n", qos=1)
    data = TINY[kind] * 20_000
    one.setblocking(False)
    longest, at = 0.0, 0
    for _ in range(150):
        with contextlib.suppress(BlockingIOError):
            at += one.send(data[at % len(data) :])
        with contextlib.suppress(BlockingIOError):
            one.recv(1 << 20)
        began = time.monotonic()
        other.deliver("n", os.urandom(8))
        other.receive()
        longest = max(longest, time.monotonic() - began)
    one.close()
    assert at > 100_000
    assert longest < 1.0
