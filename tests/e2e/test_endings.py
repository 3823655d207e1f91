"""What a connection leaves in memory when it has ended: nothing, whatever it came over and however it ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import uvloop

from benchmarks.flood_packets import connect, publish
from certificates import Authority
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, encode_frame
from headrace.testing import Broker, BrokerProcess

pytestmark = pytest.mark.slow

NUMBER = 8
PATIENCE_S = 5.0
HANDSHAKE_S = 0.3
GROWN_MAX_MB = 12.0  # less than one of the rounds has held in all
BANNED = "127.0.0.9"
# Of each of these a connection has at least one, or the calls and errors of its end have.
KINDS = {
    *(
        "Connection",
        "FrameConnection",
        "ServerProtocol",
        "ServerFrames",
        "DeviceLink",
        "FrameVoice",
        "TopicAliases",
    ),
    *("PlainTransport", "WebSocketTransport", "StreamReader", "Request", "Headers", "generator", "Session"),
    *("SSLTransport_Socket", "SSLEngineDirect", "WatchedLoop", "WriteWatermarks", "TransportSocket", "Task"),
    *("coroutine", "frame", "traceback", "ConnectionResetError", "SSLError", "TimeoutError"),
}
RESET = struct.pack("ii", 1, 0)
PING, DISCONNECT, RESERVED, HALF = b"\xc0\x00", b"\xe0\x00", b"\xf0\x00", b"\x30\x7f\x00\x01a"


class Client:
    """A client of one listener: over `scheme`, behind a proxy if `proxy` is the source that this tells."""

    context: ssl.SSLContext

    def __init__(self, at: Door, source: str = "127.0.0.1") -> None:
        self.at = at
        if isinstance(at.address, str):
            self.socket: socket.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.socket()
            self.socket.bind((source, 0))
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(at.address)
        self._proxy = b"PROXY TCP4 %s 127.0.0.1 1 2\r\n" % source.encode() if at.proxied else b""

    def begin(self, request: bytes | None = None) -> Client:
        """Shake hands: with what the listener has in front of packets."""
        self.socket.sendall(self._proxy)
        if self.at.encrypted:
            self.socket = Client.context.wrap_socket(self.socket, server_hostname="localhost")
        if self.at.websocket:
            self.socket.sendall(upgrade() if request is None else request)
            answer = b""
            while b"\r\n\r\n" not in answer and (more := self.socket.recv(1)):
                answer += more
        return self

    def log_in(self) -> Client:
        self.begin().send(self.at.hello)
        self.socket.recv(4096)
        return self

    def send(self, data: bytes) -> None:
        self.socket.sendall(frame(data) if self.at.websocket else data)

    def until_end(self) -> None:
        """Read to the end of the stream; a WebSocket's Close is the last word of the broker."""
        with contextlib.suppress(OSError):
            while data := self.socket.recv(65536):
                if self.at.websocket and data[-4:-3] == b"\x88":
                    break
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()


class Door:
    """A listener as its clients see it."""

    def __init__(self, url: str, scheme: str, address: str | tuple[str, int]) -> None:
        self.address = address
        self.proxied = "proxy=" in url
        self.encrypted = scheme in ("tls", "wss", "frames")
        self.websocket = scheme in ("ws", "wss")
        self.frames = scheme in ("frame", "frames")
        self.hello = encode_frame(2, HELLO, b"sn", hello_body("", b"")) if self.frames else connect(b"c")


def upgrade(path: str = "/mqtt", protocol: str = "mqtt") -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


def frame(data: bytes, opcode: int = 2) -> bytes:
    """A masked frame of a client; the mask changes nothing."""
    size = len(data)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = b"\xfe" + struct.pack("!H", size) if size < 65536 else b"\xff" + struct.pack("!Q", size)
    return bytes([0x80 | opcode]) + length + bytes(4) + data


