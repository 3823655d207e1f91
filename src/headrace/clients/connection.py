"""A client's connection: open, ask and be answered, stay alive, end. Runs on the loop.

Each request waits under its packet id for one answer. When the connection ends, everybody who waits gets the same
error, and it stays in `lost`.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

from headrace.clients.endpoint import Endpoint
from headrace.clients.errors import ConnectionLost, ConnectRefused
from headrace.clients.link import Link
from headrace.clients.window import Window
from headrace.errors import HeadraceError, ProtocolError
from headrace.mqtt import codec, reason_codes
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import Connack, Connect, Disconnect, Suback, Unsuback
from headrace.mqtt.properties import Properties

_CLOSE_TIMEOUT_S = 2.0
_CONNACK = 0  # the key under which `open` waits; packet ids start at 1
_RETURN_CODES = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
Answer = TypeVar("Answer")


class Connection(ClientHandler):
    """One connection of a client to a broker. `properties` are the server's (of the CONNACK). The `on_...` methods are
    the protocol's, not the user's."""

    def __init__(
        self,
        host: str,
        port: int,
        connect: Connect,
        open_timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        websocket_path: str = "",
        farewell: Properties | None = None,
    ) -> None:
        """Begin unconnected. `farewell`: properties of the DISCONNECT, if `close` is not given others."""
        self._farewell = farewell
        self._endpoint = Endpoint(host, port, websocket_path, tls)
        self.connect = connect
        self.version = connect.version
        self.properties = Properties()
        self.lost: HeadraceError | None = None
        self._open_timeout_s = open_timeout_s
        wanted = connect.properties
        packet_size = wanted.maximum_packet_size or VARINT_MAX + 5
        self._protocol = ClientProtocol(self, packet_size, wanted.topic_alias_maximum or 0)
        self._link = Link(self._protocol.receive_data, self._disconnected)
        self._window = Window()
        self._answers: dict[int, asyncio.Future[object]] = {}
        self._keep_alive: asyncio.TimerHandle | None = None
        self._ping_unanswered = False

    async def open(self) -> Connack:
        """Connect and wait for the CONNACK; ConnectRefused, ConnectionLost, OSError or TimeoutError."""
        try:
            async with asyncio.timeout(self._open_timeout_s):
                await self._endpoint.dial(self._link)
                connack = await self._ask(_CONNACK, self._protocol.connect(self.connect), Connack)
        except TimeoutError:
            limit = f"within {self._open_timeout_s:g} s"
            raise TimeoutError(f"no broker answers at {self._endpoint.address} {limit}") from None
        if connack.reason_code:
            refused = ConnectRefused(connack.reason_code, _refusal(self.version, connack))
            self._end(refused)
            raise refused
        self.properties = connack.properties
        self._window.open(connack.properties.receive_maximum or 65_535)
        self._schedule_ping()
        return connack

    async def close(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """Say goodbye and close. A reason code of 4 asks for the Will to be sent."""
        if self.lost is None:
            self._send(codec.encode_disconnect(self.version, reason_code, properties or self._farewell))
            self._end(ConnectionLost("closed here"), close=False)
            await self._link.finish(_CLOSE_TIMEOUT_S)
        await self._link.closed.wait()

    def abort(self) -> None:
        """Drop the connection without a word, as a crash would."""
        self._link.abort()
        self._end(ConnectionLost("aborted here"))

    def on_connack(self, packet: Connack) -> None:
        self._answer(_CONNACK, packet)

    def on_suback(self, packet: Suback) -> None:
        self._answer(packet.packet_id, packet)

    def on_unsuback(self, packet: Unsuback) -> None:
        self._answer(packet.packet_id, packet)

    def on_pingresp(self) -> None:
        self._ping_unanswered = False

    def on_disconnect(self, packet: Disconnect) -> None:
        why = packet.properties.reason_string or reason_codes.name(packet.reason_code)
        self._end(ConnectionLost(f"the server disconnected: {why}", packet.reason_code))

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._send(self._protocol.refusal(error))
        self._end(ConnectionLost(f"the server broke the protocol: {error}", error.reason_code))

    def _request(self, key: int, packet: bytes) -> asyncio.Future[object]:
        """Send a packet; the future gets its answer, or the reason why none will come."""
        if self.lost is not None:
            raise self.lost
        waiting: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._answers[key] = waiting
        self._pace()
        self._send(packet)
        return waiting

    async def _ask(self, key: int, packet: bytes, kind: type[Answer]) -> Answer:
        """Send a packet and wait for its answer."""
        answer = await self._request(key, packet)
        assert isinstance(answer, kind)
        return answer

    def _answer(self, key: int, value: object) -> None:
        waiting = self._answers.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(value)
        self._pace()

    def _pace(self) -> None:
        """Pause reading, or go on, if it is time to."""

    def _send(self, data: bytes) -> None:
        self._link.write(data)

    def _disconnected(self, error: Exception | None) -> None:
        self._end(ConnectionLost(str(error) if error else "the server closed it"))

    def _schedule_ping(self) -> None:
        interval_s = self.properties.server_keep_alive
        if interval_s is None:
            interval_s = self.connect.keep_alive_s
        if interval_s:
            self._keep_alive = asyncio.get_running_loop().call_later(interval_s, self._ping)

    def _ping(self) -> None:
        if self._ping_unanswered:
            self._link.abort()
            self._end(ConnectionLost("no PINGRESP"))
            return
        self._ping_unanswered = True
        self._send(codec.encode_pingreq())
        self._schedule_ping()

    def _end(self, why: HeadraceError, close: bool = True) -> None:
        """Note that the connection is over: whoever waits hears why. The first reason counts."""
        if self.lost is not None:
            return
        self.lost = why
        self._protocol.stop()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if close:
            self._link.close()
        self._window.fail(why)
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(why)
        self._answers.clear()


def _refusal(version: int, connack: Connack) -> str:
    if version == 5:
        return connack.properties.reason_string or reason_codes.name(connack.reason_code)
    return _RETURN_CODES.get(connack.reason_code, f"return code {connack.reason_code}")
