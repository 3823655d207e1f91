"""The client's side of MQTT over WebSocket, against the server's side of the same library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from harness import Harness
from headrace.links.websocket_client import WebSocketClient
from headrace.mqtt import codec
from unit.bridge.remote import FakeTransport, Remote


class Upgraded:
    """A link over a WebSocket whose server the test plays."""

    def __init__(self, subprotocols: tuple[str, ...] = ("mqtt",)) -> None:
        self.remote = Remote(Harness(), rules=[])
        self.socket = FakeTransport()
        self.turns: list[Callable[[], None]] = []
        self.client = WebSocketClient(self.remote.link, "ws://h:1/there", 1 << 20, self.turns.append)
        self.server = ServerProtocol(subprotocols=[Subprotocol(name) for name in subprotocols])
        self.client.connection_made(self.socket)

    def read(self) -> list[Request | Frame]:
        """What the client sent since."""
        self.server.receive_data(self.socket.written)
        self.socket.written = b""
        return [event for event in self.server.events_received() if isinstance(event, Request | Frame)]

    def upgrade(self) -> None:
        [request] = self.read()
        assert isinstance(request, Request)
        assert request.path == "/there"
        self.server.send_response(self.server.accept(request))
        self.deliver()

    def deliver(self, size: int = 1 << 20) -> None:
        data = b"".join(self.server.data_to_send())
        for at in range(0, len(data), size):
            self.client.data_received(data[at : at + size])


def test_connect_follows_the_upgrade_in_a_binary_frame() -> None:
    upgraded = Upgraded()
    upgraded.upgrade()
    [frame] = upgraded.read()
    assert isinstance(frame, Frame)
    assert (frame.opcode, bytes(frame.data)[:1]) == (Opcode.BINARY, b"\x10")


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_packets_may_be_split_over_frames_and_reads(size: int) -> None:
    upgraded = Upgraded()
    upgraded.upgrade()
    connack = codec.encode_connack(5, False, 0)
    upgraded.server.send_binary(connack[:2], fin=False)
    upgraded.server.send_continuation(connack[2:], fin=True)
    upgraded.deliver(size)
    upgraded.remote.harness.sync()
    assert upgraded.remote.up == [False]


def test_a_server_that_refuses_the_upgrade_is_named() -> None:
    upgraded = Upgraded()
    assert len(upgraded.read()) == 1
    upgraded.server.send_response(upgraded.server.reject(404, "not here\n"))
    upgraded.deliver()
    assert upgraded.socket.closed
    upgraded.client.connection_lost(None)
    assert "404" in upgraded.remote.ended[0]


def test_garbage_ends_the_connection_with_a_reason() -> None:
    upgraded = Upgraded()
    upgraded.upgrade()
    upgraded.client.data_received(b"\xff\xff\xff\xff")
    assert upgraded.socket.closed
    upgraded.client.connection_lost(None)
    assert "WebSocket" in upgraded.remote.ended[0]


def test_close_says_so_and_ends_the_stream() -> None:
    upgraded = Upgraded()
    upgraded.upgrade()
    upgraded.read()
    upgraded.remote.link.say_goodbye()
    upgraded.remote.harness.worker.end_tick()
    *_, last = upgraded.read()
    assert isinstance(last, Frame)
    assert last.opcode is Opcode.CLOSE
    assert int.from_bytes(last.data[:2], "big") == CloseCode.NORMAL_CLOSURE
    assert upgraded.socket.closed
