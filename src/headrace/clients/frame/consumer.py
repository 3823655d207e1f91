"""A consumer of a topic queue over frames, for asyncio: one of as many as are wanted that share a cluster.

    engine = create_async_engine("postgresql+psycopg://...")
    consumer = Consumer("frame://127.0.0.1:6800", "dormitory/doors", "log", database=engine)

    @consumer.handler
    async def store(message: Message, db: AsyncConnection) -> None:
        await db.execute(insert(openings).values(lock=message.sn, what=message.payload.decode()))

    await consumer.run()

Runs on the loop; a handler that is no coroutine runs in a thread. What a handler has returned from is acknowledged; what
it raised for is not, and comes again when the broker's `frames.visibility_s` is over, to whichever consumer asks then.

**With a database** the handler gets an open connection, or a session where `database` is a sessionmaker, in a transaction
that also has the message's id under a primary key (`processed.py`): however often the message comes, it is processed
once, and acknowledged each time. An id is kept for `keep_ids_s`. A message can come as long as its queue has it, which
is `frames.queue_age_s` (a week unless it is configured otherwise), so ids have to be kept for longer than that.

**Messages that fail each time.** Each worker pauses behind a failure, the longer the more there were in a row. A message
that failed `attempts_max` times in this consumer goes to the function under `@consumer.poison`, with the last error, and
is acknowledged when that returns; with a database the note of its id is in the same transaction. Without such a function
it stays in the queue and is tried again after each visibility time-out, before what is newer, until the queue's limits
take it: nothing is lost silently, and at most `frames.cluster_in_flight_max` such messages hold up nobody else. What
fails before its handler was called, because the database is away or busy, does not count against the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeVar

from headrace.backoff import Backoff
from headrace.clients.frame.acknowledging import Acknowledging
from headrace.clients.frame.connection import Access, FrameConnection
from headrace.clients.frame.errors import refused
from headrace.clients.frame.handling import Function, Handling, handling_of
from headrace.clients.frame.message import Message
from headrace.clients.frame.pool import Pool
from headrace.clients.frame.producer import may_help
from headrace.errors import HeadraceError
from headrace.frames.bodies import Pulled
from headrace.frames.frame import REDELIVERED

_WAIT_MS: Final = 30_000  # of a PULL
_FAILED_MAX: Final = 10_000  # messages whose failures are counted
_PRUNE_EVERY_S: Final = 3600.0
_FAREWELL_S: Final = 10.0
_LOG: Final = logging.getLogger("headrace.clients.frame")
Handler = TypeVar("Handler", bound=Function)


class Consumer:
    """Consumes one topic queue in one cluster. `pool` is how many messages are handled at a time: a number, or "auto"
    for as many between 1 and `pool_max` as the lag asks for. `sn` is whose consumer it is, the cluster's name unless
    another is given; `user` and `password` are who it is to the broker. Counts: `processed`, `repeats`, `failures` of
    handlers, `poisoned`, `connections`."""

    def __init__(
        self,
        url: str,
        topic: str,
        cluster: str,
        *,
        sn: str | bytes = "",
        user: str = "",
        password: str | bytes = b"",
        tls: ssl.SSLContext | None = None,
        version: int = 2,
        database: object = None,
        keep_ids_s: float = 14 * 86_400.0,
        pool: int | Literal["auto"] = 1,
        pool_max: int = 16,
        attempts_max: int = 5,
        shortest_pause_s: float = 0.2,
        longest_pause_s: float = 30.0,
        open_timeout_s: float = 10.0,
        heartbeat_s: float = 30.0,
    ) -> None:
        self._access = Access.to(
            url, sn or cluster, version=version, user=user, password=password, tls=tls,
            open_timeout_s=open_timeout_s, heartbeat_s=heartbeat_s,
        )  # fmt: skip
        self._topic, self._topic_name, self._cluster = topic.encode("utf-8"), topic, cluster.encode("utf-8")
        least, most = (1, pool_max) if pool == "auto" else (pool, pool)
        self._executor = ThreadPoolExecutor(most, f"headrace-{cluster}")
        self._pool = Pool(self._work, least, most)
        self._database = database
        self._keep_ids_s = keep_ids_s
        self._attempts_max = attempts_max
        self._function: Function | None = None
        self._poison: Function | None = None
        self._handling: Handling | None = None
        self._acknowledging = Acknowledging(self._topic, self._cluster)
        self._failed: OrderedDict[bytes, int] = OrderedDict()
        self._pauses = Backoff(shortest_pause_s, longest_pause_s)
        self._rests = Backoff(shortest_pause_s, longest_pause_s)
        self._stopping = asyncio.Event()
        self.processed = self.repeats = self.failures = self.poisoned = self.connections = 0

    @property
    def acknowledged(self) -> int:
        """Return how many messages the broker knows to be done with."""
        return self._acknowledging.acknowledged

    @property
    def workers(self) -> int:
        """Return how many messages are handled at a time now."""
        return self._pool.size

    def handler(self, function: Handler) -> Handler:
        """Have this function handle the messages: `(message)`, or `(message, connection)` with a database. Raises
        TypeError where a coroutine is to use a blocking database, or the other way round."""
        self._handling = handling_of(function, self._database, self._cluster, self._executor)
        self._function = function
        return function

    def poison(self, function: Handler) -> Handler:
        """Have this function set messages aside that fail each time: `(message, error)`, or `(message, error,
        connection)`; it is a coroutine if the handler is one."""
        self._poison = function
        return function

    async def run(self) -> None:
        """Consume until `stop`. Comes back after lost connections, with pauses. Raises Refused where the broker refuses
        for good, what the database raises when its table cannot be made, and ValueError where it does not undo what is
        rolled back. It may be run again after what it raised."""
        handling = self._handling
        if handling is None:
            raise TypeError("a consumer needs a handler")
        await handling.prepare()
        pruning = asyncio.create_task(self._prune(handling))
        self._pool.start()
        try:
            while not self._stopping.is_set():
                await self._consume()
        finally:
            pruning.cancel()
            await self._pool.finish()
            if self._stopping.is_set():
                self._executor.shutdown(wait=False)

    def stop(self) -> None:
        """Have `run` return, when what is in hand was handled and acknowledged. Called on the loop."""
        self._stopping.set()

    # Connections

    async def _consume(self) -> None:
        """Hold one connection, and make the pause behind it. Raises what another attempt would not help."""
        loop = asyncio.get_running_loop()
        joined_s = float("inf")
        try:
            async with self._joined() as connection:
                joined_s = loop.time()
                await self._take_and_acknowledge(connection)
        except (OSError, TimeoutError, HeadraceError) as error:
            if not may_help(error):
                raise
            _LOG.info("%s: %s", self._topic_name, error)
            self._pool.clear()
            self._pauses.lasted(loop.time() - joined_s)
            await self._pause(self._pauses.next_s())

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond `stop`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    @contextlib.asynccontextmanager
    async def _joined(self) -> AsyncIterator[FrameConnection]:
        """Hold a connection that is a consumer of the cluster; at its end the consumer has left."""
        connection = FrameConnection(self._access)
        connection.on_available = self._available
        try:
            await connection.open()
            code = await connection.join(self._topic, self._cluster)
            if code:
                raise refused(f"the broker refused to let {self._topic_name} be consumed", code)
            self.connections += 1
            yield connection
            async with asyncio.timeout(_FAREWELL_S):
                await connection.leave(self._topic, self._cluster)
                await connection.close()
        finally:
            connection.abort()

    async def _take_and_acknowledge(self, connection: FrameConnection) -> None:
        """Work until `stop`: take messages and acknowledge them. Raises what the connection ended with."""
        acknowledging = asyncio.create_task(self._acknowledging.run(connection))
        taking = asyncio.create_task(self._take(connection))
        stopping = asyncio.create_task(self._stop_in_good_order())
        tasks = {acknowledging, taking, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, connection: FrameConnection) -> None:
        """Send PULL for whoever has nothing to do, again and again."""
        while True:
            most = await self._pool.wait_for_room()
            if self._stopping.is_set():
                await asyncio.Event().wait()  # what is in hand is finished, and this cancelled
            found = await connection.pull(self._topic, self._cluster, most, _WAIT_MS)
            self._pool.put([self._message(pulled) for pulled in found], in_full=len(found) == most)

    async def _stop_in_good_order(self) -> None:
        await self._stopping.wait()
        await self._pool.finish()
        async with asyncio.timeout(_FAREWELL_S):
            await self._acknowledging.wait_until_said()

    def _message(self, pulled: Pulled) -> Message:
        redelivered = bool(pulled.flags & REDELIVERED)
        sn = pulled.sn.decode("utf-8")
        return Message(pulled.message_id, self._topic_name, sn, pulled.time_ms, pulled.payload, redelivered)

    def _available(self, messages: int) -> None:
        if messages:
            self._pool.behind()

    # Messages

    async def _work(self, message: Message) -> None:
        """Handle a message and acknowledge it; what fails waits for its next time. Raises nothing."""
        handling, function = self._handling, self._function
        assert handling is not None
        assert function is not None
        was_called = False

        def called(*arguments: object) -> Any:
            nonlocal was_called
            was_called = True
            return function(*arguments)

        try:
            is_new = await handling.handle(message, called)
        except (Exception, asyncio.CancelledError) as error:  # a handler may raise anything
            if _is_cancelled(error):
                raise
            if await self._failure(handling, message, error, was_called):
                self._acknowledging.add(message.message_id)
            return
        self._rests.lasted(float("inf"))
        self._failed.pop(message.message_id, None)
        self.processed += is_new
        self.repeats += not is_new
        self._acknowledging.add(message.message_id)

    async def _failure(
        self, handling: Handling, message: Message, error: BaseException, was_called: bool
    ) -> bool:
        """Count it, and rest. `was_called`: the handler was, so that the message may be at fault. Returns whether the
        message was set aside."""
        self.failures += 1
        count = self._failed.pop(message.message_id, 0) + was_called
        _LOG.warning(
            "%s: message %s failed (%d): %r", self._topic_name, message.message_id.hex(), count, error
        )
        if self._poison is not None and was_called and count >= self._attempts_max:
            try:
                await handling.handle(message, self._poison, error)
            except (Exception, asyncio.CancelledError) as another:
                if _is_cancelled(another):
                    raise
                _LOG.warning("%s: could not be set aside: %r", message.message_id.hex(), another)
            else:
                self.poisoned += 1
                return True
        self._failed[message.message_id] = count
        if len(self._failed) > _FAILED_MAX:
            self._failed.popitem(last=False)
        await self._pause(self._rests.next_s())
        return False

    async def _prune(self, handling: Handling) -> None:
        """Forget old ids, now and every hour."""
        while True:
            try:
                while await handling.prune(self._keep_ids_s):
                    pass  # others have their turn in between
            except Exception as error:  # noqa: BLE001 - the next time is in an hour
                _LOG.warning("%s: old ids were not deleted: %r", self._topic_name, error)
            await asyncio.sleep(_PRUNE_EVERY_S)


def _is_cancelled(error: BaseException) -> bool:
    """Return whether the task that asks is to end, and not only what a handler has waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
