"""How long does a login take while ten thousand strangers knock?

    python -m benchmarks.strangers [--logins 30] [--only guesses-many] [--record]

A broker with a password file that remembers nothing, so that each login costs a hash, and a user who logs in LOGINS
times, from connect to CONNACK, alone and beside each of these, STRANGERS connections that come back as soon as they are
over, after as many have come once:

- `silent`: they connect and say nothing;
- `abandoned`: CONNECT with a name that there is not, and gone, half of them at once, half when so many others have come;
- `unknown`: CONNECT with a name that there is not, wait for the answer, and again;
- `guesses`: the same with the user's own name and a wrong password, each of which has to be hashed.

`-one`: all from one address, which is the user's as well but for the guesses; `-many`: each of the strangers has an
address of its own, and comes back with another. Strangers give way to the broker (nice 10), as clients on machines of
their own do, and who measures to nobody (nice -10, if allowed). Wanted: p99 below WANTED_S, and no login refused; exit 1
beyond. `--record` writes results/strangers.json.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.flood_packets import connect
from benchmarks.machine import machine
from benchmarks.memory import open_files
from demo.services import REPOSITORY
from headrace.services.passwords import hash_password, write_hashes
from headrace.testing import BrokerProcess

RESULT = Path(__file__).parent / "results" / "strangers.json"
STRANGERS, LOGINS, WANTED_S = 10_000, 30, 1.0
USER, PASSWORD = b"ada", b"lovelace"
PAUSE_S, UNDER_WAY_S, PATIENCE_S = 0.2, 120, 30
OWN = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed without TIME-WAIT, of which there would be too many
SUCCESS = b"\x20\x02\x00\x00"


@dataclass(frozen=True)
class Kind:
    """What a stranger says, whether it waits for the answer, and where all of them come from (None: anywhere)."""

    says: Callable[[int], bytes]
    waits: bool
    source: str | None


def nobody(number: int) -> bytes:
    return connect(b"stranger-%d" % number, login=(b"stranger-%d" % number, b"guess"))


def guess(number: int) -> bytes:
    return connect(b"guess-%d" % number, login=(USER, b"guess-%d" % number))


KINDS = {
    "silent-one": Kind(lambda _: b"", True, OWN),
    "silent-many": Kind(lambda _: b"", True, None),
    "abandoned-one": Kind(nobody, False, OWN),
    "abandoned-many": Kind(nobody, False, None),
    "unknown-one": Kind(nobody, True, OWN),
    "unknown-many": Kind(nobody, True, None),
    "guesses-one": Kind(guess, True, "127.0.0.2"),
    "guesses-many": Kind(guess, True, None),
}


@dataclass(frozen=True)
class Row:
    """Seconds of the logins beside one kind of strangers; `knocks` are their connections a second meanwhile."""

    strangers: str
    p50_s: float
    p99_s: float
    max_s: float
    refused: int
    knocks: float

    def beyond(self) -> bool:
        return self.p99_s >= WANTED_S or self.refused > 0


class Crowd:
    """`STRANGERS` connections of a kind, each of which is replaced as soon as it is over."""

    def __init__(self, host: str, port: int, kind: Kind) -> None:
        self._to = (host, port)
        self._kind = kind
        self._numbers, self._names = itertools.count(), itertools.count()
        self._open: dict[int, socket.socket] = {}
        self._lingering: deque[socket.socket] = deque()
        self._epoll = select.epoll()
        self.knocks = 0

    def gather(self) -> None:
        """So many have knocked, and as many are there as are not answered at once."""
        while self.knocks < STRANGERS:
            self._come()
            self._over(0.0)

    def pour(self) -> None:
        while True:
            self._over(0.5)
            while len(self._open) + len(self._lingering) < STRANGERS:
                self._come()

    def _come(self) -> None:
        number = next(self._numbers)
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        source = (
            self._kind.source or f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{1 + number % 250}"
        )
        made.bind((source, 0))
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect(self._to)
        self._open[made.fileno()] = made
        self._epoll.register(made, select.EPOLLOUT)
        self.knocks += 1

    def _over(self, wait_s: float) -> bool:
        """Say what is to be said to whoever let us in, and forget who has cut or answered us."""
        ready = self._epoll.poll(wait_s)
        for fd, events in ready:
            if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                self._speak(fd)
            else:
                self._forget(fd)
        return bool(ready)

    def _speak(self, fd: int) -> None:
        made = self._open[fd]
        try:
            made.sendall(self._kind.says(next(self._names)))
        except OSError:
            self._forget(fd)
            return
        if self._kind.waits:
            self._epoll.modify(fd, select.EPOLLIN)
            return
        self._epoll.unregister(fd)
        del self._open[fd]
        if self.knocks % 2:
            made.close()
            return
        self._lingering.append(made)
        if len(self._lingering) > STRANGERS // 2:
            self._lingering.popleft().close()

    def _forget(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._open.pop(fd).close()


def be_strangers(name: str, host: str, port: int) -> None:
    """Say `under way` once all have knocked, go on until SIGTERM, then say how many a second there were."""
    open_files(STRANGERS + 500)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    crowd = Crowd(host, port, KINDS[name])
    crowd.gather()
    before, began = crowd.knocks, time.monotonic()
    print("under way", flush=True)
    try:
        crowd.pour()
    finally:
        print(json.dumps((crowd.knocks - before) / (time.monotonic() - began)), flush=True)


def log_in(host: str, port: int, count: int) -> tuple[list[float], int]:
    """Seconds from connect to CONNACK of each login, and how many were not let in."""
    taken, refused = [], 0
    for number in range(count):
        began = time.perf_counter()
        try:
            with socket.create_connection((host, port), PATIENCE_S, (OWN, 0)) as made:
                made.sendall(connect(b"ada-%d" % number, login=(USER, PASSWORD)))
                refused += made.recv(4) != SUCCESS
        except OSError:
            refused += 1
        taken.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)  # not in step with the refusals
    return taken, refused


def logins(host: str, port: int, count: int) -> tuple[list[float], int]:
    """The same in a process of its own, which need not wait for a processor."""
    first = ["nice", "-n", "-10"] if os.geteuid() == 0 else []
    command = [*first, sys.executable, "-m", "benchmarks.strangers", "--log-in", f"{host}:{port}"]
    said = subprocess.run(
        [*command, "--logins", str(count)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, check=True
    )
    taken, refused = json.loads(said.stdout)
    return taken, refused


@contextlib.contextmanager
def knocking(name: str, host: str, port: int, rate: list[float]) -> Iterator[None]:
    """The strangers are there. Raises RuntimeError if they cannot all come."""
    if name == "alone":
        rate.append(0.0)
        yield
        return
    command = ["nice", "-n", "10", sys.executable, "-m", "benchmarks.strangers", "--be", name]
    with subprocess.Popen(
        [*command, "--at", f"{host}:{port}"], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as crowd:
        assert crowd.stdout is not None
        try:
            if not select.select([crowd.stdout], [], [], UNDER_WAY_S)[0]:
                raise RuntimeError(f"the strangers {name} did not all knock within {UNDER_WAY_S} s")
            crowd.stdout.readline()
            yield
        finally:
            crowd.terminate()
        rate.append(float(crowd.stdout.readline()))


def beside(name: str, count: int) -> Row:
    """The logins beside these strangers, at a broker of their own."""
    with tempfile.TemporaryDirectory() as folder:
        passwords, rate = Path(folder) / "passwords", list[float]()
        write_hashes(passwords, {USER.decode(): hash_password(PASSWORD)})
        settings = {"access.password_file": str(passwords), "access.remember_s": 0}
        with BrokerProcess(settings) as broker, knocking(name, broker.host, broker.port, rate):
            taken, refused = logins(broker.host, broker.port, count)
    found = [round(seconds, 3) for seconds in sorted(taken)]
    p50, p99 = statistics.median(found), found[min(len(found) - 1, len(found) * 99 // 100)]
    return Row(name, p50, p99, found[-1], refused, round(rate[0], 1))


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.strangers", description=__doc__.split("\n")[0])
    parser.add_argument("--logins", type=int, default=LOGINS)
    parser.add_argument("--only", default="", help="kinds of strangers, with commas between them")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--be", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--log-in", help=argparse.SUPPRESS)
    options = parser.parse_args()
    host, _, port = (options.at or options.log_in or ":0").rpartition(":")
    if options.be:
        be_strangers(options.be, host, int(port))
    if options.log_in:
        print(json.dumps(log_in(host, int(port), options.logins)))
        return 0
    open_files(STRANGERS * 2)
    rows = []
    for name in options.only.split(",") if options.only else ["alone", *KINDS]:
        rows.append(beside(name, options.logins))
        print(rows[-1], "BEYOND" if rows[-1].beyond() else "", flush=True)
    if options.record:
        result = {
            "question": __doc__,
            "machine": machine(),
            "wanted": {"p99_s": WANTED_S},
            "strangers": STRANGERS,
            "logins": options.logins,
            "rows": [asdict(row) for row in rows],
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.beyond() for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
