"""The table of the messages that were processed, in the user's own database (SQLAlchemy: SQLite, PostgreSQL, MariaDB).

    headrace_processed: cluster, message_id (together the primary key), time_ms when it was processed (Unix)

The id is written first in the transaction in which the handler then works. So either both are there or neither is, and of
two who process one message at the same time the second waits at the key for the first: where that one commits, it finds
a repeat, where it rolls back, it goes on. The cluster's name is bytes, so that no collation takes two names for one.

A transaction may be gone before its COMMIT, without an error: PostgreSQL undoes one with a failed statement in it,
MariaDB that of the victim of a deadlock, SQLite one that has met a full disk; or the handler has ended it. So the id is
looked for, by its key, before it is believed, and taken back where work failed behind a commit of its own. A database
that commits each statement by itself, or a table of an engine without transactions, is found by an attempt and refused.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, bindparam, select
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError

from headrace.clients.frame.errors import TransactionLost

METADATA = MetaData()
PROCESSED = Table(
    "headrace_processed",
    METADATA,
    Column("cluster", LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb"), primary_key=True),
    Column("message_id", LargeBinary().with_variant(mysql.BINARY(16), "mysql", "mariadb"), primary_key=True),
    Column("time_ms", BigInteger, nullable=False, index=True),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


PRUNED_MAX: Final = 500  # in one transaction


class Database(Protocol):
    """An `Engine` or a `sessionmaker`: `begin` opens a transaction, which commits unless something is raised."""

    def begin(self) -> AbstractContextManager[Any]: ...


class AsyncDatabase(Protocol):
    """An `AsyncEngine` or an `async_sessionmaker`."""

    def begin(self) -> AbstractAsyncContextManager[Any]: ...


class _Repeated(Exception):
    """The id is there already: roll back."""


class _Undone(Exception):
    """Roll an attempt back."""


class _Note(NamedTuple):
    """A row of the table. `time_ms` is when its writer began, which tells it from that of another writer."""

    cluster: bytes
    message_id: bytes
    time_ms: int

    def write(self, opened: Any) -> None:
        """Write the row. Raises _Repeated where somebody has written it."""
        try:
            opened.execute(PROCESSED.insert().values(self._asdict()))
        except IntegrityError:
            raise _Repeated from None

    def _is_row(self) -> Any:
        key = PROCESSED.c.cluster == self.cluster, PROCESSED.c.message_id == self.message_id
        return *key, PROCESSED.c.time_ms == self.time_ms

    def is_there(self, opened: Any) -> bool:
        return opened.execute(select(PROCESSED.c.time_ms).where(*self._is_row())).first() is not None

    def check(self, opened: Any) -> None:
        """Check that the row is there. Raises TransactionLost if it is not, or what a transaction raises that cannot be
        committed."""
        if not self.is_there(opened):
            raise TransactionLost(self.message_id)

    def take_back(self, opened: Any) -> bool:
        """Delete the row if it is there. Returns whether it was."""
        there = self.is_there(opened)  # which waits for nobody who has written another one and goes on
        if there:
            opened.execute(PROCESSED.delete().where(*self._is_row()))
        return there

    def attempt(self, opened: Any) -> None:
        """Write it and raise _Undone, so that it must not be there afterwards."""
        self.write(opened)
        raise _Undone


def _refuse(stayed: bool) -> None:
    if stayed:
        raise ValueError(
            f"the database keeps what was rolled back: AUTOCOMMIT, or a table {PROCESSED.name} without transactions"
        )


class Processed:
    """The messages that a cluster has processed. `now_ms` tells the time."""

    def __init__(
        self, cluster: bytes, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._cluster = cluster
        self._now_ms = now_ms

    def _note(self, message_id: bytes) -> _Note:
        return _Note(self._cluster, message_id, self._now_ms())

    def _prune(self, opened: Any, keep_s: float) -> int:
        oldest_ms = self._now_ms() - int(keep_s * 1000)
        ours = PROCESSED.c.cluster == self._cluster
        old = select(PROCESSED.c.message_id).where(ours, PROCESSED.c.time_ms < oldest_ms)
        ids = opened.execute(old.order_by(PROCESSED.c.time_ms).limit(PRUNED_MAX)).scalars().all()
        if ids:  # each by its key: MariaDB may scan for a list of them, and waits then for whoever has a row locked
            one = PROCESSED.delete().where(ours, PROCESSED.c.message_id == bindparam("old"))
            opened.execute(one, [{"old": found} for found in ids])
        return len(ids)

    # Blocking

    def create(self, database: Database) -> None:
        """Make the table if it is not there; another service may do so at the same time. Raises ValueError where a
        transaction cannot be rolled back."""
        try:
            self._create(database)
        except DBAPIError:
            self._create(database)
        note = self._note(secrets.token_bytes(16))
        with contextlib.suppress(_Undone), database.begin() as opened:
            note.attempt(opened)
        with database.begin() as opened:
            stayed = note.take_back(opened)
        _refuse(stayed)

    @staticmethod
    def _create(database: Database) -> None:
        with database.begin() as opened:
            METADATA.create_all(opened if hasattr(opened, "dialect") else opened.connection())

    def once(self, database: Database, message_id: bytes, work: Callable[[Any], object]) -> bool:
        """Do the work in a transaction with the note of the id. Returns False where it was done before; raises what the
        work or the database raises, and then neither is done."""
        note = self._note(message_id)
        failed = False
        try:
            with database.begin() as opened:
                note.write(opened)
                try:
                    work(opened)
                except BaseException:  # a cancelled handler's work is not done either
                    failed = True
                    raise
                holds = opened.in_transaction()
                if holds:
                    note.check(opened)
            if not holds:
                with database.begin() as opened:
                    note.check(opened)
        except _Repeated:
            return False
        except BaseException:
            if failed:
                self._take_back(database, note)
            raise
        return True

    @staticmethod
    def _take_back(database: Database, note: _Note) -> None:
        with contextlib.suppress(DBAPIError), database.begin() as opened:
            note.take_back(opened)

    def prune(self, database: Database, keep_s: float) -> int:
        """Delete ids of this cluster that are older, `PRUNED_MAX` at most, so that nobody waits for long. Returns their
        number."""
        with database.begin() as opened:
            return self._prune(opened, keep_s)

    # For asyncio

    async def create_async(self, database: AsyncDatabase) -> None:
        """Make the table, as `create` does."""
        try:
            await self._create_async(database)
        except DBAPIError:
            await self._create_async(database)
        note = self._note(secrets.token_bytes(16))
        with contextlib.suppress(_Undone):
            async with database.begin() as opened:
                await opened.run_sync(note.attempt)
        async with database.begin() as opened:
            stayed = await opened.run_sync(note.take_back)
        _refuse(stayed)

    @staticmethod
    async def _create_async(database: AsyncDatabase) -> None:
        async with database.begin() as opened:
            connection = opened if hasattr(opened, "dialect") else await opened.connection()
            await connection.run_sync(METADATA.create_all)

    async def once_async(
        self, database: AsyncDatabase, message_id: bytes, work: Callable[[Any], Awaitable[object]]
    ) -> bool:
        """Do the work, as `once` does."""
        note = self._note(message_id)
        failed = False
        try:
            async with database.begin() as opened:
                await opened.run_sync(note.write)
                try:
                    await work(opened)
                except BaseException:  # a cancelled handler's work is not done either
                    failed = True
                    raise
                holds = opened.in_transaction()
                if holds:
                    await opened.run_sync(note.check)
            if not holds:
                async with database.begin() as opened:
                    await opened.run_sync(note.check)
        except _Repeated:
            return False
        except BaseException:
            if failed:
                await self._take_back_async(database, note)
            raise
        return True

    @staticmethod
    async def _take_back_async(database: AsyncDatabase, note: _Note) -> None:
        with contextlib.suppress(DBAPIError):
            async with database.begin() as opened:
                await opened.run_sync(note.take_back)

    async def prune_async(self, database: AsyncDatabase, keep_s: float) -> int:
        """Delete old ids, as `prune` does."""
        async with database.begin() as opened:
            return int(await opened.run_sync(self._prune, keep_s))
