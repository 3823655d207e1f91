"""A connection to a Redis: commands are sent in batches, replies come in their order.

A batch leaves when there are `BATCH_COMMANDS`, when it is `BATCH_BYTES` long, or `BATCH_S` after its first command (T8);
one that somebody waits for, at the end of the pass.
Where copies are expected a WAIT follows each batch that writes, and what the batch asked for is answered behind it, in
order: what core counts the window of has a copy by then, or is counted as `Meter.unreplicated`. A server that
says nothing for `SILENCE_S` is given up. Runs on the loop; a callback never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from hiredis import ProtocolError, Reader, ReplyError, pack_command

from headrace.core.ports.queue_store import REFUSED, UNSURE

BATCH_COMMANDS: Final = 100
BATCH_BYTES: Final = 256 << 10
BATCH_S: Final = 0.003
SILENCE_S: Final = 10.0
LOOK_S: Final = 1.0
WAIT_MS: Final = 100
_NOT_YET: Final = object()


def packed(*words: bytes | str | int) -> bytes:
    """Return a command as Redis reads it."""
    found: bytes = pack_command(words)  # type: ignore[arg-type]  # whose own types know one word
    return found


WAIT: Final = packed(b"WAIT", 1, WAIT_MS)


class Meter:
    """What the connections of a store have under way together, and have done."""

    def __init__(self) -> None:
        self.bytes = 0  # of commands without an answer
        self.commands = 0
        self.batches = 0
        self.unreplicated = 0  # batches that no copy had after `WAIT_MS`


class Command:
    """Bytes for a server, and how many replies answer them. `writes`: they change something."""

    __slots__ = ("packed", "replies", "writes")

    def __init__(self, data: bytes, replies: int = 1, writes: bool = False) -> None:
        self.packed = data
        self.replies = replies
        self.writes = writes

    def done(self, replies: list[Any]) -> None:
        """Handle the replies; errors are among them as `ReplyError`."""
        raise NotImplementedError

    def failed(self, outcome: int) -> None:
        """Handle the end of the connection: UNSURE, or REFUSED if it was not even sent."""
        raise NotImplementedError


class Call(Command):
    """A command that somebody awaits the first reply of."""

    __slots__ = ("future",)

    def __init__(self, data: bytes, replies: int, future: asyncio.Future[list[Any]]) -> None:
        super().__init__(data, replies)
        self.future = future

    def done(self, replies: list[Any]) -> None:
        if not self.future.done():
            self.future.set_result(replies)

    def failed(self, outcome: int) -> None:
        if not self.future.done():
            self.future.set_exception(ConnectionResetError("the connection ended before the answer"))


class _Wait(Command):
    """WAIT: what the batch before it asked for is answered when it is."""

    __slots__ = ()

    def done(self, replies: list[Any]) -> None:
        """Do nothing: the connection looks at the reply."""

    def failed(self, outcome: int) -> None:
        """Do nothing: nobody has asked for it."""


class RedisConnection(asyncio.Protocol):
    """One connection. `lost` is called once, at its end, after everything under way has failed; `contain` with what an
    answer's handler has raised, which costs nobody else anything."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        meter: Meter,
        lost: Callable[[Exception | None], None],
        contain: Callable[[Exception], None],
    ) -> None:
        self.waits = False  # WAIT follows batches that write
        self.patient = True  # a batch gathers for `BATCH_S`, else for one pass of the loop
        self.is_over = False
        self._loop = loop
        self._meter = meter
        self._lost = lost
        self._contain = contain
        self._reader = Reader(notEnoughData=_NOT_YET)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._batch: list[Command] = []
        self._batch_bytes = 0
        self._sent: deque[Command] = deque()
        self._replies: list[Any] = []  # of the first of them
        self._waiting = 0  # WAITs among them
        self._held: list[tuple[Command, list[Any]]] = []  # answered, but for the WAIT behind them
        self._flush_timer: asyncio.Handle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        for timer in (self._flush_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        sent = [command for command, _ in self._held] + list(self._sent)
        unsent, self._batch = self._batch, []
        self._held.clear()
        self._sent.clear()
        for command in sent:
            self._fail(command, UNSURE)
        for command in unsent:
            self._fail(command, REFUSED)
        self._lost(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            self._reader.feed(data)
            reply = self._reader.gets()
            while reply is not _NOT_YET and not self.is_over:
                self._take(reply)
                reply = self._reader.gets()
        except ProtocolError:
            self.abort()

    # Commands

    def send(self, command: Command) -> None:
        """Send a command with the next batch, or fail it soon if the connection is over."""
        self._meter.bytes += len(command.packed)
        if self.is_over:
            self._loop.call_soon(self._fail, command, REFUSED)
            return
        self._batch.append(command)
        self._batch_bytes += len(command.packed)
        if len(self._batch) >= BATCH_COMMANDS or self._batch_bytes >= BATCH_BYTES:
            self.flush()
        elif self._flush_timer is None:
            later = self._loop.call_later(BATCH_S, self.flush) if self.patient else None
            self._flush_timer = later or self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits, unless the socket takes nothing: then it goes on when it does."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._batch or self._paused or self.is_over or self._transport is None:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        pieces = [command.packed for command in batch]
        if not self._sent:
            self._heard_s = self._loop.time()
        self._sent.extend(batch)
        if self.waits and any(command.writes for command in batch):
            pieces.append(WAIT)
            self._sent.append(_Wait(WAIT))
            self._waiting += 1
            self._meter.bytes += len(WAIT)
        self._meter.commands += len(batch)
        self._meter.batches += 1
        if self._watch_timer is None:
            self._watch_timer = self._loop.call_later(LOOK_S, self._watch)
        self._transport.write(b"".join(pieces))

    async def call(self, data: bytes, replies: int = 1) -> list[Any]:
        """Send a command at once and return its replies. Raises the first that is an error; OSError."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.send(Call(data, replies, future))
        self.flush()
        found = await future
        for reply in found:
            if isinstance(reply, ReplyError):
                raise reply
        return found

    def abort(self) -> None:
        """End the connection now. What is under way fails soon."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, reply: Any) -> None:
        """Give a reply to the oldest command."""
        if not self._sent:
            self.abort()  # nobody has asked
            return
        command = self._sent[0]
        self._replies.append(reply)
        if len(self._replies) < command.replies:
            return
        self._sent.popleft()
        replies, self._replies = self._replies, []
        if isinstance(command, _Wait):
            self._waiting -= 1
            self._meter.bytes -= len(command.packed)
            self._meter.unreplicated += replies[0] == 0
            held, self._held = self._held, []
            for earlier, its_replies in held:
                self._answer(earlier, its_replies)
        elif self._waiting:
            self._held.append((command, replies))
        else:
            self._answer(command, replies)

    def _answer(self, command: Command, replies: list[Any]) -> None:
        self._meter.bytes -= len(command.packed)
        try:
            command.done(replies)
        except Exception as error:  # noqa: BLE001
            self._contain(error)

    def _fail(self, command: Command, outcome: int) -> None:
        self._meter.bytes -= len(command.packed)
        try:
            command.failed(outcome)
        except Exception as error:  # noqa: BLE001
            self._contain(error)

    def _watch(self) -> None:
        """Give the server up that has said nothing for too long while something is asked of it."""
        self._watch_timer = None
        if not self._sent:
            return
        if self._loop.time() - self._heard_s > SILENCE_S:
            self.abort()
            return
        self._watch_timer = self._loop.call_later(LOOK_S, self._watch)
