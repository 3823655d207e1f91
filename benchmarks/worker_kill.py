"""A worker is killed at full load: when are its clients served again, and what do the clients of the other one notice?

    python -m benchmarks.worker_kill [--rounds 4] [--record]

Two workers, each loaded by pairs at window 64 whose publisher and subscriber are at home there. Beside them one pair of
the worker that lives passes 500 messages a second; its latencies are compared with those of the same run without a kill,
in turns. *Served* is a PUBACK to a client of the killed worker, which tries again every 10 ms; the time since the kill
holds the start of a Python process and the recovery of what the load has written until then.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from string import ascii_lowercase

from benchmarks.contestant import Target, compiled, running
from benchmarks.generator import parsed
from benchmarks.machine import machine
from benchmarks.process_tree import members
from benchmarks.record import parser_of, show
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect

LOADS, SECONDS, KILL_AFTER_S, GIVE_UP_S = 2, 10, 4.0, 60.0
LIVES, DIES = 0, 1


@dataclass(frozen=True)
class Trial:
    """One run: the latencies of the watched pair, and the seconds from the kill to a PUBACK (0: nobody was killed)."""

    killed: bool
    p50_ms: float
    p99_ms: float
    served_s: float


def clients_at(home: int) -> tuple[str, str]:
    """A prefix and two letters of client ids, with which both clients of mqbench's only pair are at home in a worker."""
    homes, prefix = Homes(2), secrets.token_hex(3)
    letters = [c for c in ascii_lowercase if homes.of_client(DEFAULT_TENANT, f"{prefix}-{c}-0") == home]
    return prefix, letters[0] + letters[1]


def pair(target: Target, home: int, *options: str) -> list[str]:
    """The command of one pair of clients at home in a worker."""
    command = [
        str(compiled("mqbench")),
        "-h",
        target.host,
        "-p",
        str(target.port),
        "-m",
        "p2p",
        "-n",
        "1",
        "-q",
        "1",
    ]
    prefix, letters = clients_at(home)
    return [*command, "-c", "-x", prefix, "-l", letters, *options]


def worker_of(target: Target, index: int) -> int:
    """The process of a worker. Raises StopIteration when there is none."""
    sign = f'"index": {index}'
    return next(p.pid for p in members(int(target.pids)) if any(sign in part for part in p.cmdline()))


def served_after(target: Target, began: float) -> float:
    """Seconds from `began` until a client of the killed worker has a PUBACK. Raises TimeoutError after a minute."""
    prefix, letters = clients_at(DIES)
    name = f"{prefix}-{letters[0]}-0"
    packets = codec.encode_connect(Connect(4, name, True, 0))
    packets += codec.encode_publish(4, b"kill/probe", b"x", 1, False, False, 1)
    while (taken := time.monotonic() - began) < GIVE_UP_S:
        try:
            with socket.create_connection((target.host, target.port), 1.0) as client:
                client.sendall(packets)
                answer = client.recv(4)  # CONNACK
                if len(answer) == 4 and answer[3] == 0 and client.recv(4)[:1] == b"\x40":
                    return time.monotonic() - began
        except OSError:
            pass  # refused, closed, or not answered within a second
        time.sleep(0.01)
    raise TimeoutError(f"no PUBACK {taken:.0f} s after the kill")


def trial(killed: bool) -> Trial:
    """One run on a fresh broker. Raises ServiceError, RunFailed, TimeoutError."""
    with ExitStack() as stack:
        target = stack.enter_context(running("headrace", options=("--workers", "2")))
        for home in (LIVES, DIES):
            for _ in range(LOADS):
                command = pair(target, home, "-w", "64", "-t", str(SECONDS + 10))
                load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(load.wait)
                stack.callback(load.kill)
        command = pair(target, LIVES, "-r", "500", "-t", str(SECONDS), "-W", "2", "-b", target.pids)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watched:
            stack.callback(watched.kill)
            time.sleep(KILL_AFTER_S)
            served = 0.0
            if killed:
                os.kill(worker_of(target, DIES), signal.SIGKILL)
                served = served_after(target, time.monotonic())
            said, _ = watched.communicate(timeout=SECONDS + 30)
        run = parsed(said, "one worker is killed", str(killed))
        return Trial(killed, run.delivery_p50_ms, run.delivery_p99_ms, round(served, 2))


def main() -> int:
    parser = parser_of("worker_kill", __doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each, with a kill and without")
    options = parser.parse_args()
    about, trials = machine(), []
    for _ in range(options.rounds):
        for killed in (False, True):
            trials.append(trial(killed))
            print(trials[-1], file=sys.stderr, flush=True)
    result = {
        "question": "When are the clients of a killed worker served again, and what do the others notice?",
        "machine": about,
        "served again after s": sorted(one.served_s for one in trials if one.killed),
        "p99 ms of the others": {
            name: statistics.median(one.p99_ms for one in trials if one.killed == killed)
            for name, killed in (("without a kill", False), ("with one", True))
        },
        "trials": [asdict(one) for one in trials],
    }
    show(result, "worker_kill" if options.record else "", long=("trials",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
