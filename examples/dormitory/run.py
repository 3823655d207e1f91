"""The whole dormitory: locks, a broker that is killed in the middle, the porter's service, its database, and a picture.

    python run.py [--locks 6000] [--openings 3] [--seconds 20] [--database URL] [--out DIR]

Prints how many openings were sent (answered by the broker), stored, repeated, and lost; exit 1 if any was lost or is
there twice. The database is SQLite in DIR unless a URL of SQLAlchemy says otherwise; the table `openings` is made anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from picture import draw
from service import METADATA, OPENINGS, database
from sqlalchemy import Engine, func, select

from headrace.testing import BrokerProcess

HERE = Path(__file__).parent
LOCK_PROCESSES, SERVICES = 3, 2
PATIENCE_S = 300.0


class Outcome(NamedTuple):
    """`answers` are (Unix s, ms to the answer) of each opening, `stored` Unix s of each row; times of the kill, too."""

    answers: list[tuple[float, float]]
    stored: list[float]
    killed_s: float
    ready_s: float


def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a process has printed at its end."""
    out, _ = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise SystemExit(f"{process.args}: exit status {process.returncode}")
    return dict(json.loads(out))


def begin_locks(url: str, locks: int, openings: int, seconds: float) -> list[subprocess.Popen[str]]:
    edges = [locks * part // LOCK_PROCESSES for part in range(LOCK_PROCESSES + 1)]
    parts = [(first, after - first) for first, after in pairwise(edges)]
    return [begin("locks.py", url, first, count, openings, seconds) for first, count in parts if count]


def kill(processes: list[subprocess.Popen[str]]) -> None:
    """None of them outlives a run that failed."""
    for process in processes:
        process.kill()
        process.wait()


def published(broker: BrokerProcess) -> float:
    """How many PUBLISH frames the broker has got."""
    name = "headrace_publishes_received_total"
    return sum(value for sample, value in broker.metrics().items() if sample.startswith(name))


def wait_for_rows(engine: Engine, count: int) -> None:
    """Until the service has stored so many, or stores nothing more."""
    before, since = -1, time.monotonic()
    while before < count and time.monotonic() - since < 60:
        with engine.connect() as db:
            found = db.execute(select(func.count()).select_from(OPENINGS)).scalar_one()
        if found != before:
            before, since = found, time.monotonic()
        time.sleep(0.1)


def simulate(arguments: argparse.Namespace, engine: Engine) -> tuple[Outcome, Counter[str]]:
    address = engine.url.render_as_string(hide_password=False)
    with (
        BrokerProcess(listeners=["frame://127.0.0.1:0"], durability="fsync") as broker,
        contextlib.ExitStack() as ends,
    ):
        url = broker.listeners[0]
        services = [begin("service.py", url, address) for _ in range(SERVICES)]
        locks = begin_locks(url, arguments.locks, arguments.openings, arguments.seconds)
        ends.callback(kill, services + locks)
        in_the_middle = arguments.locks * arguments.openings // 2
        broker.wait_until(lambda: published(broker) >= in_the_middle, "half of it", PATIENCE_S)
        killed_s = time.time()
        broker.kill()
        broker.start()
        ready_s = time.time()
        reports = [said(process) for process in locks]
        counts = Counter(sent=sum(report["answered"] for report in reports))
        counts["connections"] = sum(report["connections"] for report in reports)
        wait_for_rows(engine, counts["sent"])
        for service in services:
            service.terminate()
        for report in map(said, services):
            counts["repeats"] += report["repeats"]
    with engine.connect() as db:
        stored = [float(found) for (found,) in db.execute(select(OPENINGS.c.stored_s))]
        distinct = select(OPENINGS.c.lock, OPENINGS.c.number).distinct().subquery()
        counts["distinct"] = db.execute(select(func.count()).select_from(distinct)).scalar_one()
    counts["stored"] = len(stored)
    answers = [answer for report in reports for answer in report["answers"]]
    return Outcome(answers, stored, killed_s, ready_s), counts


def main() -> int:
    parser = argparse.ArgumentParser("python run.py", description=__doc__.split("\n")[0])
    parser.add_argument("--locks", type=int, default=6000)
    parser.add_argument("--openings", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--database", default="")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    engine = database(arguments.database or f"sqlite:///{arguments.out / 'dormitory.db'}")
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    outcome, counts = simulate(arguments, engine)
    engine.dispose()
    wanted = arguments.locks * arguments.openings
    lost = wanted - counts["distinct"]
    twice = counts["stored"] - counts["distinct"]
    print(f"locks {arguments.locks}, connections {counts['connections']}, database {engine.dialect.name}")
    print(f"broker killed, ready again after {outcome.ready_s - outcome.killed_s:.1f} s")
    print(
        f"sent {counts['sent']}, stored {counts['stored']}, repeats {counts['repeats']}, twice {twice}, lost {lost}"
    )
    picture = arguments.out / "dormitory.png"
    draw(outcome, picture)
    print(f"picture {picture}")
    return 0 if counts["sent"] == wanted and lost == 0 and twice == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
