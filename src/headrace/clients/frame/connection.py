"""One connection that speaks frames: ask and be answered, stay alive, end. Runs on the loop.

Responses to one opcode come in the order of the requests, so who asks waits in a line of its opcode. When the connection
ends, everybody who waits gets the same error, and it stays in `lost`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from headrace.address import locate_remote
from headrace.clients.endpoint import Endpoint
from headrace.clients.errors import ConnectionLost
from headrace.clients.frame.errors import refused
from headrace.clients.link import Link
from headrace.errors import HeadraceError, ProtocolError
from headrace.frames.bodies import Pulled, ack_body, cluster_body, hello_body, pull_body
from headrace.frames.client import ClientFrames, ResponseHandler
from headrace.frames.frame import ACK, HELLO, JOIN, LEAVE, NAMES, PING, PULL, encode_frame
from headrace.mqtt import reason_codes as rc

PORTS = {"frame": 6800, "frames": 6801}
_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Access:
    """The address of the broker, and who comes. `version` is that of the frames; in version 1 an SN is one byte."""

    endpoint: Endpoint
    sn: bytes
    version: int = 2
    user: str = ""
    password: bytes = b""
    open_timeout_s: float = 10.0
    heartbeat_s: float = 30.0

    @classmethod
    def to(
        cls,
        url: str,
        sn: str | bytes,
        *,
        version: int = 2,
        user: str = "",
        password: str | bytes = b"",
        tls: ssl.SSLContext | None = None,
        open_timeout_s: float = 10.0,
        heartbeat_s: float = 30.0,
    ) -> Self:
        """Return the access of the device `sn` to the broker at `url`: frame://HOST:PORT, or frames:// for TLS, with
        the system's authorities unless `tls` is given. A PING leaves every `heartbeat_s` seconds; a broker that has not
        answered it by the next is lost. Raises ValueError."""
        found = locate_remote(url, PORTS)
        named = sn.encode("utf-8") if isinstance(sn, str) else sn
        encode_frame(version, PING, named, b"")  # ValueError if this version has no room for the SN
        if found.encrypted and tls is None:
            tls = ssl.create_default_context()
        endpoint = Endpoint(found.host, found.port, tls=tls if found.encrypted else None)
        secret = password.encode("utf-8") if isinstance(password, str) else password
        return cls(endpoint, named, version, user, secret, open_timeout_s, heartbeat_s)


class FrameConnection(ResponseHandler):
    """One connection of devices to a broker. `on_published(seq, code, message_id)` and `on_available(messages)` are
    called for what the broker says unasked."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.lost: HeadraceError | None = None
        self.ended = asyncio.Event()
        self.on_published: Callable[[int, int, bytes], None] = _nothing
        self.on_available: Callable[[int], None] = _nothing
        self._frames = ClientFrames(self)
        self._link = Link(self._frames.receive_data, self._disconnected)
        self._answers: dict[int, deque[asyncio.Future[Any]]] = {}
        self._heartbeat: asyncio.TimerHandle | None = None
        self._pinged: asyncio.Future[Any] | None = None

    async def open(self) -> None:
        """Connect and say who it is. Raises Refused, ConnectionLost, OSError (ssl.SSLError is one) or TimeoutError."""
        access = self.access
        try:
            async with asyncio.timeout(access.open_timeout_s):
                await access.endpoint.dial(self._link)
                code = await self.ask(HELLO, hello_body(access.user, access.password))
            if code:
                raise refused("the broker refused the connection", code)
        except BaseException as error:
            self._link.abort()
            self._end(error if isinstance(error, HeadraceError) else ConnectionLost("it was not let in"))
            raise
        self._schedule_ping()

    async def join(self, topic: bytes, cluster: bytes) -> int:
        """Become a consumer of the cluster. Returns the reason code."""
        return int(await self.ask(JOIN, cluster_body(topic, cluster)))

    async def leave(self, topic: bytes, cluster: bytes) -> int:
        """Leave the cluster: what the consumer holds goes to others. Returns the reason code."""
        return int(await self.ask(LEAVE, cluster_body(topic, cluster)))

    def pull(self, topic: bytes, cluster: bytes, most: int, wait_ms: int) -> asyncio.Future[list[Pulled]]:
        """Ask for messages; with none, the answer comes after `wait_ms`. Raises what the connection ended with."""
        return self.ask(PULL, pull_body(topic, cluster, most, wait_ms))

    async def acknowledge(self, topic: bytes, cluster: bytes, ids: list[bytes]) -> int:
        """Acknowledge the messages with these ids. Returns the reason code when that is durable."""
        return int(await self.ask(ACK, ack_body(topic, cluster, ids)))

    def ask(self, opcode: int, body: bytes) -> asyncio.Future[Any]:
        """Send a request; the future gets its answer, or the reason why none will come."""
        if self.lost is not None:
            raise self.lost
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(opcode, deque()).append(waiting)
        self.write(self.frame(opcode, body))
        return waiting

    def frame(self, opcode: int, body: bytes) -> bytes:
        """Return one frame of this device."""
        return encode_frame(self.access.version, opcode, self.access.sn, body)

    def write(self, data: bytes) -> None:
        self._link.write(data)

    async def close(self) -> None:
        """Close when what was written is out."""
        if self.lost is None:
            self._end(ConnectionLost("closed here"))
            await self._link.finish(_CLOSE_TIMEOUT_S)
        else:
            self._link.close()
            await self._link.closed.wait()

    def abort(self) -> None:
        """Drop the connection without a word, as a crash would."""
        self._link.abort()
        self._end(ConnectionLost("aborted here"))

    # What the broker says

    def answered(self, opcode: int, sn: bytes, code: int) -> None:
        self._answer(opcode, code)

    def pulled(self, sn: bytes, messages: list[Pulled]) -> None:
        self._answer(PULL, messages)

    def published(self, sn: bytes, seq: int, code: int, message_id: bytes) -> None:
        self.on_published(seq, code, message_id)

    def notified(self, sn: bytes, topic: bytes, cluster: bytes, available: int) -> None:
        self.on_available(available)

    def failed(self, code: int, reason: str) -> None:
        self._end(refused(f"the broker ended the connection: {reason}", code))

    def broken(self, error: ProtocolError) -> None:
        self._link.abort()
        self._end(ConnectionLost(f"the broker broke the protocol: {error}", error.reason_code))

    def _answer(self, opcode: int, value: object) -> None:
        line = self._answers.get(opcode)
        if not line:
            self.broken(
                ProtocolError(rc.PROTOCOL_ERROR, f"an answer to {NAMES[opcode]} that nobody asked for")
            )
            return
        waiting = line.popleft()
        if not waiting.done():
            waiting.set_result(value)

    def _disconnected(self, error: Exception | None) -> None:
        self._end(ConnectionLost(str(error) if error else "the broker closed it"))

    def _schedule_ping(self) -> None:
        loop = asyncio.get_running_loop()
        self._heartbeat = loop.call_later(self.access.heartbeat_s, self._ping)

    def _ping(self) -> None:
        if self._pinged is not None and not self._pinged.done():
            self._link.abort()
            self._end(ConnectionLost(f"no answer within {self.access.heartbeat_s:g} s"))
            return
        self._pinged = self.ask(PING, b"")
        self._schedule_ping()

    def _end(self, why: HeadraceError) -> None:
        """Note that the connection is over: whoever waits hears why. The first reason counts."""
        if self.lost is not None:
            return
        self.lost = why
        self._frames.stop()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for waiting in (one for line in self._answers.values() for one in line):
            if not waiting.done():
                waiting.set_exception(why)
                waiting.exception()  # who has stopped waiting need not be told by the loop
        self._answers.clear()
        self.ended.set()


def _nothing(*_: object) -> None:
    """Listen to nothing."""
