"""Redis servers for tests: Debian's `redis-server`, on loopback and free ports, small, stopped by their process.

What is missing is a failure: `make setup` installs it. A server has an append-only file unless a test says otherwise.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hiredis import Reader, ReplyError, pack_command

from broker_process import free_port, wait_until

STOP_S = 10.0
SLOTS = 16_384


class RedisServer:
    """One server. `options` are those of its command line, with their values."""

    def __init__(self, folder: Path, *options: str, cluster: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = list(options)
        if cluster:
            bus = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            self._options += [*bus, "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
            self._options += ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]
        self.password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        folder = self.folder / str(self.port)
        folder.mkdir(exist_ok=True)
        found = shutil.which("redis-server")
        assert found, "redis-server is not installed: make setup installs it"
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        plain = ["--save", "", "--appendonly", "yes", "--daemonize", "no", "--logfile", str(folder / "log")]
        self._process = subprocess.Popen(
            [found, *own, *plain, *self._options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._is_there, f"redis-server at {self.port}", 20.0)

    def _is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / str(self.port) / "log").read_text()
        with contextlib.suppress(OSError):
            self.ask("PING", raw=True)
            return True
        return False

    def slow_start(self) -> None:
        """Start it so that it needs a second or two to load what it has."""
        self._options += ["--key-load-delay", "20000"]
        self.start()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def ask(self, *words: str | int | bytes, raw: bool = False) -> Any:
        """The reply to a command, over a connection of its own. An error is raised, unless it is wanted as it is."""
        with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
            reader = Reader()
            if self.password:
                connection.sendall(pack_command(("AUTH", self.password)))  # type: ignore[arg-type]
                _reply(connection, reader)
            connection.sendall(pack_command(words))  # type: ignore[arg-type]
            reply = _reply(connection, reader)
        if isinstance(reply, ReplyError) and not raw and not str(reply).startswith("NOAUTH"):
            raise reply
        return reply

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"


def _reply(connection: socket.socket, reader: Reader) -> Any:
    while True:
        reply = reader.gets()
        if reply is not False:
            return reply
        data = connection.recv(65_536)
        if not data:
            raise ConnectionResetError
        reader.feed(data)


@contextlib.contextmanager
def redis_servers() -> Iterator[RedisServers]:
    """Servers that end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-redis-", dir="/tmp"))
    servers = RedisServers(folder)
    try:
        yield servers
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)


class RedisServers:
    """Starts servers, and ends all that it has started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[RedisServer] = []

    def single(self, *options: str) -> RedisServer:
        """One server."""
        server = RedisServer(self._folder, *options)
        self.started.append(server)
        return server

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """A server that follows another one, and has caught up."""
        server = self.single("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
        wait_until(
            lambda: b"master_link_status:up" in server.ask("INFO", "replication"),
            "a replica that has caught up",
            20.0,
        )
        return server

    def cluster(self, count: int = 3) -> list[RedisServer]:
        """A cluster of primaries, each with as many slots."""
        nodes = [RedisServer(self._folder, cluster=True) for _ in range(count)]
        self.started += nodes
        for number, node in enumerate(nodes):
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            bus = int(nodes[0].ask("CONFIG", "GET", "cluster-port")[1])
            node.ask("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
        wait_until(lambda: all(knows_all(node, count) for node in nodes), "a cluster that is whole", 30.0)
        return nodes

    def close(self) -> None:
        for server in self.started:
            server.kill()


def knows_all(node: RedisServer, count: int) -> bool:
    info = node.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d" % count in info


def move_slot(slot: int, source: RedisServer, target: RedisServer, nodes: list[RedisServer]) -> None:
    """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
    begin_move(slot, source, target)
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    for key in keys:
        source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    name = target.ask("CLUSTER", "MYID")
    for node in (target, source, *nodes):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)


def begin_move(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Begin to move a slot: keys that are not there any more, or not yet, are the target's."""
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
