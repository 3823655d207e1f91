"""The WebSocket layer between a socket and a connection, against the client side of the same library."""

from __future__ import annotations

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
from headrace.net.connection import Connection, ConnectionSet
from headrace.net.websocket import WebSocketTransport


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
    ) -> None:
        self.harness = Harness()
        self.socket = Socket()
        self.connections = ConnectionSet(10, 1000)
        self.connection = Connection(self.harness.broker, self.connections)
        self.server = WebSocketTransport(self.connection, 3000, origins)
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


@pytest.mark.parametrize("path", ["/mqtt", "/", "/mqtt?token=x"])
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


@pytest.mark.parametrize(("path", "subprotocols", "status"), [("/else", ("mqtt",), 404), ("/mqtt", (), 400)])
def test_a_wrong_path_or_subprotocol_is_refused(
    path: str, subprotocols: tuple[str, ...], status: int
) -> None:
    client = Client(path, subprotocols)
    assert client.response is not None
    assert client.response.status_code == status
    assert client.socket.closed


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
