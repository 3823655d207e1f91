"""The database behind the directory: from its URL to an engine with time limits, and from errors to words.

    sqlite:///DIR/directory.sqlite                   relative; sqlite:////DIR/... is absolute
    postgresql://USER[:PASSWORD]@HOST[:PORT]/NAME    driver psycopg; its options and ~/.pgpass hold
    mysql://USER[:PASSWORD]@HOST[:PORT]/NAME         MySQL or MariaDB, driver PyMySQL; mariadb:// is the same

`?password_file=FILE` in a URL of a server has the password in a file's first line. No message has a password of a URL, a
value of a statement, or a hash.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from headrace.directory.errors import DirectoryUnavailable, InvalidField
from headrace.directory.secret_files import secret_of
from headrace.ownership import open_new

FIELD: Final = "--directory"
_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
_BEGIN: Final = "headrace_begin"  # the execution option that says how a transaction of SQLite begins


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of the calls of a database in seconds, and how many connections there are."""

    connect_s: int = 5
    statement_s: int = 5
    lock_s: int = 5
    connections: int = 4


PATIENCE: Final = Patience()


def url_of(text: str) -> URL:
    """Return the URL of a directory, with the driver that is used and the password of its file. Raises InvalidField."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidField(FIELD, "is no URL of a database, as sqlite:///DIR/directory.sqlite") from None
    kind = url.drivername.partition("+")[0]
    if kind not in _DRIVERS:
        raise InvalidField(FIELD, f"{kind!r} is none of sqlite, postgresql, mysql, mariadb")
    url = url.set(drivername=_DRIVERS[kind])
    if kind == "sqlite":
        if url.host or not url.database or url.database == ":memory:" or url.query:
            raise InvalidField(FIELD, "names no file: sqlite:///DIR/directory.sqlite, with ://// for /DIR")
        return url
    if (not url.host and "host" not in url.query) or not url.database:
        raise InvalidField(FIELD, f"has no host, or no database: {kind}://USER@HOST/NAME")
    return _with_password(url)


def _with_password(url: URL) -> URL:
    """Return a URL with the password of the file that it names, if it names one. Raises InvalidField."""
    file = url.query.get("password_file")
    if file is None:
        return url
    if not isinstance(file, str) or url.password is not None:
        raise InvalidField(FIELD, "has more than one password")
    password = secret_of(Path(file), f"{FIELD}: password_file")
    try:
        return url.difference_update_query(["password_file"]).set(password=password.decode())
    except UnicodeDecodeError:
        raise InvalidField(FIELD, "password_file: its first line is not UTF-8") from None


def shown_url(url: URL) -> str:
    """Return a URL without what is secret in it."""
    kind = url.drivername.partition("+")[0]
    return url.set(drivername=kind, query={}).render_as_string(hide_password=True)


def engine_of(url: URL, patience: Patience = PATIENCE) -> Engine:
    """Return an engine for a URL. It connects to nothing yet. Raises InvalidField where the driver is missing."""
    isolation: dict[str, Any] = {} if _is_sqlite(url) else {"isolation_level": "READ COMMITTED"}
    try:
        engine = create_engine(
            url,
            pool_size=patience.connections,
            max_overflow=0,
            pool_timeout=patience.lock_s,
            pool_pre_ping=True,
            pool_recycle=600,
            hide_parameters=True,
            connect_args=_arguments(url, patience),
            **isolation,
        )
    except ModuleNotFoundError as error:
        raise InvalidField(FIELD, f"needs {error.name}: pip install 'headrace[directory]'") from None
    if _is_sqlite(url):
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def writer_of(engine: Engine) -> Engine:
    """Return the same engine for transactions that write: SQLite has room for one, and lets it wait at its begin."""
    if engine.dialect.name != "sqlite":
        return engine
    return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})


def make_file(url: URL) -> None:
    """Make the file of SQLite for its owner alone, and whom its folder belongs to; nothing elsewhere, or if it is there.
    Raises InvalidField."""
    if not _is_sqlite(url):
        return
    file = Path(str(url.database))
    try:
        os.close(open_new(file, os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise InvalidField(FIELD, f"{file}: {error.strerror}") from None


def check_there(url: URL) -> None:
    """Check that the file of SQLite is there, which a command that only looks does not make. Raises InvalidField."""
    if _is_sqlite(url) and not Path(str(url.database)).exists():
        raise InvalidField(FIELD, f"{url.database}: there is none; `headrace tenant create` makes one")


@contextmanager
def said(url: URL) -> Iterator[None]:
    """Turn what a database says into DirectoryUnavailable, in words without secrets."""
    try:
        yield
    except DBAPIError as error:
        raise DirectoryUnavailable(f"{shown_url(url)}: {_reason(error.orig)}") from None
    except NoConnectionFree as error:
        raise DirectoryUnavailable(f"{shown_url(url)}: {_reason(error)}") from None


def _reason(error: BaseException | None) -> str:
    words = " ".join(str(error).split())
    return words[:300] or type(error).__name__


def _is_sqlite(url: URL) -> bool:
    return url.drivername.startswith("sqlite")


def _arguments(url: URL, patience: Patience) -> dict[str, Any]:
    """Return what a driver is told of our patience."""
    if _is_sqlite(url):
        return {"timeout": patience.lock_s}
    if url.drivername.startswith("postgresql"):
        limits = {"statement_timeout": patience.statement_s, "lock_timeout": patience.lock_s}
        return {
            "connect_timeout": patience.connect_s,
            "tcp_user_timeout": (patience.statement_s + patience.connect_s) * 1000,
            "options": " ".join(f"-c {name}={seconds * 1000}" for name, seconds in limits.items()),
            "client_encoding": "utf8",
            "application_name": "headrace",
        }
    lock = f"SET SESSION innodb_lock_wait_timeout={patience.lock_s}, lock_wait_timeout={patience.lock_s}"
    return {
        "connect_timeout": patience.connect_s,
        "read_timeout": patience.statement_s + patience.lock_s,
        "write_timeout": patience.statement_s + patience.lock_s,
        "charset": "utf8mb4",
        "sql_mode": "STRICT_ALL_TABLES",  # nothing is cut to fit, and a backslash escapes as the driver thinks
        "init_command": lock,
    }


def _set_up_sqlite(connection: Any, _: object) -> None:
    """Have a connection begin its transactions by our own words, and sync each commit."""
    connection.isolation_level = None
    cursor = connection.cursor()
    _write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Have a file keep a log of what is written, which readers do not wait for. Of several who switch a new file to that
    at once SQLite refuses all but one without waiting, whatever the time limit: wait here. Raises OperationalError."""
    (patience_ms,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    until = time.monotonic() + patience_ms / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
