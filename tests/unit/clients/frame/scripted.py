"""A server of frames that does as a test says: it notes what comes, and answers what `answer` makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from headrace.errors import ProtocolError
from headrace.frames.bodies import code_body, published_body
from headrace.frames.frame import HELLO, PING, PUBLISH, RESPONSE, encode_frame
from headrace.frames.server import FrameHandler, ServerFrames

SOME_ID = bytes(range(16))


class Came(NamedTuple):
    """A PUBLISH, and the number of the connection that it came on."""

    connection: int
    sn: bytes
    seq: int
    topic: bytes
    payload: bytes


class Scripted:
    """`codes` are the answers to PUBLISH in order, 0 when they are used up, None: no answer. `hello` is that to HELLO."""

    def __init__(
        self, codes: list[int | None] | None = None, hello: int = 0, answers_pings: bool = True
    ) -> None:
        self.codes = list(codes or [])
        self.hello = hello
        self.answers_pings = answers_pings
        self.came: list[Came] = []
        self.pings = 0
        self.visits: list[Visit] = []
        self.changed = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Visit(self), "127.0.0.1", 0)
        self.url = f"frame://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for visit in self.visits:
            visit.cut()
        await self._server.wait_closed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what clients do."""
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Visit(asyncio.Protocol, FrameHandler):
    """One connection."""

    def __init__(self, server: Scripted) -> None:
        self._server = server
        self._frames = ServerFrames(self, 1 << 20)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.visits.append(self)
        self._server.changed.set()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        self._server.changed.set()

    def cut(self) -> None:
        self._transport.abort()

    def say(self, opcode: int, sn: bytes, body: bytes) -> None:
        self._transport.write(encode_frame(2, opcode, sn, body))

    def hello(self, sn: bytes, user: str, password: bytes) -> None:
        self.say(HELLO | RESPONSE, sn, code_body(self._server.hello))

    def ping(self, sn: bytes) -> None:
        self._server.pings += 1
        if self._server.answers_pings:
            self.say(PING | RESPONSE, sn, b"")

    def publish(self, sn: bytes, seq: int, topic: bytes, payload: bytes) -> None:
        server = self._server
        server.came.append(Came(server.visits.index(self), sn, int(seq), topic, payload))
        code = server.codes.pop(0) if server.codes else 0
        if code is not None:
            self.say(PUBLISH | RESPONSE, sn, published_body(seq, code, bytes(16) if code else SOME_ID))

    def broken(self, error: ProtocolError) -> None:
        raise AssertionError(error)
