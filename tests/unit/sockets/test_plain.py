"""The transport of plain sockets over real ones: partial writes, pauses, ends of every kind."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from headrace.sockets.plain import PlainTransport
from headrace.sockets.poller import Poller

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
MEGABYTE = b"0123456789abcdef" * 65536


class Reader(asyncio.Protocol):
    """Writes down what the transport calls. `on_data` runs within data_received."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = bytearray()
        self.error: Exception | None = None
        self.lost = asyncio.Event()
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.nested = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.nested = True
        self.received += data
        try:
            self.on_data(data)
        finally:
            self.nested = False

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return False

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        assert not self.nested
        self.calls.append("lost")
        self.error = error
        self.lost.set()


class Pair:
    """A transport, and the `peer` at the other end of its socket: a non-blocking one."""

    def __init__(self, poller: Poller, ours: socket.socket, peer: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        for end in (ours, peer):
            end.setblocking(False)
        self.ours, self.peer = ours, peer
        self.reader = Reader()
        self.transport = PlainTransport(poller, ours, self.reader)
        self.transport.open()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self.loop.sock_sendall(self.peer, data), 30)

    async def receive(self, count: int) -> bytes:
        """Exactly `count` bytes, less at the end of the stream."""
        found = b""
        while len(found) < count and (
            piece := await asyncio.wait_for(self.loop.sock_recv(self.peer, count - len(found)), 30)
        ):
            found += piece
        return found

    async def got(self, count: int) -> bytes:
        """What the reader has, once it is `count` bytes."""
        await until(lambda: len(self.reader.received) >= count)
        return bytes(self.reader.received)

    async def lost(self) -> None:
        await asyncio.wait_for(self.reader.lost.wait(), 30)
        assert self.reader.calls.count("lost") == 1
        assert self.ours.fileno() == -1

    def fill_once(self) -> None:
        """Write more than the system takes."""
        self.transport.write(MEGABYTE * 16)

    def fill(self) -> int:
        """Write until the system takes no more; how many bytes were written."""
        written = 0
        while not self.transport.get_write_buffer_size():
            self.transport.write(MEGABYTE)
            written += len(MEGABYTE)
        return written


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    return ours, peer


KINDS = {"tcp": tcp, "unix": socket.socketpair}


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go on until it holds."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


