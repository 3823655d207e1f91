"""Directories on every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databases import KINDS, Databases
from directory_clock import Clock
from headrace.directory.engine import engine_of, url_of
from headrace.directory.schema import METADATA, REVISION
from headrace.directory.store import Store, open_store


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str:
    """An empty database of each engine."""
    return databases.url(request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def made(databases: Databases) -> dict[str, str]:
    """Directories that were made, by engine: tests which leave the tables as they are share one."""
    return {}


@pytest.fixture(params=KINDS)
def shared_url(request: pytest.FixtureRequest, databases: Databases, made: dict[str, str]) -> str:
    """A directory of each engine, without anything in it."""
    kind: str = request.param
    if kind not in made:
        made[kind] = databases.url(kind)
        open_store(made[kind], make=True).close()
    empty(made[kind])
    return made[kind]


def empty(url: str) -> None:
    """Have a directory be as it was when it was made."""
    engine = engine_of(url_of(url))
    with engine.begin() as connection:
        for table in METADATA.tables.values():
            if table is not REVISION:
                connection.execute(table.delete())
        connection.execute(REVISION.update().values(revision=0))
    engine.dispose()


@pytest.fixture
def store(shared_url: str, clock: Clock) -> Iterator[Store]:
    """An empty directory on each engine."""
    found = open_store(shared_url, make=False, clock_us=clock.now_us)
    yield found
    found.close()


@pytest.fixture
def lite(databases: Databases, clock: Clock) -> Iterator[Store]:
    """A new directory on SQLite, for what does not depend on the engine."""
    found = open_store(databases.url("sqlite"), make=True, clock_us=clock.now_us)
    yield found
    found.close()