def half_hello() -> bytes:
    """The beginning of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        Client.context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[:100]


def beginning(door: Door) -> bytes:
    """A part of what comes first at this listener, not all of it."""
    if door.proxied:
        return b"PROXY TC"
    if door.encrypted:
        return half_hello()
    return upgrade()[:60] if door.websocket else door.hello[:4]


# Ways in which NUMBER connections end


def each(end: Callable[[Door], None]) -> Callable[[Door], None]:
    def ends(door: Door) -> None:
        for _ in range(NUMBER):
            end(door)

    return ends


def in_the_handshake(door: Door) -> None:
    client = Client(door)
    client.socket.sendall(beginning(door))
    client.socket.close()


def reset_in_the_handshake(door: Door) -> None:
    client = Client(door)
    client.socket.sendall(beginning(door))
    client.reset()


def timed_out(door: Door) -> None:
    clients = [Client(door) for _ in range(NUMBER)]
    for client in clients:
        client.socket.sendall(beginning(door))
    for client in clients:
        client.until_end()


def wrong_handshake(door: Door) -> None:
    client = Client(door)
    client.socket.sendall(b"nothing that is spoken here\r\n\r\n" * 3)
    client.until_end()


def before_connect(door: Door) -> None:
    Client(door).begin().socket.close()


def half_a_connect(door: Door) -> None:
    client = Client(door).begin()
    client.send(door.hello[:5])
    client.socket.close()


def refused(door: Door) -> None:
    client = Client(door).begin()
    client.send(b"\xff" * 70_000 if door.frames else connect(b"c", version=9))
    client.until_end()


def in_a_packet(door: Door) -> None:
    client = Client(door).log_in()
    client.send(HALF)
    client.socket.close()


def reset(door: Door) -> None:
    Client(door).log_in().reset()


def closed_by_the_client(door: Door) -> None:
    client = Client(door).log_in()
    if not door.frames:
        client.send(DISCONNECT)
    client.socket.close()


def closed_by_the_broker(door: Door) -> None:
    client = Client(door).log_in()
    client.send(b"\xff" * 16 if door.frames else RESERVED)
    client.until_end()


def taken_over(door: Door) -> None:
    older, newer = Client(door).log_in(), Client(door).log_in()
    if not door.frames:
        older.until_end()
    older.socket.close()
    newer.socket.close()


def banned(door: Door) -> None:
    client = Client(door, source=BANNED)
    with contextlib.suppress(OSError):
        client.begin()
    client.until_end()


def refused_upgrade(door: Door) -> None:
    Client(door).begin(upgrade(protocol="chat")).until_end()


def not_found(door: Door) -> None:
    Client(door).begin(b"POST /mqtt HTTP/1.1\r\nHost: a\r\n\r\n").until_end()


def broken_frame(door: Door) -> None:
    client = Client(door).log_in()
    client.socket.sendall(b"\x82\x01a")  # not masked
    client.until_end()


def close_frame(door: Door) -> None:
    client = Client(door).log_in()
    client.socket.sendall(frame(b"\x03\xe8", 8))
    client.until_end()


OF_ALL = (
    in_the_handshake,
    reset_in_the_handshake,
    wrong_handshake,
    before_connect,
    half_a_connect,
    refused,
    in_a_packet,
    reset,
    closed_by_the_client,
    closed_by_the_broker,
    taken_over,
)
OF_WEBSOCKETS = (refused_upgrade, not_found, broken_frame, close_frame)


def ways(door: Door) -> list[tuple[str, Callable[[Door], None]]]:
    """How a connection of this listener may end."""
    found = list(OF_ALL) + (list(OF_WEBSOCKETS) if door.websocket else [])
    found += [] if isinstance(door.address, str) else [banned]
    return [(end.__name__, each(end)) for end in found] + [("timed_out", timed_out)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("localhost")
    Client.context = ssl.create_default_context(cafile=str(authority.ca))
    (folder / "bans").write_text(f"{BANNED}\n")
    return {
        "tls.certificate": str(certificate),
        "tls.key": str(key),
        "access.ban_file": str(folder / "bans"),
    }


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No collector helps, and nobody keeps what is logged, an error with its calls least of all."""
    before = structlog.get_config() if structlog.is_configured() else None
    collects = gc.isenabled()
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(50),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    gc.collect()
    gc.freeze()  # what is there before is not looked through again and again
    gc.disable()
    yield
    gc.unfreeze()
    if collects:
        gc.enable()
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)


