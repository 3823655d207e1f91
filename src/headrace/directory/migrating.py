"""The schema of a directory: made, brought forward by one migrator at a time, or refused.

An empty database gets the tables of this headrace. Tables of an older headrace are brought forward by
`headrace directory migrate` alone, since brokers of that one may use them still; tables of a newer one are refused.

Where DDL is part of a transaction (SQLite, PostgreSQL) a migration is there as a whole or not at all. MariaDB and MySQL
commit each statement by itself: what a migrator that was killed has left is taken up by the next one, since every step
may be done again and the version is written last; then the columns of every table are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from headrace.directory.engine import said, writer_of
from headrace.directory.errors import DirectoryUnavailable, WrongSchema
from headrace.directory.schema import METADATA

VERSION_TABLE: Final = "directory_schema"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
WAIT_S: Final = 30  # for another migrator
_LOCK_NUMBER: Final = 0x68_64_72_63  # "hdrc", of PostgreSQL's advisory locks
_FIRST: Final = "nothing"


class Migrator:
    """Brings the schema of one database to that of this headrace. `migrations` is a folder of alembic's."""

    def __init__(self, engine: Engine, migrations: Path = MIGRATIONS, wait_s: int = WAIT_S) -> None:
        self._reader = engine
        self._engine = writer_of(engine)
        self._script = ScriptDirectory(str(migrations), version_locations=[str(migrations)])
        self._wait_s = wait_s

    @property
    def newest(self) -> str:
        """Return the version that this headrace brings a schema to."""
        return str(self._script.get_current_head())

    def version(self) -> str:
        """Return the version of the schema, "" for a database without one. Raises WrongSchema for one that this headrace
        does not know, DirectoryUnavailable."""
        with said(self._reader.url), self._reader.connect() as connection:
            return self._known_version(connection)

    def prepare(self, make: bool = True) -> None:
        """Check that the tables are those of this headrace; in a database that has none, `make` makes them, or finishes
        making them. Raises WrongSchema if they are not there, an older headrace's, or a newer one's,
        DirectoryUnavailable."""
        found = self.version()
        if not found and make:
            self.migrate()
        elif not found:
            raise WrongSchema("the database has no directory yet: `headrace tenant create` makes one")
        elif found != self.newest:
            raise WrongSchema(
                f"the directory's tables are of version {found}, and this headrace has {self.newest}: "
                "`headrace directory migrate` brings them forward, once no older broker uses them"
            )

    def migrate(self) -> tuple[str, str]:
        """Bring the tables forward, and return from which version to which. Raises WrongSchema, DirectoryUnavailable."""
        with said(self._engine.url), self._engine.connect() as connection, self._alone(connection):
            before = self._known_version(connection)
            if before != self.newest:
                self._refuse_encoding(connection)
                self._run(connection)
                self._check_columns(connection)
            connection.commit()
        return before or _FIRST, self.newest

    def _known_version(self, connection: Connection) -> str:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        found = context.get_current_revision() or ""
        if found and found not in {script.revision for script in self._script.walk_revisions()}:
            raise WrongSchema(
                f"the directory's tables are of version {found}, which this headrace does not know: it has "
                f"{self.newest}. A newer headrace has made them; use that one"
            )
        return found

    def _run(self, connection: Connection) -> None:
        """Run what is missing, as part of the transaction of the connection where DDL can be."""

        def steps(revision: Any, _: object) -> Any:
            return self._script._upgrade_revs("head", revision)

        with EnvironmentContext(Config(), self._script, fn=steps) as environment:
            environment.configure(connection=connection, version_table=VERSION_TABLE)
            with environment.begin_transaction():
                environment.run_migrations()

    @contextmanager
    def _alone(self, connection: Connection) -> Iterator[None]:
        """Hold the lock of migrators, beyond the statements that commit by themselves. SQLite's is the write lock, which
        the first statement takes."""
        name = connection.dialect.name
        if name == "sqlite":
            driver: Any = connection.connection.driver_connection
            (usual_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
            driver.execute(f"PRAGMA busy_timeout = {self._wait_s * 1000}")
            try:
                yield
            finally:
                driver.execute(f"PRAGMA busy_timeout = {usual_ms}")
        elif name == "postgresql":
            for limit in ("lock_timeout", "statement_timeout"):
                connection.execute(text(f"SET LOCAL {limit} = {self._wait_s * 1000}"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
            yield
        else:
            lock = {"name": f"headrace directory {self._engine.url.database}"[:64]}
            self._take(connection, lock)
            try:
                yield
            finally:
                if not connection.invalidated:
                    connection.execute(text("SELECT RELEASE_LOCK(:name)"), lock)

    def _take(self, connection: Connection, lock: dict[str, str]) -> None:
        """Take a lock of MariaDB's by its name, in turns shorter than the time limit of an answer. Raises
        DirectoryUnavailable."""
        until = time.monotonic() + self._wait_s
        while connection.execute(text("SELECT GET_LOCK(:name, 1)"), lock).scalar() != 1:
            if time.monotonic() > until:
                raise DirectoryUnavailable(f"another migrator has been at work for {self._wait_s} s")

    def _refuse_encoding(self, connection: Connection) -> None:
        """Refuse a database of PostgreSQL that cannot hold every name. Raises WrongSchema."""
        if connection.dialect.name == "postgresql":
            encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
            if encoding != "UTF8":
                raise WrongSchema(
                    f"the encoding of the database is {encoding}: CREATE DATABASE ... ENCODING 'UTF8'"
                )

    def _check_columns(self, connection: Connection) -> None:
        """Check that every table has its columns: one of that name may have been somebody else's. Raises WrongSchema."""
        inspector = inspect(connection)
        for table in METADATA.sorted_tables if self._script.dir == str(MIGRATIONS) else ():
            found = {column["name"] for column in inspector.get_columns(table.name)}
            wanted = set(table.columns.keys())
            if found != wanted:
                raise WrongSchema(
                    f"the table {table.name} is not the directory's: it has the columns {', '.join(sorted(found))}"
                )
