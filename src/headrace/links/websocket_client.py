"""MQTT over WebSocket, the client's side (MQTT 5 section 6, RFC 6455): an asyncio protocol below, a transport above.

Sits between the socket's transport and whoever is above, who sees a byte stream and hears of the connection when the
upgrade is through. Frames are parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from typing import Protocol as Shape

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from headrace.links.websocket_frames import DATA_FRAMES, Above, WebSocketStream, taken

SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-3]

_silent = logging.getLogger("headrace.links.websocket_client")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # why a connection ended is told once, by whoever is above


class Connecting(Above, Shape):
    """Reads and writes the byte stream of a client: the link of a bridge, or the one of `headrace pub` and `sub`."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...

    def fail(self, reason: str) -> None:
        """Hear that the server speaks no WebSocket, or not in this place."""

    def failed(self, error: Exception) -> None:
        """Hear of an exception that nobody expected."""

    def bound_pending(self) -> None:
        """Look at how much is not written yet: pongs are written without being asked for."""


class WebSocketClient(WebSocketStream):
    """The client's side of one WebSocket. `frame_bytes_max` bounds what a frame may make us hold, None: nothing
    does."""

    def __init__(
        self, above: Connecting, url: str, frame_bytes_max: int | None, call_soon: Callable[..., object]
    ) -> None:
        self._client = above
        self._frames: ClientProtocol = ClientProtocol(
            parse_uri(url), subprotocols=[SUBPROTOCOL], max_size=(None, frame_bytes_max), logger=_silent
        )
        super().__init__(above, self._frames, call_soon)

    # asyncio.Protocol: what the socket's transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._socket = transport
        self._frames.send_request(self._frames.connect())
        self._send()

    def _parse_on(self) -> None:
        super()._parse_on()
        if self._frames.parser_exc is not None:
            self._client.fail(f"WebSocket: {self._frames.parser_exc}")

    def _on_error(self, error: Exception) -> None:
        self._client.failed(error)
        self.abort()

    def _on_event(self, event: object) -> None:
        if isinstance(event, Response):
            self._upgraded(event)
        elif isinstance(event, Frame) and event.opcode in DATA_FRAMES:
            self._client.data_received(taken(event))

    def _send(self) -> None:
        super()._send()
        self._client.bound_pending()

    def eof_received(self) -> bool:
        self._frames.receive_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.give_up()
        self._client.connection_lost(error)

    def _upgraded(self, response: Response) -> None:
        wrong = self._frames.handshake_exc
        if wrong is not None:
            self._client.fail(f"no WebSocket: {response.status_code} {response.reason_phrase}: {wrong}")
            self.abort()
        else:
            self._client.connection_made(self)
