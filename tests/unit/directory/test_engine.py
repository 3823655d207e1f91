"""URLs of directories, and what is said of a database: never a secret."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from directory_clock import ME
from headrace.directory.engine import Patience, engine_of, said, shown_url, url_of
from headrace.directory.errors import DirectoryUnavailable, InvalidField, OutcomeUnknown
from headrace.directory.store import open_store
from headrace.directory.transactions import Database


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///a/directory.sqlite", "sqlite+pysqlite"),
        ("sqlite:////a/directory.sqlite", "sqlite+pysqlite"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("postgres://u@h:5/d", "postgresql+psycopg"),
        ("mysql://u:p@h/d", "mysql+pymysql"),
        ("mariadb://u:p@h/d", "mysql+pymysql"),
        ("mysql+pymysql://u:p@h/d", "mysql+pymysql"),
    ],
)
def test_urls(given: str, driver: str) -> None:
    assert url_of(given).drivername == driver


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "oracle://h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///a?mode=ro",
        "sqlite://h/a",
        "mysql:///d",
        "postgresql://h",
    ],
)
def test_what_is_no_url_of_a_directory(wrong: str) -> None:
    with pytest.raises(InvalidField, match=r"^--directory: "):
        url_of(wrong)


def test_a_password_comes_from_a_file_that_others_may_not_read(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"s3cret@:/%\nmore\n")
    file.chmod(0o600)
    found = url_of(f"postgresql://u@h/d?password_file={file}&sslmode=require")
    assert (found.password, dict(found.query)) == ("s3cret@:/%", {"sslmode": "require"})
    assert "s3cret" not in shown_url(found) + repr(found) + str(found)
    file.chmod(0o644)
    with pytest.raises(InvalidField, match="everybody on this machine may read it"):
        url_of(f"postgresql://u@h/d?password_file={file}")
    with pytest.raises(InvalidField, match="more than one password"):
        url_of(f"postgresql://u:p@h/d?password_file={file}")
    with pytest.raises(InvalidField, match="No such file"):
        url_of(f"postgresql://u@h/d?password_file={file}x")


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_server_that_is_not_there_is_said_without_its_password(kind: str) -> None:
    began = time.monotonic()
    with pytest.raises(DirectoryUnavailable) as caught:
        open_store(f"{kind}://user:s3cret@127.0.0.1:1/name", make=True, patience=Patience(connect_s=2))
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).startswith(f"{kind}://user:***@127.0.0.1:1/name: ")
    assert caught.value.retry_helps
    assert time.monotonic() - began < 60


def test_a_file_of_sqlite_is_its_owner_s_alone(tmp_path: Path) -> None:
    file = tmp_path / "directory.sqlite"
    with pytest.raises(InvalidField, match="there is none"):
        open_store(f"sqlite:///{file}", make=False)
    assert not file.exists()
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{file}", make=True)
        store.tenants.create(ME, "acme")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes
    with pytest.raises(InvalidField, match="No such file"):
        open_store(f"sqlite:///{tmp_path}/none/directory.sqlite", make=True)


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    file = tmp_path / "directory.sqlite"
    file.write_bytes(b"no database at all, but long enough for a header of one" * 20)
    with pytest.raises(DirectoryUnavailable, match="file is not a database"):
        open_store(f"sqlite:///{file}", make=True)


def test_a_writer_that_holds_its_lock_is_waited_for_for_a_time(url: str) -> None:
    store = open_store(url, make=True)
    other = open_store(url, make=False, patience=Patience(lock_s=1))
    with store.database.writing(ME):
        with pytest.raises(DirectoryUnavailable):
            other.tenants.create(ME, "acme")
        assert other.tenants.all() == []  # readers wait for nobody
    other.tenants.create(ME, "acme")
    store.close()
    other.close()


def test_who_makes_a_new_file_meanwhile_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself waits for nobody who switches a file to a log that is written ahead."""
    file = tmp_path / "new.sqlite"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(OperationalError, match="locked"),
        engine_of(url_of(f"sqlite:///{file}"), Patience(lock_s=0)).connect(),
    ):
        pass
    done = threading.Timer(0.5, other.execute, ["COMMIT"])
    done.start()
    with engine_of(url_of(f"sqlite:///{file}"), Patience(lock_s=60)).connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
    done.join()
    other.close()


def test_connections_are_bounded_and_waited_for_for_a_time(url: str) -> None:
    store = open_store(url, make=True, patience=Patience(connections=1, lock_s=1))
    found: list[BaseException] = []

    def look() -> None:
        try:
            store.tenants.all()
        except DirectoryUnavailable as error:
            found.append(error)

    with store.database.reading():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)
    assert len(found) == 1
    assert store.tenants.all() == []
    store.close()


def test_a_commit_whose_connection_breaks_is_not_known() -> None:

    class Breaking:
        def commit(self) -> None:
            raise OperationalError(
                "COMMIT", {}, sqlite3.OperationalError("gone"), connection_invalidated=True
            )

    engine = engine_of(url_of("postgresql://u:s3cret@h/d"))
    with pytest.raises(OutcomeUnknown, match="look whether it was made") as caught:
        Database(engine)._commit(Breaking())  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)
    with pytest.raises(DirectoryUnavailable, match="gone"), said(engine.url):
        raise OperationalError("SELECT 's3cret'", {}, sqlite3.OperationalError("gone"))


def test_nothing_of_a_statement_is_in_an_error(url: str) -> None:
    store = open_store(url, make=True)
    with pytest.raises(DirectoryUnavailable) as caught, store.database.reading() as connection:
        connection.execute(text("SELECT :value FROM directory_none"), {"value": "s3cret"})
    assert "s3cret" not in str(caught.value)
    store.close()
