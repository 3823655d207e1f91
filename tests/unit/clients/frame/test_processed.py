"""Once, whatever comes twice: the id and the work are one transaction, in SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from databases import KINDS, Databases, asynchronous
from headrace.clients.frame.processed import PROCESSED, PRUNED_MAX, Processed

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


def opened(number: int) -> Any:
    return lambda db: db.execute(DOORS.insert().values(number=number))


def test_a_message_is_processed_once_in_each_cluster(engine: Engine) -> None:
    log, other = Processed(b"log"), Processed(b"LOG ")  # which a collation may take for the same
    assert log.once(engine, ID, opened(1))
    assert not log.once(engine, ID, opened(2))
    assert other.once(engine, ID, opened(3))
    assert log.once(engine, bytes(16), opened(4))
    assert (rows(engine, DOORS), rows(engine, PROCESSED)) == (3, 3)


def test_what_the_work_raises_undoes_the_note_too(engine: Engine) -> None:
    processed = Processed(b"log")

    def fail(db: Any) -> None:
        db.execute(DOORS.insert().values(number=1))
        db.execute(DOORS.insert().values(number=1))

    with pytest.raises(IntegrityError):  # the work's own, which is no repeat
        processed.once(engine, ID, fail)
    assert (rows(engine, DOORS), rows(engine, PROCESSED)) == (0, 0)
    assert processed.once(engine, ID, opened(1))


def test_of_two_at_a_time_one_works_and_the_other_finds_a_repeat(engine: Engine) -> None:
    processed = Processed(b"log")
    begun, go_on, found = threading.Event(), threading.Event(), []

    def slowly(db: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        db.execute(DOORS.insert().values(number=1))

    first = threading.Thread(target=lambda: found.append(processed.once(engine, ID, slowly)))
    second = threading.Thread(target=lambda: found.append(processed.once(engine, ID, opened(1))))
    first.start()
    assert begun.wait(60)
    second.start()
    go_on.set()
    first.join(60)
    second.join(60)
    assert sorted(found) == [False, True]
    assert rows(engine, DOORS) == 1


def test_the_second_works_where_the_first_was_undone(engine: Engine) -> None:
    processed = Processed(b"log")

    def fail(db: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        processed.once(engine, ID, fail)
    with sessionmaker(engine).begin() as session:
        assert session.get_bind() is engine
    assert processed.once(sessionmaker(engine), ID, work_of_a_session)
    assert not processed.once(sessionmaker(engine), ID, work_of_a_session)
    assert rows(engine, DOORS) == 1


def work_of_a_session(session: Session) -> None:
    assert isinstance(session, Session)
    session.execute(DOORS.insert().values(number=5))


def test_the_table_is_made_by_whoever_comes_first(engine: Engine) -> None:
    PROCESSED.drop(engine)
    failed: list[Exception] = []

    def make() -> None:
        try:
            Processed(b"log").create(sessionmaker(engine))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert rows(engine, PROCESSED) == 0


def test_old_ids_of_the_cluster_are_pruned(engine: Engine) -> None:
    now = [1_000_000]
    processed = Processed(b"log", lambda: now[0])
    assert Processed(b"other", lambda: now[0]).once(engine, ID, opened(0))
    for number in range(1, 4):
        assert processed.once(engine, bytes([number]) * 16, opened(number))
        now[0] += 1000
    assert processed.prune(engine, 1.5) == 2
    assert processed.once(engine, bytes([1]) * 16, opened(10))  # it is forgotten
    assert not processed.once(engine, bytes([3]) * 16, opened(11))
    assert rows(engine, PROCESSED) == 3


def test_ids_are_pruned_in_parts_that_hold_up_nobody(engine: Engine) -> None:
    now = 1_000_000
    processed = Processed(b"log", lambda: now)
    old = [{"cluster": b"log", "message_id": b"%16d" % number, "time_ms": number} for number in range(1200)]
    with engine.begin() as db:
        db.execute(PROCESSED.insert(), old)
    assert processed.once(engine, ID, opened(1))
    key = (PROCESSED.c.cluster == b"log") & (PROCESSED.c.message_id == ID)
    with engine.begin() as db:  # which holds the lock of a row
        db.execute(PROCESSED.update().where(key).values(time_ms=now + 1))
        if engine.dialect.name != "sqlite":  # which has one writer at a time
            assert processed.prune(engine, 0) == PRUNED_MAX
    found = [processed.prune(engine, 0) for _ in range(5)]
    assert sum(found) in (1200, 1200 - PRUNED_MAX)
    assert max(found) == PRUNED_MAX
    assert found[-1] == 0
    assert rows(engine, PROCESSED) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_for_asyncio(kind: str, databases: Databases) -> None:
    asyncio.run(once_for_asyncio(databases.url(kind)))


async def once_for_asyncio(url: str) -> None:
    engine = create_async_engine(asynchronous(url))
    processed = Processed(b"log")
    await processed.create_async(async_sessionmaker(engine))
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)

    async def work(db: AsyncConnection | AsyncSession) -> None:
        await db.execute(DOORS.insert().values(number=1))

    async def fail(db: AsyncConnection) -> None:
        await work(db)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await processed.once_async(engine, ID, fail)
    assert await processed.once_async(async_sessionmaker(engine), ID, work)
    assert not await processed.once_async(engine, ID, work)
    async with engine.connect() as connection:
        assert (await connection.execute(select(func.count()).select_from(DOORS))).scalar_one() == 1
    assert await processed.prune_async(engine, -60) == 1
    await engine.dispose()
