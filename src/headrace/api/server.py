"""The admin HTTP server: uvicorn's protocol in the node's own loop, with bounds on what a stranger may take.

Accepting is our own: where there is no room, the connection that has waited longest for a whole request makes it, and if
all are being answered the newcomer is closed; handshakes count, and errors of accept pause it. A request must be there
whole in `request_s`, whatever it waits for, and its answer be taken in `response_s`. What is wrong with a request is told
at most once a second. Stopping takes `STOP_S` at most, whatever is half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from headrace.api.problem import PROBLEM_JSON, content
from headrace.errors import forget_calls

CONNECTIONS_MAX = 64
STOP_S = 1
HEADER_BYTES_MAX = 16 << 10
PAUSE_S = 0.25
LINGER_S = 1.0  # after a request that is none was refused
LINGER_BYTES = 1 << 20
BACKLOG = 128
# What the system keeps of an answer that is not taken, twice that in fact; by itself it takes megabytes for each client.
SEND_BUFFER_BYTES = 256 << 10

Report = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What strangers may take: connections, and seconds for a request to come and for its answer to leave."""

    connections_max: int = CONNECTIONS_MAX
    request_s: float = 10.0
    response_s: float = 60.0


class BoundedHttp(H11Protocol):
    """One connection of a client of the admin HTTP. `_deadline` ends it: first of the request, then of the answer, then
    of the next request."""

    def __init__(
        self, bounds: Bounds, ended: Callable[[BoundedHttp], None], report: Report, **of_uvicorn: Any
    ) -> None:
        super().__init__(**of_uvicorn)
        self._bounds = bounds
        self._ended: Callable[[BoundedHttp], None] | None = ended
        self._report = report
        self._deadline: asyncio.TimerHandle | None = None
        self._answering = False
        self._thrown_away: int | None = None  # bytes behind a request that was refused

    @property
    def asks(self) -> bool:
        """Return whether the connection's request is not there whole, and nothing is being answered."""
        return not self._answering

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self._bounds.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.end()
        super().connection_lost(exc)

    def end(self) -> None:
        """Give the place back, once."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self)

    def data_received(self, data: bytes) -> None:
        if self._thrown_away is not None:
            self._throw_away(data)
            return
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  no request may cost more than its connection
            self._report("admin: a request could not be read", f"{type(error).__name__}: {error}")
            self.transport.abort()
            return
        cycle: RequestResponseCycle | None = self.cycle
        if not self._answering and cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._answering = True
            self._arm(self._bounds.response_s)

    def on_response_complete(self) -> None:
        self._answering = False
        self._arm(self._bounds.request_s)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer as a problem document; when an answer is under way already, there is nothing left to say."""
        forget_calls(sys.exception())  # of h11, raised in a call that has it
        body = json.dumps(content(HTTPStatus.BAD_REQUEST, msg)).encode()
        headers = [
            ("content-type", PROBLEM_JSON),
            ("connection", "close"),
            ("content-length", str(len(body))),
        ]
        events = (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()
        else:
            self._linger()

    def _linger(self) -> None:
        """Say that nothing more is said, and read on for a while: a connection that is closed over what was not read is
        reset, and whoever still sends would never see the answer. Who closes it has it closed at once."""
        self._thrown_away = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)

    def _throw_away(self, data: bytes) -> None:
        assert self._thrown_away is not None
        self._thrown_away += len(data)
        if self._thrown_away > LINGER_BYTES:
            self.transport.close()

    def _arm(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._over)

    def _over(self) -> None:
        self._report("admin: a connection took too long", f"{self.client}")
        self.transport.abort()


