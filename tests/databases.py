"""Databases for tests: SQLite in a file, and PostgreSQL and MariaDB as processes of their own on free ports.

What is missing is a failure: `make setup` installs both. Each is started once a session, and every test that asks gets a
database of its own in it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import create_engine, text

from broker_process import free_port, wait_until

KINDS = ("sqlite", "postgresql", "mariadb")
ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mariadb": "asyncmy"}
_numbers = itertools.count()


class Databases:
    """Starts the servers when the first test asks for them. `url` is a new, empty database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def url(self, kind: str) -> str:
        """A URL for SQLAlchemy, of the blocking driver."""
        name = f"db{next(_numbers)}"
        if kind == "sqlite":
            return f"sqlite:///{self._folder / name}.db"
        if kind not in self._servers:
            start = {"postgresql": postgresql, "mariadb": mariadb}[kind]
            self._servers[kind] = self._stack.enter_context(start())
        server = self._servers[kind]
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return f"{server.rpartition('/')[0]}/{name}"

    def close(self) -> None:
        self._stack.close()


def asynchronous(url: str) -> str:
    """The same database, by its driver for asyncio."""
    scheme, _, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    return f"{kind}+{ASYNC_DRIVERS[kind]}://{rest}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder that the servers' users may enter: pytest's own are closed to them."""
    found = Path(tempfile.mkdtemp(prefix="headrace-db-", dir="/tmp"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


def _as(user: str) -> list[str]:
    """How to run something as this user, who is not root."""
    return ["runuser", "-u", user, "--"] if os.geteuid() == 0 else []


def _command(name: str) -> str:
    places = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*places, "/usr/sbin", "/usr/bin", "/usr/local/bin"]))
    assert found, f"{name} is not installed: make setup installs it"
    return found


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server; its URL."""
    with postgresql_server() as server:
        yield server.url


@contextlib.contextmanager
def postgresql_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that can be taken away, and be there again."""
    port = free_port()
    with _folder() as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        flags = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        run = _as("postgres")
        subprocess.run([*run, _command("initdb"), "-D", data, *flags], check=True, capture_output=True)
        command = [*run, _command("postgres"), "-D", data, "-p", str(port), "-k", str(folder)]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=60"]
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        server = PostgresServer(url, [*command, *settings], folder)
        with server.running():
            yield server
            server.stop()


class PostgresServer:
    """A PostgreSQL server by its command; `url` is that of its database `postgres`."""

    def __init__(self, url: str, command: list[str], folder: Path) -> None:
        self.url = url
        self._command = command
        self._folder = folder
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self._stack:
            self.start()
            yield

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._stack.enter_context(_server(self._command, self._folder))
        _wait_for(self.url)

    def stop(self) -> None:
        """Take it away at once, as a crash would; who is connected is cut."""
        first = (self._folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        os.kill(int(first), signal.SIGQUIT)
        self._stack.close()


@contextlib.contextmanager
def mariadb() -> Iterator[str]:
    """A MariaDB server; its URL."""
    port = free_port()
    user = "mysql" if os.geteuid() == 0 else ""
    with _folder() as folder:
        if user:
            shutil.chown(folder, user)
        data, socket = folder / "data", folder / "socket"
        owner = [f"--user={user}"] if user else []
        install = [_command("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
        normal = "--auth-root-authentication-method=normal"
        subprocess.run([*install, normal, *owner], check=True, capture_output=True)
        command = [_command("mariadbd"), "--no-defaults", f"--datadir={data}", f"--socket={socket}"]
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--skip-name-resolve"]
        address = [f"--port={port}", "--bind-address=127.0.0.1", f"--pid-file={folder / 'pid'}"]
        with _server([*command, *small, *address, *owner], folder):
            url = f"mariadb+pymysql://root@127.0.0.1:{port}/mysql"
            _wait_for(url)
            yield url


@contextlib.contextmanager
def _server(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")
    try:
        yield
    except BaseException:
        print((folder / "log").read_text(errors="replace"))
        raise
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str) -> None:
    """Wait until the server answers."""
    engine = create_engine(url)

    def answers() -> bool:
        try:
            engine.connect().close()
        except Exception:
            return False
        return True

    wait_until(answers, f"{engine.dialect.name} answers", 120)
    engine.dispose()
