"""What sessions that nothing happens to cost the job `metrics`: its driver, and each worker that matches their filters.

    python -m benchmarks.session_state [--sessions 10000,100000,1000000]

No Spark. A `metrics_state` of so many sessions, each with one subscription of its own, is written as the job writes it.
A process of its own then does what the driver does in every range (reads it, folds a thousand events of a thousand of
them, makes what workers are told, and the rows of the state that changed), and what a worker does (reads what it is told,
makes its index, finds the queues of 10 000 topics). CPU seconds of each step; memory is the most that the process had
above what it had when everything was imported. Writes results/session-state-<most>.json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pyarrow as pa

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.machine import machine
from benchmarks.process_tree import begin_peaks, peak_mb
from benchmarks.spark_source import RESULTS, keep
from benchmarks.telemetry import MIDNIGHT_US
from headrace_spark.lake.table_files import TableFiles
from headrace_spark.lake.tables import METRICS_STATE
from headrace_spark.metrics.packing import WAITING
from headrace_spark.metrics.queues import Queues
from headrace_spark.metrics.remembered import remembered
from headrace_spark.metrics.session_rows import followed_of, state_rows
from headrace_spark.metrics.sessions import Sessions

TOUCHED: Final = 1000
TOPICS: Final = 10_000


def write_state(table: Path, count: int) -> None:
    table.mkdir(parents=True, exist_ok=True)
    files = TableFiles(table, METRICS_STATE.layout)
    numbers = np.arange(1, 2 * count + 1, 2)
    about = {
        "incarnation": pa.array(numbers),
        "up_to_offset": pa.repeat(pa.scalar(2 * count, pa.int64()), count),
    }
    since = pa.repeat(pa.scalar(MIDNIGHT_US, pa.int64()), count).cast(pa.timestamp("us", "UTC"))
    files.add(
        METRICS_STATE.rows(
            "bench",
            kind=pa.repeat("session", count),
            tenant=pa.repeat("default", count),
            client_id=pa.array([f"crowd-{k:07}" for k in range(count)]),
            next_serial=pa.repeat(pa.scalar(1, pa.int64()), count),
            connected_offset=pa.array(numbers),
            connected_timestamp=since,
            **about,
        )
    )
    filters = pa.array([f"command/crowd-{k:07}/#" for k in range(count)])
    kind = pa.repeat("subscription", count)
    no_local = pa.repeat(pa.scalar(False), count)
    files.add(METRICS_STATE.rows("bench", kind=kind, topic_filter=filters, no_local=no_local, **about))
    files.finish()


def as_driver(table: Path, told: Path) -> dict[str, Any]:
    steps = Steps()
    sessions = Sessions(steps.timed("read the state", remembered, sorted(table.rglob("*.parquet"))))
    steps.timed("fold 1 000 events", fold, sessions)
    followed = steps.timed("make what workers are told", followed_of, sessions)
    text = steps.timed("pack it", pickle.dumps, followed, 5)
    told.write_bytes(text)
    waiting = np.zeros(TOUCHED, WAITING)
    waiting["incarnation"], waiting["next_serial"] = np.arange(1, 2 * TOUCHED + 1, 2), 7
    rows = steps.timed("make the rows that changed", changed, sessions, waiting)
    return steps.found() | {"packed_mb": round(len(text) / 1e6, 1), "rows that changed": rows}


def fold(sessions: Sessions) -> None:
    for number in sessions.remembered.incarnations[:TOUCHED].tolist():
        about = {"incarnation": number, "event_timestamp": MIDNIGHT_US, "journal_offset": 1 << 40, "item": 0}
        sessions.apply(about | {"kind": "session_closed"})


def changed(sessions: Sessions, waiting: np.ndarray[Any, Any]) -> int:
    return sum(rows.num_rows for rows in state_rows(sessions, waiting, "bench", 1 << 41, False))


def as_worker(told: Path) -> dict[str, Any]:
    steps = Steps()
    followed = steps.timed("unpack", pickle.loads, told.read_bytes())
    queues = steps.timed("make the index", Queues, followed)
    steps.timed("find the queues of 10 000 topics", find, queues)
    return steps.found()


def find(queues: Queues) -> None:
    for k in range(TOPICS):
        queues.subscriptions("default", f"command/crowd-{k:07}/set")


class Steps:
    """Times the steps of this process, and how much more memory it has at most."""

    def __init__(self) -> None:
        begin_peaks(os.getpid())
        self._before = peak_mb(os.getpid())["driver"]
        self._took: dict[str, float] = {}

    def timed(self, name: str, step: Any, *about: Any) -> Any:
        began = time.process_time()
        found = step(*about)
        self._took[name] = round(time.process_time() - began, 3)
        return found

    def found(self) -> dict[str, Any]:
        return {"cpu seconds": self._took, "more_mb": peak_mb(os.getpid())["driver"] - self._before}


def in_its_own_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.session_state", *arguments]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def measure(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        table, told = Path(scratch) / "state", Path(scratch) / "told"
        write_state(table, count)
        size = sum(path.stat().st_size for path in table.rglob("*.parquet"))
        driver = in_its_own_process("--driver", str(table), str(told))
        return {
            "state_mb": round(size / 1e6, 1),
            "driver": driver,
            "worker": in_its_own_process("--worker", str(told)),
        }


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    counts = [int(name.split()[0]) for name in found]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for side, colour in (("driver", "#0b6e99"), ("worker", "#c0504d")):
        of = [one[side] for one in found.values()]
        axes[0].plot(counts, [one["more_mb"] for one in of], "o-", color=colour, label=side)
        axes[1].plot(counts, [sum(one["cpu seconds"].values()) for one in of], "o-", color=colour, label=side)
    for axis, label in zip(axes, ("MB more", "CPU seconds a range"), strict=True):
        axis.set_xlabel("sessions")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.ticklabel_format(axis="x", style="plain")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", default="10000,100000,300000,1000000")
    parser.add_argument("--driver", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver or options.worker:
        print(json.dumps(as_driver(*options.driver) if options.driver else as_worker(options.worker)))
        return
    machine_before = machine()
    counts = [int(count) for count in options.sessions.split(",")]
    found = {f"{count} sessions": measure(count) for count in counts}
    name = f"session-state-{max(counts)}"
    draw(found, RESULTS / f"{name}.png")
    keep(name, machine_before, 0, found)


if __name__ == "__main__":
    main()
