"""The admin HTTP server over real sockets: what is half done is ended in time, and costs no line of the log for each."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from prometheus_client.registry import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from certificates import Authority
from headrace.api.app import application, bind
from headrace.api.server import Accepting, Bounds, admin_server
from headrace.api.tokens import answered
from headrace.net.tls import TlsFiles, server_context

QUICK = Bounds(connections_max=3, request_s=0.3, response_s=0.6)
PATIENT = Bounds(connections_max=3)


def _length(_: Request, body: bytes) -> Response:
    return PlainTextResponse(str(len(body)))


class Served:
    """A running server; `told` are the lines for the log."""

    def __init__(self, bounds: Bounds, context: ssl.SSLContext | None = None) -> None:
        self.told: list[str] = []
        self.waiting = 0
        self.never = asyncio.Event()
        self.bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]

        async def body(request: Request) -> Response:
            return PlainTextResponse(str(len(await request.body())))

        async def never(_: Request) -> Response:
            self.waiting += 1
            await self.never.wait()
            return PlainTextResponse("at last")

        async def large(_: Request) -> Response:
            return PlainTextResponse(b"x" * (32 << 20))

        async def defect(_: Request) -> Response:
            raise RuntimeError("a defect")

        async def bounded(request: Request) -> Response:
            return await answered(request, _length, 1000)

        routes = [
            Route("/body", body, methods=["POST"]),
            Route("/never", never),
            Route("/answered", bounded, methods=["POST"]),
            Route("/large", large),
            Route("/defect", defect),
        ]
        app = application(lambda: "", CollectorRegistry(), routes)
        self.server = admin_server(
            app, context, lambda what, more: self.told.append(f"{what} {more}"), bounds
        )
        self.task = asyncio.get_running_loop().create_task(self.server.serve([self.bound]))

    async def open(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """Everything that is answered until the connection ends."""
        reader, writer = await self.open(data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def stop(self) -> None:
        self.server.should_exit = True
        await asyncio.wait_for(self.task, 10)


def run(test: Callable[[Served], Awaitable[None]], bounds: Bounds = PATIENT) -> list[str]:
    async def main() -> list[str]:
        served = Served(bounds)
        while not served.server.started:
            await asyncio.sleep(0.001)
        await test(served)
        if not served.task.done():
            await served.stop()
        return served.told

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


HALVES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half the headers": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "half a body": b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
    "half a body that nobody reads": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
    "an answer that never comes": b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n",
}


LONG = b"POST /answered HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        *(LONG + b"Content-Length: %d\r\n\r\n" % told for told in (1001, 1 << 40, 10**19)),
        LONG + b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
        LONG + b"Content-Length: 5000\r\n\r\nsome",
        LONG + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000 + b"\r\n",
    ],
)
def test_a_body_that_is_too_long_is_refused_before_it_comes(request_: bytes) -> None:
    """And its connection ends, long before the time for a request is over."""

    async def body(served: Served) -> None:
        found = await asyncio.wait_for(served.ask(request_), 5)
        assert found.startswith(b"HTTP/1.1 413 ")
        assert b"application/problem+json" in found
        assert b"connection: close" in found.lower()
        assert b"the body is longer than 1000 bytes" in found
        exact = await served.ask(LONG + b"Connection: close\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
        assert exact.endswith(b"\r\n\r\n1000")

    run(body)


def test_whoever_sends_a_body_that_is_too_long_to_its_end_reads_why_it_was_refused() -> None:
    """The connection is not reset over what nobody read of it."""

    async def body(served: Served) -> None:
        for size in (1001, 100_000, 4 << 20):
            reader, writer = await served.open(LONG + b"Content-Length: %d\r\n\r\n" % size)
            await writer.drain()
            for _ in range(0, size, 1 << 16):  # the answer is under way meanwhile
                writer.write(bytes(min(1 << 16, size)))
                await writer.drain()
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 413 ")
            writer.close()

    run(body, PATIENT)


def test_whoever_sends_what_is_no_request_to_its_end_reads_that_it_was_refused() -> None:
    """The connection is not reset over what nobody read of it, and ends when its client closes it."""

    async def body(served: Served) -> None:
        for size in (1, 100_000, 512 << 10):
            reader, writer = await served.open(b"nonsense\r\n\r\n")
            for _ in range(0, size, 1 << 16):
                writer.write(bytes(min(1 << 16, size)))
                await writer.drain()
            found = await asyncio.wait_for(reader.read(), 20)
            assert found.startswith(b"HTTP/1.1 400 ")
            assert found.endswith(b"}")
            writer.close()
        async with asyncio.timeout(30):
            while served.server.server_state.connections:
                await asyncio.sleep(0.01)

    run(body, PATIENT)


def test_whoever_sends_for_ever_behind_what_is_no_request_is_cut_off() -> None:
    async def body(served: Served) -> None:
        _, writer = await served.open(b"nonsense\r\n\r\n")

        async def send_on() -> None:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_on(), 30)
        writer.close()

    run(body, PATIENT)


@pytest.mark.parametrize("half", HALVES)
def test_what_is_half_done_ends(half: str) -> None:
    async def body(served: Served) -> None:
        assert b"200 OK" not in await served.ask(HALVES[half])

    run(body, QUICK)


@pytest.mark.parametrize("half", HALVES)
def test_stopping_waits_for_nobody(half: str) -> None:
    async def body(served: Served) -> None:
        _, writer = await served.open(HALVES[half])
        while not served.server.server_state.connections:
            await asyncio.sleep(0.001)
        await served.stop()
        writer.close()

    run(body)


def test_an_answer_that_is_not_read_ends() -> None:
    async def body(served: Served) -> None:
        reader, writer = await served.open(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        while not served.told:
            await asyncio.sleep(0.01)
        assert len(await asyncio.wait_for(_rest(reader), 10)) < 32 << 20
        writer.close()

    run(body, QUICK)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while part := await reader.read(1 << 20):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_connections_are_limited_and_a_place_comes_back() -> None:
    async def body(served: Served) -> None:
        held = [await served.open(HALVES["an answer that never comes"]) for _ in range(3)]
        while served.waiting < 3:
            await asyncio.sleep(0.001)
        assert await served.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        served.never.set()
        for _, writer in held:
            writer.close()
        while served.server.server_state.connections:
            await asyncio.sleep(0.001)
        assert b"200 OK" in await served.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    told = run(body)
    assert told == ["admin: too many connections 3"]


@pytest.mark.parametrize("half", [half for half in HALVES if "answer" not in half])
def test_whoever_asks_nothing_keeps_nobody_out(half: str) -> None:
    """Half requests had every place until their deadline: no scrape, no /readyz, for ten seconds."""

    async def body(served: Served) -> None:
        held = [await served.open(HALVES[half]) for _ in range(6)]
        answer = await served.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in answer
        for _, writer in held:
            writer.close()

    told = run(body)
    assert set(told) == {"admin: a connection made room 3"}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),  # without Host
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000, 400),
        (b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"DELETE /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"GET /defect HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 500),
    ],
)
def test_what_is_refused_is_a_problem_document(request_: bytes, status: int) -> None:
    async def body(served: Served) -> None:
        head, _, content = (await served.ask(request_)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status), head
        assert b"application/problem+json" in head
        assert json.loads(content)["status"] == status

    run(body)


def test_every_bad_request_goes_through_the_limited_log(capfd: pytest.CaptureFixture[str]) -> None:
    async def body(served: Served) -> None:
        for _ in range(20):
            assert b"400" in await served.ask(b"nonsense\r\n\r\n")

    told = run(body)
    assert (
        len(told) == 20
    )  # what the node writes of them is limited by `Incidents`, which has a test of its own
    assert len({line.split(":")[1] for line in told}) == 1
    assert capfd.readouterr().err == ""


def test_over_tls_with_a_certificate_that_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = [authority.issue(name) for name in ("localhost", "other")]

    def context(number: int) -> ssl.SSLContext:
        certificate, key = files[number]
        return server_context(TlsFiles(str(certificate), str(key), "", "none"), "http/1.1")

    async def main() -> None:
        served = Served(QUICK, context(0))
        while not served.server.started:
            await asyncio.sleep(0.001)
        assert await served.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""  # plain
        assert await served.ask(b"") == b""  # half a handshake
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        names = []
        for number in range(2):
            served.server.reload(context(number))
            reader, writer = await asyncio.open_connection(
                "localhost", served.port, ssl=trusting, server_hostname="localhost"
            )
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.read(), 10)
            names.append(writer.get_extra_info("peercert")["subject"][-1][0][1])
            writer.close()
        assert names[0] != names[1]
        await served.stop()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_an_answer_of_two_writes_does_not_wait_for_an_acknowledgement(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Without TCP_NODELAY the body of an answer comes 40 ms behind its head, when the client has acknowledged that."""

    async def main() -> list[int]:
        served = Served(PATIENT)
        while not served.server.started:
            await asyncio.sleep(0.001)
        reader, writer = await served.open(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok\n"), 20)
        accepting = served.server.servers[0]
        assert isinstance(accepting, Accepting)
        found = [
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in accepting._open_now.values()
        ]
        writer.close()
        await served.stop()
        return found

    with asyncio.Runner(loop_factory=loop) as runner:
        assert [bool(one) for one in runner.run(main())] == [True]
