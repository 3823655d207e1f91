"""The WebSocket layer between a socket and a connection, against the client side of the same library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from harness import Harness
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import Properties
from headrace.net.connection import STRANGERS_BYTES_MAX, Connection, ConnectionSet
from headrace.net.websocket_server import WebSocketTransport


class Socket:
    """The transport below: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 5) if name == "peername" else default


class Client:
    """A WebSocket client on top of a broker in memory."""

    def __init__(
        self,
        path: str = "/mqtt",
        subprotocols: tuple[str, ...] = ("mqtt",),
        upgrade: bool = True,
        origin: str | None = None,
        origins: tuple[str, ...] = (),
        frame_bytes_max: int = 3000,
        paths: tuple[str, ...] = (),
    ) -> None:
        self.harness = Harness()
        self.socket = Socket()
        self.connections = ConnectionSet(10, 1000, pending_bytes_max=100_000)
        self.connection = Connection(self.harness.worker, self.connections)
        self.turns: list[Callable[[], None]] = []
        self.server = WebSocketTransport(self.connection, frame_bytes_max, origins, self.turns.append, paths)
        self.server.connection_made(self.socket)  # type: ignore[arg-type]
        self.frames = ClientProtocol(
            parse_uri(f"ws://localhost{path}"),
            origin=None if origin is None else Origin(origin),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
        )
        self.response: Response | None = None
        self.received = b""
        self.opcodes: list[Opcode] = []
        if upgrade:
            self.frames.send_request(self.frames.connect())
            self.exchange()

    def exchange(self, chunk: int = 1 << 20) -> None:
        """Carry bytes both ways until nobody has anything to say."""
        data = b"".join(self.frames.data_to_send())
        for start in range(0, len(data), chunk):
            self.server.data_received(data[start : start + chunk])
        self.harness.sync()
        answer, self.socket.written = self.socket.written, b""
        if answer:
            self.frames.receive_data(answer)
        for event in self.frames.events_received():
            if isinstance(event, Response):
                self.response = event
            elif isinstance(event, Frame):
                self.opcodes.append(event.opcode)
                if event.opcode is Opcode.BINARY:
                    self.received += bytes(event.data)

    def send(self, data: bytes, chunk: int = 1 << 20) -> None:
        self.frames.send_binary(data)
        self.exchange(chunk)


def connect(client_id: str = "c", will: Will | None = None) -> bytes:
    return codec.encode_connect(Connect(4, client_id, True, 0, None, None, will, Properties()))


CONNACK = bytes([0x20, 2, 0, 0])
PING, PONG = bytes([0xC0, 0]), bytes([0xD0, 0])


@pytest.mark.parametrize("path", ["/mqtt", "/", "/mqtt?token=x", "/mqtt/", "/ws", "/websocket", "/a/b%20c"])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_upgrade_connect_and_answer_in_a_binary_frame(path: str, chunk: int) -> None:
    client = Client(path)
    assert client.response is not None
    assert client.response.status_code == 101
    assert client.frames.subprotocol == "mqtt"  # [MQTT-6.0.0-4]
    client.send(connect(), chunk)
    assert client.received == CONNACK
    assert client.opcodes == [Opcode.BINARY]
    assert client.connection.peer() == "192.0.2.1:5"


@pytest.mark.parametrize(
    ("path", "subprotocols", "status"),
    [
        ("/mqtt", ("mqtt",), 101),
        ("/ws?token=x", ("mqtt",), 101),
        ("/else", ("mqtt",), 404),
        ("/mqtt/", ("mqtt",), 404),
        ("/", ("mqtt",), 404),
        ("/mqtt", (), 400),
    ],
)
def test_a_wrong_path_or_subprotocol_is_refused(
    path: str, subprotocols: tuple[str, ...], status: int
) -> None:
    client = Client(path, subprotocols, paths=("/mqtt", "/ws"))
    assert client.response is not None
    assert client.response.status_code == status
    assert client.socket.closed == (status != 101)
    if status == 404:
        assert client.response.body == b"MQTT is served at /mqtt, /ws\n"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://console.example", 101),
        ("https://b.example:8443", 101),
        (None, 101),  # no browser
        ("https://evil.example", 403),
        ("http://console.example", 403),
        ("null", 403),
    ],
)
def test_pages_of_other_origins_are_refused(origin: str | None, status: int) -> None:
    client = Client(origin=origin, origins=("https://console.example", "https://b.example:8443"))
    assert client.response is not None
    assert client.response.status_code == status
    assert client.socket.closed == (status == 403)
    assert client.connections.turned_away["handshake"] == (status == 403)
    assert Client(origin="https://evil.example").response.status_code == 101  # type: ignore[union-attr]


