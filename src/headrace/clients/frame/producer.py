"""A producer of messages over frames, for asyncio: it sends until it is answered, over as many connections as that takes.

    async with Producer("frame://127.0.0.1:6800", "door-17") as producer:
        message_id = await producer.publish("dormitory/doors", b"opened by card 4711")

Runs on the loop. The broker answers when the message is durable. Where the connection ends before that, the producer
connects again, after longer and longer pauses with jitter, and sends what was not answered once more, in its order and
under the same sequence numbers: the broker knows the SN, the sequence number, the topic and the payload of what it has
stored within the last five minutes, and answers with the id that the first copy has. Answers come in the order of what
was sent, and are taken in that order: a number that is used again, because its message was cancelled, gets its own.

**Sequence numbers that start again.** Two messages of one SN with one sequence number, topic and payload within five
minutes are one message. So a producer begins at a random number, unless `first_seq` says where: who counts in a place
that survives a restart sends exactly once over the restart too. Who begins at 0 each time may lose messages: "opened" as
number 0, a restart, and "opened" as number 0 again are one. What is repeated after more than five minutes is stored
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections import deque
from functools import partial
from types import TracebackType
from typing import Final, Self

from headrace.backoff import Backoff
from headrace.clients.errors import ConnectionLost
from headrace.clients.frame.connection import Access, FrameConnection
from headrace.clients.frame.errors import Closed, refused
from headrace.errors import HeadraceError, ProtocolError
from headrace.frames.bodies import publish_body
from headrace.frames.frame import PUBLISH, encode_frame
from headrace.mqtt import reason_codes as rc

SEQUENCES = 1 << 32
_LOG: Final = logging.getLogger("headrace.clients.frame")


class Producer:
    """Publishes messages over frames. Call `publish` as often as wanted at a time: at most `in_flight_max` messages are
    unanswered, the others wait in order.

    `sn` is the serial number of the device, whose user and password are its own, if any. Pauses between attempts are
    `shortest_pause_s` at first, and `longest_pause_s` in the end. `frame_bytes_max` is the broker's `packet_bytes_max`.
    """

    def __init__(
        self,
        url: str,
        sn: str | bytes,
        *,
        user: str = "",
        password: str | bytes = b"",
        tls: ssl.SSLContext | None = None,
        version: int = 2,
        first_seq: int | None = None,
        in_flight_max: int = 256,
        frame_bytes_max: int = 1 << 20,
        shortest_pause_s: float = 0.2,
        longest_pause_s: float = 30.0,
        open_timeout_s: float = 10.0,
        heartbeat_s: float = 30.0,
    ) -> None:
        self._access = Access.to(
            url, sn, version=version, user=user, password=password, tls=tls, open_timeout_s=open_timeout_s,
            heartbeat_s=heartbeat_s,
        )  # fmt: skip
        self._seq = random.getrandbits(32) if first_seq is None else first_seq
        self._places = asyncio.Semaphore(in_flight_max)
        self._frame_bytes_max = frame_bytes_max
        self._pauses = Backoff(shortest_pause_s, longest_pause_s)
        self._refusals = Backoff(shortest_pause_s, longest_pause_s)
        self._unanswered: dict[int, _Unanswered] = {}
        self._written: deque[_Unanswered] = deque()  # on this connection, and not answered
        self._connection: FrameConnection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failed: HeadraceError | None = None
        self.connections = 0

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def open(self) -> None:
        """Begin to connect, and return at once; what comes of it is what `publish` returns or raises."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stop the producer. Whoever still waits for an answer gets Closed: the message may have been stored, or
        not."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        self._fail(Closed("the producer was closed before the broker had answered"))

    async def publish(self, topic: str, payload: bytes, seq: int | None = None) -> bytes:
        """Return the 16 bytes that name the message, when it is durable.

        `seq`: its sequence number, else the next one. Raises Refused with the reason code where the broker does not take
        it (0x87 not allowed, 0x90 no topic name) or not let this device in; ValueError for a message larger than a frame
        may be. A broker whose disk is full is asked again. Cancelled, it is sent no more, and may have been stored; it
        keeps its place among the unanswered until the broker has answered, or the connection has ended.
        """
        await self._places.acquire()
        try:
            number = self._next(seq)
            body = publish_body(number, topic.encode("utf-8"), payload)
            data = encode_frame(self._access.version, PUBLISH, self._access.sn, body)
            if len(data) > self._frame_bytes_max:
                raise ValueError(f"a frame of {len(data)} bytes; {self._frame_bytes_max} are accepted")
        except BaseException:
            self._places.release()
            raise
        return await self._send(_Unanswered(number, data))

    def _next(self, seq: int | None) -> int:
        if self._failed is not None:
            raise self._failed
        if self._keeping is None:
            raise Closed("the producer is not open")
        number = self._seq if seq is None else seq
        if number in self._unanswered or not 0 <= number < SEQUENCES:
            raise ValueError(f"the sequence number {number} is taken, or is no u32")
        if seq is None:
            self._seq = (number + 1) % SEQUENCES
        return number

    async def _send(self, waiting: _Unanswered) -> bytes:
        self._unanswered[waiting.number] = waiting
        self._write(waiting)
        try:
            return await waiting.message_id
        finally:
            del self._unanswered[waiting.number]
            waiting.is_over = True
            self._free(waiting)

    def _write(self, waiting: _Unanswered) -> None:
        if self._connection is not None:
            self._written.append(waiting)
            waiting.copies += 1
            self._connection.write(waiting.data)

    def _free(self, waiting: _Unanswered) -> None:
        """Give its place to another, unless somebody waits for it or an answer is on its way."""
        if waiting.is_over and not waiting.copies:
            self._places.release()

    # The connection

    async def _keep(self) -> None:
        """Be connected, again and again, until something says that it is no use."""
        try:
            while may_help(why := await self._hold()):
                await asyncio.sleep(self._pauses.next_s())
        except Exception as error:  # noqa: BLE001 - a host's name that is none, no memory: whoever waits hears of it
            _LOG.exception("the producer has ended")
            why = error
        self._fail(why)

    async def _hold(self) -> Exception:
        """Hold one connection from its begin to its end; return why it ended."""
        loop = asyncio.get_running_loop()
        connection = FrameConnection(self._access)
        connection.on_published = partial(self._published, connection)
        let_in_s = float("inf")
        try:
            await connection.open()
            let_in_s = loop.time()
            self.connections += 1
            self._connection = connection
            for waiting in self._unanswered.values():
                if not waiting.message_id.done():
                    self._write(waiting)
            await connection.ended.wait()
        except (OSError, TimeoutError, HeadraceError) as error:
            return error
        finally:
            self._connection = None
            connection.abort()
            self._pauses.lasted(loop.time() - let_in_s)
            self._forget_written()
        return connection.lost or ConnectionLost("it ended")

    def _forget_written(self) -> None:
        """Forget what was written to a connection that has ended: none of it will be answered."""
        for waiting in self._written:
            waiting.copies -= 1
            self._free(waiting)
        self._written.clear()

    def _published(self, connection: FrameConnection, seq: int, code: int, message_id: bytes) -> None:
        if not self._written or self._written[0].number != seq:
            connection.broken(
                ProtocolError(rc.PROTOCOL_ERROR, f"an answer to PUBLISH {seq}, which is not the next")
            )
            return
        waiting = self._written.popleft()
        waiting.copies -= 1
        self._free(waiting)
        if waiting.message_id.done():
            return
        if not code:
            self._refusals.lasted(float("inf"))
            waiting.message_id.set_result(message_id)
            return
        error = refused("the broker did not take the message", code)
        if error.retry_helps:
            asyncio.get_running_loop().call_later(self._refusals.next_s(), self._again, waiting)
        else:
            waiting.message_id.set_exception(error)

    def _again(self, waiting: _Unanswered) -> None:
        if not waiting.message_id.done() and not waiting.copies:  # a new connection may have sent it
            self._write(waiting)

    def _fail(self, why: Exception) -> None:
        """Note that no connection will come: whoever waits hears why. The first reason counts."""
        if self._failed is None:
            self._failed = why if isinstance(why, HeadraceError) else ConnectionLost(str(why))
        for waiting in self._unanswered.values():
            if not waiting.message_id.done():
                waiting.message_id.set_exception(self._failed)


class _Unanswered:
    """A message that was sent, or waits for a connection. `copies`: how often it was written on this connection without
    an answer; `is_over`: nobody waits for it any more."""

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.copies = 0
        self.is_over = False
        self.message_id: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


def may_help(why: Exception) -> bool:
    """Return whether another attempt may go better than one that ended with this: all but what the broker refuses for
    good, and a certificate that does not verify."""
    if isinstance(why, ssl.SSLCertVerificationError):
        return False
    return why.retry_helps if isinstance(why, HeadraceError) else True
