"""MQTT over WebSocket, the client's side (MQTT 5 section 6, RFC 6455): an asyncio protocol below, a transport above.

Sits between the socket's transport and a `RemoteLink`, which sees a byte stream and hears of the connection when the
upgrade is through. Frames are parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from headrace.address import Location
from headrace.bridge.link import RemoteLink
from headrace.websocket_frames import DATA_FRAMES, WebSocketStream

SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-3]

_silent = logging.getLogger("headrace.bridge.websocket_tunnel")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # why a connection ended is told once, by the bridge


class WebSocketClient(WebSocketStream):
    """One WebSocket. `frame_bytes_max` bounds what a frame may make us hold."""

    def __init__(
        self, link: RemoteLink, address: Location, frame_bytes_max: int, call_soon: Callable[..., object]
    ) -> None:
        self._link = link
        self._frames: ClientProtocol = ClientProtocol(
            parse_uri(str(address)),
            subprotocols=[SUBPROTOCOL],
            max_size=(None, frame_bytes_max),
            logger=_silent,
        )
        super().__init__(link, self._frames, call_soon)

    # asyncio.Protocol: what the socket's transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._socket = transport
        self._frames.send_request(self._frames.connect())
        self._send()

    def _parse_on(self) -> None:
        super()._parse_on()
        if self._frames.parser_exc is not None:
            self._link.fail(f"WebSocket: {self._frames.parser_exc}")

    def _on_error(self, error: Exception) -> None:
        self._link.failed(error)
        self.abort()

    def _on_event(self, event: object) -> None:
        if isinstance(event, Response):
            self._upgraded(event)
        elif isinstance(event, Frame) and event.opcode in DATA_FRAMES:
            self._link.data_received(bytes(event.data))

    def _send(self) -> None:
        super()._send()
        self._link.bound_pending()  # pongs are written here

    def eof_received(self) -> bool:
        self._frames.receive_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
        self._link.connection_lost(error)

    def _upgraded(self, response: Response) -> None:
        wrong = self._frames.handshake_exc
        if wrong is not None:
            self._link.fail(f"no WebSocket: {response.status_code} {response.reason_phrase}: {wrong}")
            self.abort()
        else:
            self._link.connection_made(self)