def there() -> Counter[str]:
    return Counter(name for one in gc.get_objects() if (name := type(one).__name__) in KINDS)


async def left_by(end: Callable[[Door], None], door: Door) -> Counter[str]:
    """What is in memory more than before of KINDS, once NUMBER connections have ended so."""
    await asyncio.to_thread(end, door)  # what is made once
    gc.collect()
    before = there()
    await asyncio.to_thread(end, door)
    until = time.monotonic() + PATIENCE_S
    while True:
        left = there() - before
        if not any(count >= NUMBER for count in left.values()) or time.monotonic() > until:
            return Counter({name: count for name, count in left.items() if count >= NUMBER})
        await asyncio.sleep(0.01)


async def left_at(url: str, settings: dict[str, object]) -> dict[str, Counter[str]]:
    found = {}
    async with Broker({**settings, "limits.connect_timeout_s": HANDSHAKE_S}, listeners=[url]) as broker:
        scheme = url.partition(":")[0]
        place = broker.listeners[0].partition("?")[0]
        port = place.rpartition(":")[2].rstrip("/")
        address = place.removeprefix("unix://") if scheme == "unix" else (broker.host, int(port))
        door = Door(url, scheme, address)
        for name, end in ways(door):
            left = await left_by(end, door)
            if left:
                found[name] = left
    return found


@pytest.mark.parametrize("proxy", ["", "?proxy=required"])
@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss", "frame", "frames", "unix"])
def test_no_connection_leaves_anything(
    scheme: str, proxy: str, settings: dict[str, object], tmp_path: Path
) -> None:
    if scheme == "unix":
        url = f"unix://{tmp_path}/socket{proxy}"
    else:
        url = f"{scheme}://127.0.0.1:0{proxy}"
    assert uvloop.run(left_at(url, settings)) == {}


# Memory of the process


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def large_frames(door: Door) -> None:
    """Come with a frame as large as may be, in which there is no CONNECT."""
    for _ in range(12):
        client = Client(door).begin()
        with contextlib.suppress(OSError):
            client.send(b"\xff" * (2 << 20))
        client.until_end()


def last_messages(door: Door) -> None:
    """Go without Close, after a message of 900 KB."""
    message = publish(b"t", bytes(900_000))
    for _ in range(12):
        client = Client(door).log_in()
        client.send(message)
        client.send(PING)
        client.socket.recv(4)
        client.socket.close()


def half_handshakes(door: Door) -> None:
    for _ in range(10):
        for client in [Client(door) for _ in range(40)]:
            client.socket.sendall(beginning(door))
            client.socket.close()


@pytest.mark.parametrize(
    ("scheme", "end"),
    [("ws", large_frames), ("ws", last_messages), ("tls", half_handshakes)],
)
def test_the_process_is_as_large_as_before(
    scheme: str, end: Callable[[Door], None], settings: dict[str, object]
) -> None:
    """What one round takes for good, every round takes: the second and third take next to nothing."""
    with BrokerProcess(settings, listeners=[f"{scheme}://127.0.0.1:0"]) as broker:
        door = Door(scheme, scheme, (broker.host, int(broker.listeners[0].rpartition(":")[2])))
        end(door)
        before = resident_mb(broker.pid)
        end(door)
        end(door)
        assert resident_mb(broker.pid) - before < GROWN_MAX_MB
