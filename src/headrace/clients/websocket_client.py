"""MQTT over WebSocket from the client's side (MQTT 5 section 6): an asyncio protocol below, a transport above.

A `Link` on top sees a byte stream. Frames are parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
import logging

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from headrace.clients.errors import ConnectionLost
from headrace.clients.link import Link
from headrace.websocket_frames import DATA_FRAMES, WebSocketStream

_silent = logging.getLogger("headrace.clients.websocket_client")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # why a connection ended is told once, by whoever asked for it


class WebSocketClient(WebSocketStream):
    """One WebSocket. `upgraded` is done when MQTT may be spoken; ConnectionLost if it never may."""

    def __init__(self, link: Link, url: str) -> None:
        self._link = link
        uri, mqtt = parse_uri(url), Subprotocol("mqtt")  # [MQTT-6.0.0-3]
        self._frames: ClientProtocol = ClientProtocol(uri, subprotocols=[mqtt], max_size=None, logger=_silent)
        super().__init__(link, self._frames, asyncio.get_running_loop().call_soon)
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # asyncio.Protocol: what the socket's transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._socket = transport
        self._link.connection_made(self)
        self._frames.send_request(self._frames.connect())
        self._send()

    def _on_event(self, event: object) -> None:
        if isinstance(event, Response):
            self._upgrade(event)
        elif isinstance(event, Frame) and event.opcode in DATA_FRAMES:
            self._link.data_received(bytes(event.data))

    def eof_received(self) -> bool:
        self._frames.receive_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
        if not self.upgraded.done():
            self.upgraded.set_exception(ConnectionLost(str(error or "the server closed it")))
        self._link.connection_lost(error)

    def _upgrade(self, response: Response) -> None:
        wrong = self._frames.handshake_exc
        if self.upgraded.done():
            return
        if wrong is None:
            self.upgraded.set_result(None)
        else:
            why = f"HTTP {response.status_code} instead of a WebSocket: {wrong}"
            self.upgraded.set_exception(ConnectionLost(why))
            self.abort()