def run(body: Callable[[Poller], Awaitable[None]], loop: str = "uvloop") -> None:
    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        try:
            await body(poller)
        finally:
            poller.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def with_pair(body: Callable[[Pair], Awaitable[None]], kind: str = "tcp", loop: str = "uvloop") -> None:
    async def main(poller: Poller) -> None:
        pair = Pair(poller, *KINDS[kind]())
        try:
            await body(pair)
        finally:
            pair.transport.abort()
            await pair.lost()
            pair.peer.close()

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_go_both_ways_and_an_end_ends_it(kind: str, loop: str) -> None:
    async def body(pair: Pair) -> None:
        await pair.send(b"hello")
        assert await pair.got(5) == b"hello"
        pair.transport.write(b"there")
        assert await pair.receive(5) == b"there"
        pair.peer.close()
        await pair.lost()
        assert pair.reader.calls == ["made", "eof", "lost"]
        assert pair.reader.error is None

    with_pair(body, kind, loop)


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_before_the_end_is_read(kind: str) -> None:
    async def body(pair: Pair) -> None:
        pair.transport.pause_reading()
        await pair.send(b"last words")
        pair.peer.close()
        pair.transport.resume_reading()
        await pair.lost()
        assert bytes(pair.reader.received) == b"last words"

    with_pair(body, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_system_does_not_take_follows_in_order(kind: str) -> None:
    async def body(pair: Pair) -> None:
        pair.transport.set_write_buffer_limits(high=1000)
        written = pair.fill()
        pair.transport.write(b"the end")
        assert pair.reader.calls == ["made", "pause"]
        found = await pair.receive(written + 7)
        assert found == MEGABYTE * (written // len(MEGABYTE)) + b"the end"
        await until(lambda: "resume" in pair.reader.calls)
        assert pair.reader.calls == ["made", "pause", "resume"]
        assert pair.transport.get_write_buffer_size() == 0
        pair.transport.write(b"more")
        assert await pair.receive(4) == b"more"

    with_pair(body, kind)


def test_writing_from_within_resume_writing_keeps_its_place() -> None:
    async def body(pair: Pair) -> None:
        pair.transport.set_write_buffer_limits(high=1 << 20)
        pair.reader.resume_writing = lambda: pair.transport.write(b"afterwards")  # type: ignore[method-assign]
        written = pair.fill()
        pair.transport.write(MEGABYTE)
        pair.transport.write(MEGABYTE)
        written += 2 * len(MEGABYTE)
        found = await pair.receive(written + 10)
        assert len(found) == written + 10
        assert found.endswith(b"afterwards")

    with_pair(body)


@pytest.mark.parametrize("kind", KINDS)
def test_close_sends_what_waits(kind: str) -> None:
    async def body(pair: Pair) -> None:
        written = pair.fill()
        pair.transport.close()
        pair.transport.close()
        assert len(await pair.receive(written)) == written
        await pair.lost()

    with_pair(body, kind)


def test_abort_loses_what_waits() -> None:
    async def body(pair: Pair) -> None:
        written = pair.fill()
        pair.transport.abort()
        pair.transport.write(b"too late")
        assert pair.transport.get_write_buffer_size() == 0
        assert "lost" not in pair.reader.calls
        await pair.lost()
        assert len(await pair.receive(written)) < written

    with_pair(body)


@pytest.mark.parametrize("ends", ["abort", "close"])
def test_an_end_within_data_received(ends: str) -> None:
    async def body(pair: Pair) -> None:
        pair.reader.on_data = lambda _: getattr(pair.transport, ends)()
        await pair.send(b"x")
        await pair.lost()
        assert pair.reader.calls == ["made", "lost"]
        assert pair.reader.error is None

    with_pair(body)


def test_one_that_ends_another_in_the_same_pass() -> None:
    async def main(poller: Poller) -> None:
        pairs = [Pair(poller, *tcp()) for _ in range(2)]
        for this, other in (pairs, pairs[::-1]):
            this.reader.on_data = lambda _, other=other: other.transport.abort()  # type: ignore[misc]
        for pair in pairs:
            pair.peer.send(b"x")  # both are ready before the loop looks
        await until(lambda: any(pair.reader.lost.is_set() for pair in pairs))
        assert sum(len(pair.reader.received) for pair in pairs) == 1
        for pair in pairs:
            pair.transport.abort()
            await pair.lost()
            pair.peer.close()

    run(main)


def test_a_failure_costs_one_connection() -> None:
    async def main(poller: Poller) -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        failing, healthy = Pair(poller, *tcp()), Pair(poller, *tcp())
        error = RuntimeError("a defect")

        def fail(data: bytes) -> None:
            failing.reader.nested = False
            raise error

        failing.reader.on_data = fail
        await failing.send(b"x")
        await healthy.send(b"y")
        await failing.lost()
        assert await healthy.got(1) == b"y"
        assert told == [error]
        failing.peer.close()
        healthy.peer.close()
        await healthy.lost()

    run(main)


class Counting:
    """Watches in the place of the epoll, and refuses when it is told."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self.loop = poller.loop
        self.read, self.write = poller.read, poller.write
        self.refuses = False

    def watch(self, fd: int, before: int, after: int, transport: object) -> None:
        if self.refuses and after:
            raise OSError(errno.ENOMEM, "no memory")
        self._poller.watch(fd, before, after, transport)  # type: ignore[arg-type]


@pytest.mark.interpreted
@pytest.mark.parametrize("when", ["write", "resume"])
def test_what_the_system_will_not_watch_costs_one_connection(when: str) -> None:
    """epoll_ctl: ENOMEM, ENOSPC. Whoever writes or goes on reading does not hear of it, and the next one is served."""

    async def main(poller: Poller) -> None:
        counting = Counting(poller)
        failing, healthy = Pair(counting, *tcp()), Pair(poller, *tcp())  # type: ignore[arg-type]
        if when == "resume":
            failing.transport.pause_reading()
            await failing.send(b"unread")
            await passes(failing.loop)
        counting.refuses = True
        if when == "resume":
            failing.transport.resume_reading()
        else:
            failing.fill_once()
        await healthy.send(b"y")
        await failing.lost()
        assert isinstance(failing.reader.error, OSError)
        assert await healthy.got(1) == b"y"
        failing.peer.close()
        healthy.peer.close()
        await healthy.lost()

    run(main)


def reset(peer: socket.socket) -> None:
    """End it so that the other side gets ECONNRESET."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_reset_while_reading() -> None:
    async def body(pair: Pair) -> None:
        reset(pair.peer)
        await pair.lost()
        assert isinstance(pair.reader.error, ConnectionResetError)
        assert pair.reader.calls == ["made", "lost"]

    with_pair(body)


def test_a_reset_that_writing_meets() -> None:
    async def body(pair: Pair) -> None:
        reset(pair.peer)
        pair.transport.write(b"x")
        assert pair.reader.calls == ["made"]
        await pair.lost()
        assert isinstance(pair.reader.error, ConnectionError)

    with_pair(body)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_reset_of_a_paused_one_ends_it_at_the_latest_when_it_goes_on(waiting: bool) -> None:
    async def body(pair: Pair) -> None:
        pair.transport.pause_reading()
        if waiting:
            pair.fill()
        reset(pair.peer)
        if not waiting:
            await passes(pair.loop)
            assert pair.reader.calls == ["made"]
            pair.transport.resume_reading()
        await pair.lost()
        assert isinstance(pair.reader.error, ConnectionError)

    with_pair(body)


async def passes(loop: asyncio.AbstractEventLoop) -> None:
    """Two passes of the loop, by a pair of sockets of its own."""
    here, there = socket.socketpair()
    with here, there:
        for end in (here, there):
            end.setblocking(False)
        for _ in range(2):
            await loop.sock_sendall(here, b"x")
            await loop.sock_recv(there, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_holds_back_what_comes_however_often(kind: str) -> None:
    async def body(pair: Pair) -> None:
        for number in range(3):
            pair.transport.pause_reading()
            await pair.send(b"x")
            await passes(pair.loop)
            assert len(pair.reader.received) == number
            pair.transport.resume_reading()
            await pair.got(number + 1)

    with_pair(body, kind)


def test_a_pause_from_within_data_received_leaves_the_rest_unread() -> None:
    async def body(pair: Pair) -> None:
        pair.reader.on_data = lambda _: pair.transport.pause_reading()
        sending = asyncio.ensure_future(pair.send(MEGABYTE))
        while len(pair.reader.received) < len(MEGABYTE):
            before = len(pair.reader.received)
            pair.transport.resume_reading()
            await until(lambda before=before: len(pair.reader.received) > before)  # type: ignore[misc]
            assert len(pair.reader.received) - before <= 64 << 10
        await sending
        assert bytes(pair.reader.received) == MEGABYTE

    with_pair(body)


def test_who_the_peer_is() -> None:
    async def body(pair: Pair) -> None:
        assert pair.transport.get_extra_info("peername") == pair.peer.getsockname()
        assert pair.transport.get_extra_info("ssl_object", "none") == "none"
        pair.transport.abort()
        await pair.lost()
        assert pair.transport.get_extra_info("peername") is None

    with_pair(body)


def test_ten_thousand_at_once() -> None:
    """As many as the system lets us have descriptors for."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, (most - 200) // 2)

    async def main(poller: Poller) -> None:
        pairs = [Pair(poller, *socket.socketpair()) for _ in range(count)]
        for pair in pairs:
            pair.reader.on_data = pair.transport.write
            pair.peer.send(b"ping")
        for pair in pairs:
            assert await pair.receive(4) == b"ping"
            pair.peer.close()
        for pair in pairs:
            await pair.lost()

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        run(main)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_want_of_memory_costs_one_connection_and_no_traceback() -> None:
    async def body(pair: Pair) -> None:
        said: list[dict[str, object]] = []
        pair.loop.set_exception_handler(lambda _, context: said.append(context))

        def wants(data: bytes) -> None:
            raise MemoryError

        pair.reader.on_data = wants
        await pair.send(b"hello")
        await pair.lost()
        pair.loop.set_exception_handler(None)
        assert said == [{"message": "a connection ends for want of memory"}]

    with_pair(body)
