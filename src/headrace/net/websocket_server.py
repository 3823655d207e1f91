"""MQTT over WebSocket (MQTT 5 section 6, RFC 6455): an asyncio protocol below, a transport above.

Sits between the socket's transport and a `Connection`, which sees a byte stream: frames may carry several packets or
part of one [MQTT-6.0.0-2]. Frames are parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from headrace.links.websocket_frames import DATA_FRAMES, WebSocketStream, taken
from headrace.net.connection import Connection

SUBPROTOCOLS: Final = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]  # [MQTT-6.0.0-3], and MQTT 3.1's
REQUEST_BYTES_MAX: Final = 16 << 10

_silent = logging.getLogger("headrace.net.websocket_server")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # bad input is answered, not logged line by line


class WebSocketTransport(WebSocketStream):
    """The server's side of one WebSocket. `frame_bytes_max` bounds what a frame may make us hold; `origins` are those
    of browsers' pages that may connect, empty for all of them. Who sends no Origin is no browser, and not held back by
    this. `paths` are those at which MQTT is served, empty for all of them."""

    def __init__(
        self,
        connection: Connection,
        frame_bytes_max: int,
        origins: Sequence[str],
        call_soon: Callable[..., object],
        paths: Sequence[str] = (),
    ) -> None:
        self._paths = paths
        self._connection = connection
        self._frames: ServerProtocol = ServerProtocol(
            origins=[None, *(Origin(origin) for origin in origins)] if origins else None,
            subprotocols=SUBPROTOCOLS,
            extensions=None,
            max_size=(None, frame_bytes_max),
            logger=_silent,
        )
        super().__init__(connection, self._frames, call_soon)
        self._closing = False
        self._request_bytes = 0

    # asyncio.Protocol: what the socket's transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._socket = transport
        self._connection.connection_made(self)

    def _parse_on(self) -> None:
        before = self._at
        super()._parse_on()
        if self._frames.state is State.CONNECTING:
            self._bound_request(self._at - before)
        if self._socket is not None:
            self._connection.note_below(len(self._frames.reader.buffer) + self._request_bytes)

    def _on_error(self, error: Exception) -> None:
        self._connection.failed(error)

    def _bound_request(self, more: int) -> None:
        self._request_bytes += more  # of which the parser keeps the lines that are whole
        if self._request_bytes > REQUEST_BYTES_MAX:
            self._connection.turn_away("handshake")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.give_up()
        self._connection.connection_lost(error)

    def _on_event(self, event: object) -> None:
        if isinstance(event, Request):
            self._upgrade(event)
        elif isinstance(event, Frame):
            self._frame(event)

    def _send(self) -> None:
        super()._send()
        self._connection.bound_pending()  # pongs are written here, and nobody else looks at them

    def _upgrade(self, request: Request) -> None:
        if self._frames.eof_sent:
            return  # what followed the request was no frame
        if not self._paths or request.path.partition("?")[0] in self._paths:
            response = self._frames.accept(request)
        else:
            response = self._frames.reject(404, f"MQTT is served at {', '.join(self._paths)}\n")
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._connection.count_turned_away("handshake")
        self._frames.send_response(response)
        request.headers.clear()  # the parser holds the request as long as there is the connection
        self._request_bytes = 0

    def _frame(self, frame: Frame) -> None:
        """Take one frame. After our own Close whatever comes is ignored; what came before the client's counts."""
        if self._closing:
            return
        if frame.opcode in DATA_FRAMES:
            self._connection.data_received(taken(frame))
        elif frame.opcode is Opcode.TEXT:
            self._closing = True
            self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")  # [MQTT-6.0.0-1]

    # asyncio.Transport: what the connection calls

    def close(self) -> None:
        """Say Close and wait for the client's; the connection's linger time bounds that."""
        transport = self._socket
        self._closing = True
        if transport is None:
            return
        self.resume_reading()
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        elif self._frames.state is State.CONNECTING:
            transport.close()
