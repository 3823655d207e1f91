"""What a client costs in memory: resident KiB of the broker per idle connection and per session that is away.

Both are differences of VmRSS over `count` clients, each connected with an id of 20 bytes; an away session has one
subscription at QoS 1. The broker is measured `SETTLE_S` after the last of them, since both sides free lazily.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestant import Target

TIMEOUT_S = 30
SETTLE_S = 1.0
AT_ONCE = 250


@dataclass(frozen=True)
class Memory:
    """KiB of one broker, per client of each kind."""

    contestant: str
    clients: int
    idle_connection_kib: float
    away_session_kib: float


def measure(contestant: str, target: Target, count: int) -> Memory:
    """Leave `count` sessions behind, then open `count` idle connections. Raises OSError.

    The sessions come first, since they may move into what connections have left; AT_ONCE connections before both
    take what a broker allocates once.
    """
    open_files(count + 200)
    IdleClients(target, AT_ONCE, "warm-up").close()
    before = resident_kib(target)
    for at in range(0, count, AT_ONCE):
        leave_sessions(target, range(at, min(at + AT_ONCE, count)))
    between = resident_kib(target)
    with contextlib.closing(IdleClients(target, count, "idle")):
        after = resident_kib(target)
    return Memory(
        contestant, count, round((after - between) / count, 2), round((between - before) / count, 2)
    )


def resident_kib(target: Target) -> int:
    """VmRSS of all processes of the broker, once it has settled."""
    time.sleep(SETTLE_S)
    found = 0
    for pid in target.pids.split(","):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        found += int(status.split("VmRSS:")[1].split()[0])
    return found


class IdleClients:
    """Open connections that say nothing, until `close`."""

    def __init__(self, target: Target, count: int, name: str) -> None:
        self._sockets: list[socket.socket] = []
        for at in range(0, count, AT_ONCE):
            part = [
                connected(target, f"{name}-{number:0{19 - len(name)}}", clean=True)
                for number in range(at, min(at + AT_ONCE, count))
            ]
            for connection in part:
                expect(connection, b"\x20\x02\x00\x00")
            self._sockets += part

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()


def leave_sessions(target: Target, numbers: range) -> None:
    """Persistent sessions with one subscription each, which then disconnect."""
    part = []
    for number in numbers:
        connection = connected(target, f"away-{number:015}", clean=False)
        topic = b"fleet/%015d/commands" % number
        subscribe = b"\x00\x01" + len(topic).to_bytes(2, "big") + topic + b"\x01"
        connection.sendall(b"\x82" + bytes([len(subscribe)]) + subscribe)
        part.append(connection)
    for connection in part:
        expect(connection, b"\x20\x02\x00\x00\x90\x03\x00\x01\x01")
        connection.sendall(b"\xe0\x00")
        while connection.recv(64):  # the broker closes
            pass
        connection.close()


def connected(target: Target, client_id: str, clean: bool) -> socket.socket:
    """A socket with CONNECT (3.1.1) sent; keep-alive off."""
    connection = socket.create_connection((target.host, target.port), TIMEOUT_S)
    body = b"\x00\x04MQTT\x04" + (b"\x02" if clean else b"\x00") + b"\x00\x00"
    body += len(client_id).to_bytes(2, "big") + client_id.encode()
    connection.sendall(b"\x10" + bytes([len(body)]) + body)
    return connection


def expect(connection: socket.socket, answer: bytes) -> None:
    """Raises ConnectionError when something else comes."""
    got = b""
    while len(got) < len(answer):
        part = connection.recv(len(answer) - len(got))
        if not part:
            raise ConnectionError("the broker closed the connection")
        got += part
    if got != answer:
        raise ConnectionError(f"the broker answered {got.hex()} instead of {answer.hex()}")


def open_files(wanted: int) -> None:
    """Raise the limit of descriptors, ours and so that of the brokers we start. Raises OSError, ValueError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(wanted, soft), hard), hard))
