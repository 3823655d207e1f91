"""Does the time of a refusal tell which users there are, or how their passwords are hashed?

    python -m benchmarks.login_times [--rounds 200] [--record]

A password file with users of four kinds of hash (ours; two of Mosquitto's; one whose cost is ours by half), a wrong
password for each of them, and a name that there is not. In each round all of them once, in an order of its own:

- `work`: what a thread does for the answer (`PasswordFile.verify`), in process CPU milliseconds;
- `wire`: from CONNECT to CONNACK at a broker of its own, in milliseconds.

What an attacker learns from one attempt is how often the slower of two is of the known user: 0.5 is nothing, 0 or 1 is
all (the area under the ROC curve, of Mann and Whitney). `chance` is the probability that equal times would show as much
or more, by SHUFFLES shuffles of the labels. The claim is that of the wire: exit 1 where `chance` is below CHANCE, divided
by how many are asked (Bonferroni). `--record` writes results/login-times.json.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import socket
import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from argon2 import PasswordHasher

from benchmarks.flood_packets import connect
from benchmarks.machine import machine
from headrace.services.passwords import PasswordFile, hash_password, write_hashes
from headrace.testing import BrokerProcess

RESULT = Path(__file__).parent / "results" / "login-times.json"
ROUNDS, SHUFFLES, CHANCE = 200, 2000, 0.01
NOBODY, WARM_UP = "nobody", 5
TIMEOUT_S = 30


def pbkdf2(iterations: int) -> str:
    """As mosquitto_passwd writes it."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", b"right", salt, iterations)
    return f"$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def users() -> dict[str, str]:
    """A user for each kind of hash."""
    half = PasswordHasher(time_cost=1, memory_cost=19 * 1024, parallelism=1)
    return {
        "ours": hash_password(b"right"),
        "half-as-dear": half.hash(b"right"),
        "mosquitto-101": pbkdf2(101),
        "mosquitto-20000": pbkdf2(20_000),
    }


@dataclass(frozen=True)
class Told:
    """What one way of measuring tells of one user beside a name that there is not. Medians in milliseconds."""

    way: str
    user: str
    median_ms: float
    nobody_median_ms: float
    slower: float
    chance: float


def slower(ours: list[float], theirs: list[float]) -> float:
    """How often one of `ours` is above one of `theirs`; equal ones count half."""
    ordered, found = sorted(theirs), 0.0
    for value in ours:
        found += (bisect_left(ordered, value) + bisect_right(ordered, value)) / 2
    return found / len(ours) / len(theirs)


def chance(ours: list[float], theirs: list[float]) -> float:
    """How probable it is that equal ones are as far from 0.5, or farther."""
    seen, every = abs(slower(ours, theirs) - 0.5), ours + theirs
    shuffle, as_far = random.Random(1), 0
    for _ in range(SHUFFLES):
        shuffle.shuffle(every)
        as_far += abs(slower(every[: len(ours)], every[len(ours) :]) - 0.5) >= seen
    return (as_far + 1) / (SHUFFLES + 1)


def measured(ask: Callable[[str], float], names: list[str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each name, one of each in every round."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-WARM_UP, rounds):
        for name in random.sample(names, len(names)):
            found = ask(name) * 1000
            if number >= 0:
                taken[name].append(found)
    return taken


def work(hashes: dict[str, str], rounds: int) -> dict[str, list[float]]:
    file = PasswordFile(hashes)

    def ask(name: str) -> float:
        began = time.process_time()
        file.verify(name, b"wrong")
        return time.process_time() - began

    return measured(ask, [*hashes, NOBODY], rounds)


def wire(hashes: dict[str, str], rounds: int) -> dict[str, list[float]]:
    def ask(name: str) -> float:
        with socket.create_connection((broker.host, broker.port), TIMEOUT_S) as made:
            time.sleep(random.random() * 0.02)  # not in step with the broker
            began = time.perf_counter()
            made.sendall(connect(b"guess", login=(name.encode(), b"wrong")))
            answer = made.recv(4)
            taken = time.perf_counter() - began
        if answer != b"\x20\x02\x00\x05":
            raise RuntimeError(f"{name}: {answer.hex()} instead of a refusal")
        return taken

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "passwords"
        write_hashes(file, hashes)
        with BrokerProcess({"access.password_file": str(file)}) as broker:
            return measured(ask, [*hashes, NOBODY], rounds)


def told(way: str, taken: dict[str, list[float]]) -> list[Told]:
    nobody, found = taken[NOBODY], []
    for user, times in taken.items():
        if user != NOBODY:
            ours, theirs = statistics.median(times), statistics.median(nobody)
            above, luck = slower(times, nobody), chance(times, nobody)
            found.append(Told(way, user, round(ours, 3), round(theirs, 3), round(above, 3), round(luck, 4)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.login_times", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    hashes = users()
    rows = told("work", work(hashes, options.rounds)) + told("wire", wire(hashes, options.rounds))
    for row in rows:
        print(asdict(row))
    if options.record:
        result = {
            "question": __doc__,
            "machine": machine(),
            "wanted": {"chance": CHANCE},
            "rounds": options.rounds,
            "rows": [asdict(row) for row in rows],
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    wired = [row for row in rows if row.way == "wire"]
    return 1 if any(row.chance < CHANCE / len(wired) for row in wired) else 0


if __name__ == "__main__":
    raise SystemExit(main())
