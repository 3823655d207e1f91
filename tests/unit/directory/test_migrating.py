"""The schema of a directory: made once, by one, as a whole; an interrupted one is finished, a newer one refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from directory_clock import ME
from headrace.directory.engine import Patience, engine_of, make_file, url_of
from headrace.directory.errors import DirectoryUnavailable, WrongSchema
from headrace.directory.migrating import MIGRATIONS, VERSION_TABLE, Migrator
from headrace.directory.schema import METADATA
from headrace.directory.store import open_store

SECOND = '''"""A second migration."""
from alembic import op
from sqlalchemy import BigInteger, Column

from headrace.directory.migration_steps import create_table

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    create_table("directory_more", Column("one", BigInteger, primary_key=True))
    if {fails}:
        raise RuntimeError("killed")
    create_table("directory_yet_more", Column("one", BigInteger, primary_key=True))
'''


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    found = engine_of(url_of(url))
    make_file(found.url)
    yield found
    found.dispose()


def newer(folder: Path, *, fails: bool) -> Path:
    """Migrations of a later headrace: ours and one more."""
    folder.mkdir(exist_ok=True)
    for file in MIGRATIONS.glob("r*.py"):
        (folder / file.name).write_text(file.read_text("utf-8"))
    (folder / f"r0002_{fails}.py").write_text(SECOND.format(fails=fails))
    return folder


def test_the_migrations_leave_behind_what_the_schema_says(engine: Engine) -> None:
    assert Migrator(engine).version() == ""
    with pytest.raises(WrongSchema, match="no directory yet"):
        Migrator(engine).prepare(make=False)
    assert Migrator(engine).migrate() == ("nothing", "0001")
    assert Migrator(engine).version() == "0001" == Migrator(engine).newest
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, METADATA) == []
        assert connection.execute(text("SELECT * FROM directory_revision")).all() == [(1, 0)]
    assert Migrator(engine).migrate() == ("0001", "0001")


def test_two_migrators_at_once_make_it_once(url: str) -> None:
    engines = [engine_of(url_of(url)) for _ in range(3)]
    make_file(engines[0].url)
    failed: list[BaseException] = []
    start = threading.Barrier(3)

    def prepare(engine: Engine) -> None:
        start.wait(30)
        try:
            Migrator(engine).prepare()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=prepare, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert failed == []
    with engines[0].connect() as connection:
        assert connection.execute(text("SELECT * FROM directory_revision")).all() == [(1, 0)]
        assert connection.execute(text(f"SELECT * FROM {VERSION_TABLE}")).all() == [("0001",)]
    for engine in engines:
        engine.dispose()


def test_another_migrator_is_waited_for_longer_than_another_writer(url: str, engine: Engine) -> None:
    """A first start on a slow disk is no reason for a second broker to refuse its own."""
    hasty = engine_of(url_of(url), Patience(lock_s=1))
    done: list[tuple[str, str]] = []
    later = Migrator(hasty, wait_s=100)
    waiting = threading.Thread(target=lambda: done.append(later.migrate()))
    first = Migrator(engine)
    with first._engine.connect() as connection, first._alone(connection):
        connection.execute(text("SELECT 1"))
        waiting.start()
        waiting.join(2.5)
        assert waiting.is_alive()
        assert later.version() == ""  # who only looks does not wait
    waiting.join(120)
    assert done == [("nothing", "0001")]
    hasty.dispose()


def test_a_newer_schema_refuses_the_start_and_an_older_one_waits_for_a_person(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    open_store(url, make=True).close()
    later = Migrator(engine, newer(tmp_path / "later", fails=False))
    with pytest.raises(
        WrongSchema, match="of version 0001, and this headrace has 0002: `headrace directory migrate`"
    ):
        later.prepare()
    assert later.migrate() == ("0001", "0002")
    later.prepare()
    with pytest.raises(WrongSchema, match="0002, which this headrace does not know"):
        open_store(url, make=True)
    with pytest.raises(WrongSchema, match="A newer headrace has made them"):
        Migrator(engine).migrate()


def test_an_interrupted_migration_is_finished_by_the_next(url: str, engine: Engine, tmp_path: Path) -> None:
    store = open_store(url, make=True)
    store.tenants.create(ME, "acme")
    folder = newer(tmp_path / "later", fails=True)
    with pytest.raises(RuntimeError, match="killed"):
        Migrator(engine, folder).migrate()
    assert Migrator(engine).version() == "0001"  # what it was goes on serving
    assert store.tenants.get("acme").name == "acme"
    store.close()
    (folder / "r0002_True.py").write_text(SECOND.format(fails=False))
    assert Migrator(engine, folder).migrate() == ("0001", "0002")
    tables = set(inspect(engine).get_table_names())
    assert {"directory_more", "directory_yet_more"} <= tables


@pytest.mark.parametrize("left", [1, 5, 11])
def test_some_tables_of_a_first_start_that_was_killed(url: str, engine: Engine, left: int) -> None:
    """As MariaDB leaves them, where each CREATE TABLE commits by itself."""
    with engine.begin() as connection:
        for table in list(METADATA.tables.values())[:left]:
            table.create(connection)
    store = open_store(url, make=True)
    assert store.tenants.create(ME, "acme").revision == 1
    store.close()


def test_tables_of_somebody_else_are_refused_by_name(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE directory_users (id INTEGER PRIMARY KEY, email VARCHAR(50))"))
    with pytest.raises(
        WrongSchema, match="the table directory_users is not the directory's: it has the columns email, id"
    ):
        open_store(url, make=True)
    with pytest.raises(WrongSchema, match="directory_users"):
        open_store(url, make=True)


def test_a_migrator_that_does_not_end_is_waited_for_for_a_time(url: str, engine: Engine) -> None:
    holder, other = Migrator(engine, wait_s=1), engine_of(url_of(url), Patience(lock_s=1))
    with holder._engine.connect() as connection, holder._alone(connection):
        connection.execute(text("SELECT 1"))
        with pytest.raises(DirectoryUnavailable):
            Migrator(other, wait_s=1).migrate()
    Migrator(other).migrate()
    other.dispose()