class Accepting:
    """The listening socket, as uvicorn wants its servers. `most` connections are accepted, those that shake hands
    included."""

    def __init__(
        self,
        bound: socket.socket,
        context: ssl.SSLContext | None,
        make: Callable[[Callable[[BoundedHttp], None]], BoundedHttp],
        report: Report,
        bounds: Bounds,
    ) -> None:
        self.context = context
        self._bound = bound
        self._make = make
        self._report = report
        self._bounds = bounds
        self._open_now: dict[BoundedHttp, socket.socket] = {}  # in the order they came
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._listen()

    def _listen(self) -> None:
        self._bound.setblocking(False)
        self._bound.listen(BACKLOG)
        self._loop.add_reader(self._bound, self._accept)

    def _stop_accepting(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()

    def close(self) -> None:
        self._stop_accepting()
        for task in self._opening:
            task.cancel()

    def move(self, bound: socket.socket) -> None:
        """Listen on another socket from now on; connections stay."""
        self._stop_accepting()
        self._bound = bound
        self._listen()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to wait for."""

    def _accept(self) -> None:
        try:
            accepted, _ = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._report("admin: accepting pauses", str(error.strerror))
            self._loop.remove_reader(self._bound)
            self._paused = self._loop.call_later(PAUSE_S, self._resume)
            return
        if len(self._open_now) >= self._bounds.connections_max and not self._make_room():
            self._report("admin: too many connections", str(self._bounds.connections_max))
            accepted.close()
            return
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if accepted.family != socket.AF_UNIX:
            # asyncio does so for sockets that say that they are TCP, which those of `bind` do not: the body of an answer
            # came 40 ms behind its head, when that was acknowledged. uvloop does so for all.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = self._make(self._ended)
        self._open_now[made] = accepted
        task = self._loop.create_task(self._open(made, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _make_room(self) -> bool:
        """End the oldest connection that has yet to ask. False if there is none."""
        oldest = next((made for made in self._open_now if made.asks), None)
        if oldest is None:
            return False
        self._report("admin: a connection made room", str(self._bounds.connections_max))
        accepted = self._open_now[oldest]
        oldest.end()
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)  # whoever reads from it, a handshake too, sees its end
        return True

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._bound, self._accept)

    async def _open(self, made: BoundedHttp, accepted: socket.socket) -> None:
        within: dict[str, Any] = {}
        if self.context is not None:
            within = {"ssl": self.context, "ssl_handshake_timeout": self._bounds.request_s}
        try:
            accepted.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: made, accepted, **within)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            self._report("admin: connection refused", str(error) or type(error).__name__)
            accepted.close()
            made.end()
            forget_calls(error)

    def _ended(self, made: BoundedHttp) -> None:
        del self._open_now[made]


class _Told(logging.Handler):
    """What uvicorn would write a line for each time."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.WARNING)
        self._report_line = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], ClientDisconnect):
            return  # in the middle of its request: nobody is left to answer, and nothing is wrong here
        self._report_line(f"admin: {record.msg}", self.format(record))


class AdminServer(uvicorn.Server):
    """uvicorn that leaves the signals to the node, and accepting and ends to us."""

    def __init__(
        self, config: uvicorn.Config, context: ssl.SSLContext | None, report: Report, bounds: Bounds
    ) -> None:
        super().__init__(config)
        self._context = context
        self._report = report
        self._bounds = bounds
        self._accepting: Accepting | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def reload(self, context: ssl.SSLContext | None) -> None:
        """Serve new connections with this certificate."""
        self._context = context
        if self._accepting is not None:
            self._accepting.context = context

    def move(self, bound: socket.socket) -> None:
        """Listen on another socket from now on."""
        if self._accepting is None:
            bound.close()
        else:
            self._accepting.move(bound)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        (bound,) = sockets or []
        self._accepting = Accepting(bound, self._context, self._protocol, self._report, self._bounds)
        self.servers = [self._accepting]  # type: ignore[list-item]
        self.started = True

    def _protocol(self, ended: Callable[[BoundedHttp], None]) -> BoundedHttp:
        return BoundedHttp(
            self._bounds,
            ended,
            self._report,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server: `STOP_S` is left for what is under way, then everything is cut."""
        closing = asyncio.get_running_loop().call_later(STOP_S, self._cut)
        await super().shutdown(sockets)
        closing.cancel()
        self._cut()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def admin_server(app: ASGIApp, context: ssl.SSLContext | None, report: Report, bounds: Bounds) -> AdminServer:
    """Return a server for `app`, to be started by `serve([bound socket])`; with a `context` over TLS."""
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_Told(report)]
    logger.propagate = False
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="none",
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_graceful_shutdown=STOP_S + 1,
    )
    return AdminServer(config, context, report, bounds)
