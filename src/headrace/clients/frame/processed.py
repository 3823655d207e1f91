"""The table of the messages that were processed, in the user's own database (SQLAlchemy: SQLite, PostgreSQL, MariaDB).

    headrace_processed: cluster, message_id (together the primary key), time_ms when it was processed (Unix)

The id is written first in the transaction in which the handler then works. So either both are there or neither is, and of
two who process one message at the same time the second waits at the key for the first: where that one commits, it finds
a repeat, where it rolls back, it goes on. The cluster's name is bytes, so that no collation takes two names for one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError

METADATA = MetaData()
PROCESSED = Table(
    "headrace_processed",
    METADATA,
    Column("cluster", LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb"), primary_key=True),
    Column("message_id", LargeBinary().with_variant(mysql.BINARY(16), "mysql", "mariadb"), primary_key=True),
    Column("time_ms", BigInteger, nullable=False, index=True),
)


class Database(Protocol):
    """An `Engine` or a `sessionmaker`: `begin` opens a transaction, which commits unless something is raised."""

    def begin(self) -> AbstractContextManager[Any]: ...


class AsyncDatabase(Protocol):
    """An `AsyncEngine` or an `async_sessionmaker`."""

    def begin(self) -> AbstractAsyncContextManager[Any]: ...


class _Repeated(Exception):
    """The id is there already: roll back."""


class Processed:
    """What a cluster has processed. `now_ms` tells the time."""

    def __init__(
        self, cluster: bytes, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._cluster = cluster
        self._now_ms = now_ms

    def _row(self, message_id: bytes) -> Any:
        return PROCESSED.insert().values(cluster=self._cluster, message_id=message_id, time_ms=self._now_ms())

    def _old(self, keep_s: float) -> Any:
        oldest_ms = self._now_ms() - int(keep_s * 1000)
        return PROCESSED.delete().where(PROCESSED.c.cluster == self._cluster, PROCESSED.c.time_ms < oldest_ms)

    # Blocking

    def create(self, database: Database) -> None:
        """Make the table if it is not there; another service may do so at the same time."""
        try:
            self._create(database)
        except DBAPIError:
            self._create(database)

    @staticmethod
    def _create(database: Database) -> None:
        with database.begin() as opened:
            METADATA.create_all(opened if hasattr(opened, "dialect") else opened.connection())

    def once(self, database: Database, message_id: bytes, work: Callable[[Any], object]) -> bool:
        """Do the work in a transaction with the note of the id. Returns False where it was done before; raises what the
        work or the database raises, and then neither is done."""
        try:
            with database.begin() as opened:
                try:
                    opened.execute(self._row(message_id))
                except IntegrityError:
                    raise _Repeated from None
                work(opened)
        except _Repeated:
            return False
        return True

    def prune(self, database: Database, keep_s: float) -> int:
        """Delete the ids of this cluster that are older. Returns their number."""
        with database.begin() as opened:
            return int(opened.execute(self._old(keep_s)).rowcount)

    # For asyncio

    async def create_async(self, database: AsyncDatabase) -> None:
        """Make the table, as `create` does."""
        try:
            await self._create_async(database)
        except DBAPIError:
            await self._create_async(database)

    @staticmethod
    async def _create_async(database: AsyncDatabase) -> None:
        async with database.begin() as opened:
            connection = opened if hasattr(opened, "dialect") else await opened.connection()
            await connection.run_sync(METADATA.create_all)

    async def once_async(
        self, database: AsyncDatabase, message_id: bytes, work: Callable[[Any], Awaitable[object]]
    ) -> bool:
        """Do the work, as `once` does."""
        try:
            async with database.begin() as opened:
                try:
                    await opened.execute(self._row(message_id))
                except IntegrityError:
                    raise _Repeated from None
                await work(opened)
        except _Repeated:
            return False
        return True

    async def prune_async(self, database: AsyncDatabase, keep_s: float) -> int:
        """Delete old ids, as `prune` does."""
        async with database.begin() as opened:
            return int((await opened.execute(self._old(keep_s))).rowcount)
