"""What is put into HBase: rows of many streams go together, as soon as a connection is free for them.

A batch that HBase refuses is put once more, each stream for itself: one that it does not take costs the others nothing.
Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from headrace.stores.hbase.gateway import GatewayPool, HBaseError
from headrace.stores.hbase.table import Table

BATCH_BYTES: Final = 1 << 20
BATCH_PUTS: Final = 200

_Put = tuple[list[Any], int, "asyncio.Future[None]"]


class PutBatches:
    """The puts that wait, and those under way: `most` batches at once."""

    def __init__(
        self, table: Table, pool: GatewayPool, most: int, contain: Callable[[Exception], None]
    ) -> None:
        """Begin with none. `contain` gets what should not have been raised."""
        self.calls = 0
        self._contain = contain
        self._table = table
        self._pool = pool
        self._free = most
        self._waiting: deque[_Put] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Send nothing more."""
        for task in self._tasks:
            task.cancel()

    async def put(self, rows: list[Any], size: int) -> None:
        """Put rows of a stream, whose entries have so many bytes. Raises HBaseError, after which some may be there. Who
        does not wait any longer has nothing put that was not sent yet."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, size, done))
        if self._free:
            self._free -= 1
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await done

    async def _send(self) -> None:
        """Send batches until nothing waits."""
        try:
            while batch := self._next():
                await self._send_batch(batch)
        finally:
            self._free += 1

    def _next(self) -> list[_Put]:
        """Take the next batch."""
        batch: list[_Put] = []
        size = 0
        while self._waiting and size < BATCH_BYTES and len(batch) < BATCH_PUTS:
            put = self._waiting.popleft()
            if not put[2].done():
                batch.append(put)
                size += put[1]
        return batch

    async def _send_batch(self, batch: list[_Put]) -> None:
        """Send a batch, and say what became of it."""
        error = await self._sent([row for rows, _, _ in batch for row in rows])
        for rows, _, done in batch:
            if error is not None and error.answered and len(batch) > 1 and not done.done():
                _tell(done, await self._sent(rows))
            else:
                _tell(done, error)

    async def _sent(self, rows: list[Any]) -> HBaseError | None:
        """Put rows; returns what went wrong."""
        self.calls += 1
        try:
            await self._pool.run(lambda gateway: self._table.put(gateway, rows))
        except HBaseError as error:
            return error
        except Exception as error:  # noqa: BLE001  whatever it is, those that wait are told, and the next batch is sent
            self._contain(error)
            return HBaseError(type(error).__name__, str(error), answered=False)
        return None


def _tell(done: asyncio.Future[None], error: HBaseError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