def test_mqtt_3_1_s_subprotocol() -> None:
    client = Client(subprotocols=("mqttv3.1",))
    assert client.frames.subprotocol == "mqttv3.1"


def test_one_frame_of_several_packets_and_packets_in_many_frames() -> None:
    """[MQTT-6.0.0-2]"""
    client = Client()
    client.send(connect() + PING + PING)
    assert client.received == CONNACK + PONG + PONG
    for byte in PING:
        client.send(bytes([byte]))
    assert client.received == CONNACK + PONG * 3


def test_fragments_and_pings_between_them() -> None:
    client = Client()
    data = connect()
    client.frames.send_binary(data[:5], fin=False)
    client.frames.send_ping(b"still there?")
    client.frames.send_continuation(data[5:], fin=True)
    client.exchange()
    assert client.received == CONNACK
    assert Opcode.PONG in client.opcodes


def test_a_text_frame_closes_with_1003() -> None:
    """[MQTT-6.0.0-1]"""
    client = Client()
    client.frames.send_text(connect())
    client.exchange()
    assert client.frames.close_rcvd is not None
    assert client.frames.close_rcvd.code == 1003
    assert client.socket.closed
    assert client.received == b""


def test_a_frame_that_is_too_large_closes_with_1009() -> None:
    client = Client()
    client.send(bytes(3001))
    assert client.frames.close_rcvd is not None
    assert client.frames.close_rcvd.code == 1009
    assert client.socket.closed


def test_disconnect_and_close_in_one_segment_is_a_normal_end() -> None:
    client = Client()
    other = client.harness.client("watcher")
    other.subscribe("will")
    client.send(connect(will=Will("will", b"gone", 0, False, b"", 0, -1)))
    client.frames.send_binary(bytes([0xE0, 0]))
    client.frames.send_close(1000)
    client.exchange()
    client.server.connection_lost(None)
    client.harness.sync()
    assert client.socket.closed
    assert other.publishes() == []
    assert client.frames.close_rcvd is not None
    assert client.frames.close_rcvd.code == 1000


def test_the_broker_s_end_is_a_close_frame_and_waits_for_the_client_s() -> None:
    client = Client()
    client.send(connect() + connect())  # a second CONNECT is a protocol error [MQTT-3.1.0-2]
    assert client.frames.close_rcvd is not None
    assert client.frames.close_rcvd.code == 1000
    client.exchange()  # the client's Close
    assert client.socket.closed


@pytest.mark.parametrize(
    "data", [b"\x10\x0c\x00\x04MQTT", b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"x" * 20_000]
)
def test_what_is_no_websocket_is_closed(data: bytes) -> None:
    client = Client(upgrade=False)
    client.server.data_received(data + b"\r\n\r\n")
    assert client.socket.closed


def test_back_pressure_passes_through() -> None:
    client = Client()
    client.send(connect())
    seen = []
    for step in (client.server.pause_writing, client.server.resume_writing):
        step()
        seen.append(client.connection.paused)
    for step in (client.connection.pause_reading, client.connection.resume_reading):
        step()
        seen.append(client.socket.reading)
    assert seen == [True, False, False, True]


