"""A transaction that is gone before its time is never taken for one that held, whoever has ended it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import sessionmaker

from databases import KINDS, Databases, asynchronous
from headrace.clients.frame.errors import TransactionLost
from headrace.clients.frame.processed import PROCESSED, Processed

METADATA = MetaData()
DOORS = Table("doors", METADATA, Column("number", Integer, primary_key=True, autoincrement=False))
ID = bytes(range(16))


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Engine]:
    found = create_engine(databases.url(request.param))
    METADATA.create_all(found)
    Processed(b"log").create(found)
    yield found
    found.dispose()


def rows(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def insert(number: int) -> Any:
    return DOORS.insert().values(number=number)


def swallow(db: Any) -> None:
    """What a handler does that takes an error for a row that is there already."""
    db.execute(insert(1))
    with contextlib.suppress(DBAPIError):
        db.execute(insert(1))


def test_an_error_that_a_handler_has_swallowed_loses_nothing(engine: Engine) -> None:
    """PostgreSQL undoes all of a transaction with an error in it, and says nothing at its COMMIT."""
    processed = Processed(b"log")
    try:
        done = processed.once(engine, ID, swallow)
    except DBAPIError:
        done = False
    assert (rows(engine, DOORS), rows(engine, PROCESSED)) == ((1, 1) if done else (0, 0))
    assert done == (engine.dialect.name != "postgresql")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_for_asyncio(kind: str, databases: Databases) -> None:
    asyncio.run(swallowing_for_asyncio(databases.url(kind), kind))


async def swallowing_for_asyncio(url: str, kind: str) -> None:
    engine = create_async_engine(asynchronous(url))
    processed = Processed(b"log")
    await processed.create_async(engine)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)

    async def work(db: AsyncConnection) -> None:
        await db.execute(insert(1))
        with contextlib.suppress(DBAPIError):
            await db.execute(insert(1))

    async def undone(db: AsyncConnection) -> None:
        await db.execute(insert(2))
        await db.exec_driver_sql("ROLLBACK")

    if kind == "postgresql":
        with pytest.raises(DBAPIError):
            await processed.once_async(engine, ID, work)
    else:
        assert await processed.once_async(engine, ID, work)
    with pytest.raises(TransactionLost):
        await processed.once_async(engine, bytes(16), undone)
    async with engine.connect() as connection:
        count = (await connection.execute(select(func.count()).select_from(DOORS))).scalar_one()
    assert count == (kind != "postgresql")
    await engine.dispose()


@pytest.mark.parametrize("of_session", [False, True])
@pytest.mark.parametrize("how", ["rollback", "ROLLBACK"])
def test_a_handler_that_rolls_back_has_not_processed_its_message(
    engine: Engine, how: str, of_session: bool
) -> None:
    processed = Processed(b"log")
    database = sessionmaker(engine) if of_session else engine

    def work(db: Any) -> None:
        db.execute(insert(1))
        db.rollback() if how == "rollback" else db.execute(text("ROLLBACK"))

    with pytest.raises(TransactionLost):
        processed.once(database, ID, work)
    assert (rows(engine, DOORS), rows(engine, PROCESSED)) == (0, 0)
    assert processed.once(database, ID, lambda db: db.execute(insert(1)))


@pytest.mark.parametrize("of_session", [False, True])
def test_a_handler_that_commits_and_returns_has_processed_its_message(
    engine: Engine, of_session: bool
) -> None:
    processed = Processed(b"log")

    def work(db: Any) -> None:
        db.execute(insert(1))
        db.commit()

    database = sessionmaker(engine) if of_session else engine
    assert processed.once(database, ID, work)
    assert not processed.once(database, ID, work)
    assert (rows(engine, DOORS), rows(engine, PROCESSED)) == (1, 1)


def test_what_fails_behind_a_commit_of_its_own_comes_again(engine: Engine) -> None:
    """Statements that define tables commit what was before them in MariaDB, and so does a handler that says so."""
    processed = Processed(b"log")

    def defines(db: Any) -> None:
        db.execute(text("CREATE TABLE IF NOT EXISTS more (number INTEGER)"))
        raise ZeroDivisionError

    def commits(db: Any) -> None:
        db.execute(insert(1))
        db.commit()
        raise ZeroDivisionError

    def exits(db: Any) -> None:
        db.commit()
        raise SystemExit

    for work in (defines, commits, exits):
        with pytest.raises((ZeroDivisionError, SystemExit)):
            processed.once(engine, ID, work)
        assert rows(engine, PROCESSED) == 0
    assert processed.once(engine, ID, lambda db: db.execute(insert(2)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cancelled_behind_a_commit_of_its_own_comes_again(kind: str, databases: Databases) -> None:
    asyncio.run(cancelling(databases.url(kind)))


async def cancelling(url: str) -> None:
    engine = create_async_engine(asynchronous(url))
    processed = Processed(b"log")
    await processed.create_async(engine)
    committed = asyncio.Event()

    async def commits(db: AsyncConnection) -> None:
        await db.commit()
        committed.set()
        await asyncio.Event().wait()

    async def works(_: AsyncConnection) -> None: ...

    task = asyncio.create_task(processed.once_async(engine, ID, commits))
    await committed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await processed.once_async(engine, ID, works)
    await engine.dispose()


def test_what_fails_leaves_the_note_of_another_who_has_done_it(engine: Engine) -> None:
    """The other one came later, waited at the key, and goes on as soon as this one has rolled back."""
    now = [1000]
    processed = Processed(b"log", lambda: now[0])

    def fail(db: Any) -> None:
        db.rollback()  # and in the same moment the other one works
        now[0] += 1
        assert Processed(b"log", lambda: now[0]).once(engine, ID, lambda other: other.execute(insert(1)))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        processed.once(engine, ID, fail)
    assert rows(engine, PROCESSED) == 1
    assert not processed.once(engine, ID, fail)


def test_a_database_that_commits_each_statement_is_refused(engine: Engine) -> None:
    by_itself = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        Processed(b"log").create(by_itself)
    assert rows(engine, PROCESSED) == 0
    Processed(b"log").create(engine)


def test_a_table_without_transactions_is_refused(databases: Databases) -> None:
    engine = create_engine(databases.url("mariadb"))
    with engine.begin() as db:
        PROCESSED.create(db)
        db.execute(text("ALTER TABLE headrace_processed ENGINE=MyISAM"))
    with pytest.raises(ValueError, match="transaction"):
        Processed(b"log").create(engine)
    assert rows(engine, PROCESSED) == 0
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_asyncio_refuses_them_too(kind: str, databases: Databases) -> None:
    async def create() -> None:
        engine = create_async_engine(asynchronous(databases.url(kind)), isolation_level="AUTOCOMMIT")
        try:
            await Processed(b"log").create_async(engine)
        finally:
            await engine.dispose()

    with pytest.raises(ValueError, match="AUTOCOMMIT"):
        asyncio.run(create())
