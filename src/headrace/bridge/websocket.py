"""MQTT over WebSocket, the client's side (MQTT 5 section 6, RFC 6455): an asyncio protocol below, a transport above.

Sits between the socket's transport and a `RemoteLink`, which sees a byte stream and hears of the connection when the
upgrade is through. Frames are parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from headrace.bridge.address import RemoteAddress
from headrace.bridge.link import RemoteLink

SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-3]
_DATA: Final = (Opcode.BINARY, Opcode.CONT)

_silent = logging.getLogger("headrace.bridge.websocket")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # why a connection ended is told once, by the bridge


class WebSocketClient(asyncio.Transport):
    """One WebSocket. `frame_bytes_max` bounds what a frame may make us hold."""

    def __init__(self, link: RemoteLink, address: RemoteAddress, frame_bytes_max: int) -> None:
        super().__init__()
        self._link = link
        self._socket: asyncio.Transport | None = None
        self._frames = ClientProtocol(
            parse_uri(str(address)),
            subprotocols=[SUBPROTOCOL],
            max_size=(None, frame_bytes_max),
            logger=_silent,
        )

    # asyncio.Protocol: what the socket's transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._socket = transport
        self._frames.send_request(self._frames.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Response):
                self._upgraded(event)
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self._link.data_received(bytes(event.data))
        self._send()
        if self._frames.parser_exc is not None:
            self._link.fail(f"WebSocket: {self._frames.parser_exc}")

    def eof_received(self) -> bool:
        self._frames.receive_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._link.connection_lost(error)

    def pause_writing(self) -> None:
        self._link.pause_writing()

    def resume_writing(self) -> None:
        self._link.resume_writing()

    def _upgraded(self, response: Response) -> None:
        wrong = self._frames.handshake_exc
        if wrong is not None:
            self._link.fail(f"no WebSocket: {response.status_code} {response.reason_phrase}: {wrong}")
            self.abort()
        else:
            self._link.connection_made(self)

    def _send(self) -> None:
        """Write what the frame layer wants to say; b"" among it asks for the end of the stream."""
        transport = self._socket
        if transport is None:
            return
        for data in self._frames.data_to_send():
            if data:
                transport.write(data)
            else:
                transport.close()

    # asyncio.Transport: what the link calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._send()

    def close(self) -> None:
        """Say Close; nobody waits for the answer of a broker that is left."""
        if self._socket is None:
            return
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None:
            self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)
