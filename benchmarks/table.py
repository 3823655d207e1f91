"""The whole table: headrace (PUBACK after fdatasync) beside Mosquitto and a bare echo in C, in turns, in one run.

    python -m benchmarks.table [--runs 5] [--seconds 5] [--only w1-100,tls] [--peer NAME=HOST:PORT,pid=N] [--quick]

Writes results/table-<date>.json, with every run, and the chart results/table.png.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.chart import draw
from benchmarks.contestant import Target, peer, running
from benchmarks.generator import Run, RunFailed, load
from benchmarks.machine import machine
from benchmarks.memory import Memory, measure
from benchmarks.verdict import Verdict, verdict
from benchmarks.workload import WORKLOADS, Workload
from demo.services import ServiceError

RESULTS = Path(__file__).parent / "results"
WARM_UP_S, QUICK_WARM_UP_S = 2, 1
WIDTH = 150  # where the output is no terminal
MEMORY_OF = ("headrace", "mosquitto")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.table", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each contestant and row; the best counts")
    parser.add_argument("--seconds", type=int, default=5, help="of each run")
    parser.add_argument("--quick", action="store_true", help="one run of two seconds each")
    parser.add_argument("--only", default="", help="these rows, comma-separated; `memory` is one too")
    parser.add_argument("--peer", action="append", default=[], help="NAME=HOST:PORT,pid=N[+N...]; repeatable")
    parser.add_argument("--clients", type=int, default=5000, help="connections and sessions for the memory")
    parser.add_argument("--label", default="", help="added to the result's name, which is then not drawn")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, 2
    known = {workload.name for workload in WORKLOADS} | {"memory"}
    options.only = [name for name in options.only.split(",") if name]
    if unknown := set(options.only) - known:
        parser.error(
            f"--only: no such row: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )
    try:
        options.peers = dict(peer(text) for text in options.peer)
    except ValueError as error:
        parser.error(str(error))
    return options


class Bench:
    """All runs of one call."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._peers: dict[str, Target] = options.peers
        self._console = console
        self.runs: list[Run] = []
        self.memory: list[Memory] = []
        self.failures: list[str] = []
        self.machine = machine()  # before the load
        self.workloads = [w for w in WORKLOADS if not options.only or w.name in options.only]

    def run(self, advance: Callable[[str], None], save: Callable[[], object]) -> None:
        """All of it; `save` is called after each row, so that a run that is cut short leaves what it found."""
        for workload in self.workloads:
            for _ in range(self._options.runs):
                for name in self.contestants(workload):
                    advance(f"{workload.title}: {name}")
                    self._one(workload, name)
            save()
        for name in self.remembered():
            advance(f"memory: {name}")
            self._memory(name)

    def contestants(self, workload: Workload) -> list[str]:
        return [*workload.contestants, *(self._peers if workload.takes_peers else ())]

    def remembered(self) -> list[str]:
        """Whose memory is measured."""
        wanted = not self._options.only or "memory" in self._options.only
        return [*MEMORY_OF, *self._peers] if wanted else []

    @property
    def steps(self) -> int:
        rows = sum(len(self.contestants(workload)) for workload in self.workloads)
        runs: int = self._options.runs
        return rows * runs + len(self.remembered())

    def _one(self, workload: Workload, name: str) -> None:
        warm_up_s = QUICK_WARM_UP_S if self._options.quick else WARM_UP_S
        seconds = self._options.seconds
        try:
            if name in self._peers:
                run = load(workload, name, self._peers[name], seconds, warm_up_s)
            else:
                with running(name, workload.tls) as target:
                    run = load(workload, name, target, seconds, warm_up_s)
        except (RunFailed, ServiceError) as error:
            self._fail(f"{workload.name}, {name}: {error}")
            return
        self.runs.append(run)
        self._console.print(
            f"{workload.name:<8} {name:<12}{run.messages_per_cpu_s:>11,} per CPU-s {run.messages_per_s:>11,} per s"
            f"   p50 {run.delivery_p50_ms:.2f}  p99 {run.delivery_p99_ms:.2f} ms   lost {run.lost}",
            highlight=False,
        )

    def _memory(self, name: str) -> None:
        try:
            if name in self._peers:
                found = measure(name, self._peers[name], self._options.clients)
            else:
                with running(name) as target:
                    found = measure(name, target, self._options.clients)
        except (OSError, ServiceError) as error:
            self._fail(f"memory, {name}: {error}")
            return
        self.memory.append(found)

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        self._console.print(f"FAILED {what}", style="red", highlight=False)

    def verdicts(self) -> list[Verdict]:
        return [verdict(workload, self.runs) for workload in self.workloads]


def shown(verdicts: list[Verdict], memory: list[Memory]) -> list[Table]:
    """The tables at the end."""
    speed = Table("row", "headrace", "the other", "ratio", "wanted", "to the floor", "p50 / p99 ms, both")
    for row in verdicts:
        ours, theirs = row.best.get(row.measured), row.best.get(row.workload.against)
        if ours is None or theirs is None:
            continue
        latency = " | ".join(f"{r.delivery_p50_ms:.2f} / {r.delivery_p99_ms:.2f}" for r in (ours, theirs))
        floor = row.ratio_to("floor+sync") or row.ratio_to("floor")
        wanted = "" if row.workload.target is None else f"{row.workload.target:g}x"
        mark = {True: "green", False: "red", None: "default"}[row.reached]
        speed.add_row(
            row.workload.title, f"{ours.messages_per_cpu_s:,}", f"{theirs.messages_per_cpu_s:,}",
            f"[{mark}]{row.ratio:.2f}x[/]", wanted, "" if floor is None else f"{floor:.2f}x", latency,
        )  # fmt: skip
    size = Table("KiB per client", "idle connection", "away session with one subscription")
    for found in memory:
        size.add_row(found.contestant, f"{found.idle_connection_kib:.2f}", f"{found.away_session_kib:.2f}")
    return [table for table in (speed, size) if table.row_count]


def keep(bench: Bench, options: argparse.Namespace, seconds: float) -> Path:
    """Write the result as JSON, and the chart; where the JSON is."""
    RESULTS.mkdir(exist_ok=True)
    label = "-".join(filter(None, (options.label, "quick" if options.quick else "")))
    name = f"table-{datetime.now(UTC):%Y-%m-%d}" + (f"-{label}" if label else "")
    verdicts = bench.verdicts()
    result = {
        "question": "Messages in and out per broker CPU-second, best run of each contestant, in turns.",
        "machine": bench.machine,
        "runs_each": options.runs,
        "seconds_each": options.seconds,
        "took_s": round(seconds),
        "rows": [row.as_row() for row in verdicts],
        "memory": [asdict(found) for found in bench.memory],
        "failures": bench.failures,
        "runs": [asdict(run) for run in bench.runs],
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not label and not options.only:
        draw(verdicts, RESULTS / "table.png")
    return path


def main() -> int:
    options = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    bench = Bench(options, console)
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=bench.steps)

        def advance(what: str) -> None:
            progress.update(task, description=what)
            progress.advance(task)

        bench.run(advance, lambda: keep(bench, options, time.monotonic() - began))
    for table in shown(bench.verdicts(), bench.memory):
        console.print(table)
    path = keep(bench, options, time.monotonic() - began)
    console.print(f"{path}, {time.monotonic() - began:.0f} s, {len(bench.failures)} failed")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
