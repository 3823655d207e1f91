"""How a message is handled: a coroutine on the loop or a function in a thread, alone or in a transaction with its id."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.clients.frame.message import Message

if TYPE_CHECKING:
    from headrace.clients.frame.processed import AsyncDatabase, Database, Processed

Function = Callable[..., Any]


class Handling(Protocol):
    """One way of handling messages. `prepare` is called before all else; `handle` returns False for a message that was
    processed before; `prune` forgets some of the ids that are older than so many seconds; 0: there were none."""

    async def prepare(self) -> None: ...

    async def handle(self, message: Message, function: Function, *more: object) -> bool: ...

    async def prune(self, keep_s: float) -> int: ...


def handling_of(function: Function, database: object, cluster: bytes, executor: Executor) -> Handling:
    """Return the way of handling that fits the handler and the database. Raises TypeError where the two do not fit each
    other."""
    on_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if database is None:
        return OnLoop() if on_loop else InThread(executor)
    from headrace.clients.frame.processed import Processed  # SQLAlchemy is an extra

    if on_loop != is_async(database):
        kinds = ("an AsyncEngine or async_sessionmaker", "an Engine or sessionmaker")
        raise TypeError(
            f"a handler that is {'a coroutine' if on_loop else 'no coroutine'} needs {kinds[not on_loop]}"
        )
    processed = Processed(cluster)
    if on_loop:
        return OnLoopOnce(processed, cast("AsyncDatabase", database))
    return InThreadOnce(processed, cast("Database", database), executor)


def is_async(database: object) -> bool:
    """Return whether a database is an `AsyncEngine` or an `async_sessionmaker`."""
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

    return isinstance(database, AsyncEngine | async_sessionmaker)


def check_finished(result: object) -> None:
    """Raise TypeError where a function that is no coroutine has returned one, or a generator: its work has not begun, and
    nobody would do it."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"a handler that is no coroutine has returned a {type(result).__name__}, which nobody runs"
        )


class OnLoop:
    """Handles by coroutines on the loop, at least once."""

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def handle(self, message: Message, function: Function, *more: object) -> bool:
        await function(message, *more)
        return True

    async def prune(self, keep_s: float) -> int:
        return 0


class InThread:
    """Handles by functions in threads, at least once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def handle(self, message: Message, function: Function, *more: object) -> bool:
        work = partial(function, message, *more)
        check_finished(await asyncio.get_running_loop().run_in_executor(self._executor, work))
        return True

    async def prune(self, keep_s: float) -> int:
        return 0


class OnLoopOnce:
    """Handles by coroutines on the loop, once: each in a transaction with the id of its message."""

    def __init__(self, processed: Processed, database: AsyncDatabase) -> None:
        self._processed = processed
        self._database = database

    async def prepare(self) -> None:
        await self._processed.create_async(self._database)

    async def handle(self, message: Message, function: Function, *more: object) -> bool:
        def work(opened: object) -> Awaitable[object]:
            return cast("Awaitable[object]", function(message, *more, opened))

        return await self._processed.once_async(self._database, message.message_id, work)

    async def prune(self, keep_s: float) -> int:
        return await self._processed.prune_async(self._database, keep_s)


class InThreadOnce:
    """Handles by functions in threads, once: each in a transaction with the id of its message."""

    def __init__(self, processed: Processed, database: Database, executor: Executor) -> None:
        self._processed = processed
        self._database = database
        self._executor = executor

    async def _run(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def prepare(self) -> None:
        await self._run(partial(self._processed.create, self._database))

    async def handle(self, message: Message, function: Function, *more: object) -> bool:
        def work(opened: object) -> None:
            check_finished(function(message, *more, opened))

        return bool(await self._run(partial(self._processed.once, self._database, message.message_id, work)))

    async def prune(self, keep_s: float) -> int:
        return int(await self._run(partial(self._processed.prune, self._database, keep_s)))