def frame(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    """As a client sends it, masked with zeros."""
    return bytes([fin << 7 | opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


TINY = {
    "empty": frame(Opcode.BINARY, b""),
    "one byte": frame(Opcode.BINARY, PING[:1]) + frame(Opcode.BINARY, PING[1:]),
    "fragments": frame(Opcode.BINARY, b"", fin=False) + frame(Opcode.CONT, b""),
    "pings": frame(Opcode.PING, b""),
}


@pytest.mark.parametrize("kind", TINY)
def test_tiny_frames_take_turns(kind: str) -> None:
    """What one pass of the loop parses is bounded in frames, and nothing more is read until they are through."""
    client = Client()
    client.send(connect())
    seen: list[int] = []
    parse = client.server._on_event
    client.server._on_event = lambda event: (seen.append(1), parse(event))[1]  # type: ignore[method-assign,func-returns-value]
    client.server.data_received(TINY[kind] * 10_000)
    turns = 0
    while client.turns:
        assert 0 < len(seen) <= 256 + 2048 // 6
        assert not client.socket.reading
        seen.clear()
        client.socket.written = b""  # it reads what it gets
        client.harness.sync()
        assert len(client.turns) == 1
        client.turns.pop()()
        turns += 1
    assert turns >= 8
    assert client.socket.reading
    client.exchange()
    assert client.connection.closed is False


def test_every_byte_in_a_frame_of_its_own_keeps_its_place() -> None:
    client = Client()
    client.send(connect())
    packets = codec.encode_publish(4, b"t", b"x" * 60, 0, False, False, 0, b"", -1) * 100
    client.server.data_received(b"".join(frame(Opcode.BINARY, bytes([byte])) for byte in packets))
    while client.turns:
        client.turns.pop()()
        client.harness.sync()
    assert client.harness.broker.fold.tenant("default").counters.publishes_received == 100


def test_pongs_that_nobody_reads_end_the_connection() -> None:
    """Before CONNECT as well: the transport's buffer is what is looked at, whoever filled it."""
    client = Client()
    client.connection.pause_writing()
    for _ in range(2000):
        if not client.socket.closed:
            client.server.data_received(frame(Opcode.PING, b"x" * 100))
    assert client.socket.closed
    assert len(client.socket.written) <= 100_000 + 102
    assert client.connections.turned_away["pending_bytes"] == 1


def test_who_is_not_read_gets_nothing_parsed() -> None:
    client = Client()
    client.send(connect())
    client.connection.pause_reading()
    client.server.data_received(frame(Opcode.BINARY, PING) * 3)
    assert not client.socket.reading
    assert client.turns == []
    client.connection.resume_reading()
    client.turns.pop()()
    client.exchange()
    assert client.received == CONNACK + PONG * 3
    assert client.socket.reading


def test_what_strangers_hold_of_a_frame_counts_against_all_of_them() -> None:
    client = Client(frame_bytes_max=1 << 20)
    connections = client.connections
    client.server.data_received(bytes([0x82, 0xFF]) + (900_000).to_bytes(8, "big") + bytes(4))
    for _ in range(100):
        client.server.data_received(bytes(1000))
    assert 90_000 < connections.strangers_bytes <= 100_014
    connections.strangers_bytes += STRANGERS_BYTES_MAX  # there are others
    client.server.data_received(bytes(1000))
    assert client.socket.closed
    assert connections.turned_away["strangers_bytes"] == 1
    client.server.connection_lost(None)
    assert connections.strangers_bytes == STRANGERS_BYTES_MAX


def test_half_a_frame_goes_with_its_connection() -> None:
    client = Client(frame_bytes_max=1 << 20)
    client.server.data_received(bytes([0x82, 0xFF]) + (900_000).to_bytes(8, "big") + bytes(2000))
    held = client.server._frames.reader.buffer
    assert len(held) > 1000
    client.server.connection_lost(None)
    assert len(held) == 0


def test_frames_of_who_is_let_in_count_against_nobody() -> None:
    client = Client(frame_bytes_max=1 << 20)
    client.send(connect("x" * 9000), 1000)
    assert client.received == CONNACK
    assert client.connections.strangers_bytes == 0
    packet = codec.encode_publish(4, b"t", b"x" * 60_000, 0, False, False, 0, b"", -1)
    client.frames.send_binary(packet)
    client.server.data_received(b"".join(client.frames.data_to_send())[:50_000])
    assert client.connections.strangers_bytes == 0


def test_a_request_without_end_is_cut() -> None:
    client = Client(upgrade=False)
    client.server.data_received(b"GET /mqtt HTTP/1.1\r\n")
    for number in range(30):
        if not client.socket.closed:
            client.server.data_received(b"X-%d: " % number + b"x" * 1000 + b"\r\n")
    assert client.socket.closed
    assert client.connections.turned_away["handshake"] == 1


def test_an_error_of_ours_costs_this_connection() -> None:
    client = Client()
    client.server._on_event = None  # type: ignore[method-assign,assignment]
    client.server.data_received(frame(Opcode.PING, b""))
    assert client.socket.closed
    assert client.connections.turned_away["error"] == 1
