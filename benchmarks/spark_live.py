"""The archive beside a broker at 20 000 messages a second: what publishers notice of it, and when a row can be read.

    python -m benchmarks.spark_live [--rate 20000] [--turns 5] [--seconds 10] [--trigger 2]

One broker (durability = fsync) under `headrace bench`, QoS 1, 100 pairs, 200 bytes, open loop, in turns: with the job
`archive --follow` at work beside it, and with that job's processes stopped (SIGSTOP: they take no time, as if they were
not there). Before a turn the archive catches up. The job runs as `chrt --idle 0`, as the how-to says for one machine:
broker, load and Spark share its cores here. PUBACK latencies are those of the load; medians of the turns are compared.

A row can be read when the JSON of its commit lies in the table's log (the file's time); what is in a commit delta-rs and
DuckDB say, not Spark. The delay of a row counts from `publish_timestamp`, when the broker received it, which is before
its PUBACK. Rows of the turns with the archive at work count. At the end every acknowledged message must be in the table.
Writes results/spark-live-<rate>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.contestant import READY_S, STOP_S, Target
from benchmarks.machine import machine
from benchmarks.process_tree import cpu_between, cpu_seconds, paused
from benchmarks.spark_source import keep, row_count
from benchmarks.telemetry import PAYLOAD_BYTES
from demo.services import PYTHON, Service
from headrace.testing.ports import free_port
from headrace_spark.source.journal import registered_offset
from headrace_spark.source.local import LocalJournal

PATIENCE_S = 180
POLL_S = 0.2
CONSUMER = "archive"


@contextmanager
def broker(folder: Path) -> Iterator[Target]:
    port = free_port()
    command = [*PYTHON, "headrace", "serve", "--data-dir", str(folder / "data")]
    service = Service("headrace", folder / "log", *command, "--listen", f"tcp://127.0.0.1:{port}")
    try:
        service.start_ready(READY_S)
        assert service.process is not None
        yield Target("127.0.0.1", port, str(service.process.pid))
    finally:
        service.stop(STOP_S)


@contextmanager
def archiving(folder: Path, trigger_s: float) -> Iterator[int]:
    """The job as a process of its own; its id."""
    command = ["chrt", "--idle", "0", *PYTHON, "headrace", "pipeline", "run", "archive", "--follow"]
    command += ["--data-dir", str(folder / "data"), "--lake", str(folder / "lake"), "--master", "local[2]"]
    command += ["--trigger", str(trigger_s)]
    with (folder / "archive.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_S)


def load(folder: Path, target: Target, rate: int, seconds: float) -> dict[str, Any]:
    """What `headrace bench` found. Raises CalledProcessError if a message was lost."""
    report = folder / "report.json"
    command = [
        *PYTHON,
        "headrace",
        "bench",
        "--url",
        f"tcp://{target.host}:{target.port}",
        "--rate",
        str(rate),
    ]
    command += ["-n", "100", "-q", "1", "-w", "1000", "-s", str(PAYLOAD_BYTES), "-t", str(seconds)]
    command += ["--json", str(report)]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=seconds + PATIENCE_S, check=True)
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["result"]
    return result


def caught_up(data: Path) -> None:
    """Wait until the consumer has committed all that the journal has. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    journal = LocalJournal(data)
    while (registered_offset(journal, CONSUMER) or 0) < journal.high_watermark():
        if time.monotonic() > deadline:
            raise TimeoutError("the archive does not keep up with the load")
        time.sleep(POLL_S)


def turn(folder: Path, target: Target, rate: int, seconds: float) -> dict[str, Any]:
    began_us = time.time_ns() // 1000
    found = load(folder, target, rate, seconds)
    return {
        "from_us": began_us,
        "until_us": time.time_ns() // 1000,
        "puback_p50_ms": found["acknowledgement_p50_ms"],
        "puback_p99_ms": found["acknowledgement_p99_ms"],
        "sent_rate": round(found["sent_rate"]),
        "lost": found["lost"],
        "load": os.getloadavg()[0],
    }


def delays(table: Path, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds from the broker's receive time of a row to the commit that has it, over the rows of these turns."""
    within = " or ".join(
        f"epoch_us(publish_timestamp) between {one['from_us']} and {one['until_us']}" for one in turns
    )
    rows = duckdb.connect()
    rows.execute("create table seen (delay double)")
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, commit.read_text(encoding="utf-8").splitlines())
        files = [str(table / action["add"]["path"]) for action in actions if "add" in action]
        if files:
            at_us = commit.stat().st_mtime_ns // 1000
            names = ", ".join(f"'{name}'" for name in files)
            rows.execute(
                f"insert into seen select ({at_us} - epoch_us(publish_timestamp)) / 1e6 "
                f"from read_parquet([{names}]) where {within}"
            )
    query = "select count(*), quantile_cont(delay, 0.5), quantile_cont(delay, 0.99), max(delay) from seen"
    count, *found = rows.execute(query).fetchone() or (0, 0.0, 0.0, 0.0)
    return {"rows": count} | {
        name: round(value, 2) for name, value in zip(("p50_s", "p99_s", "max_s"), found, strict=True)
    }


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    data, table = folder / "data", folder / "lake" / "messages"
    alone: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    with broker(folder) as target, archiving(folder, options.trigger) as archive:
        load(folder, target, options.rate, 2 * options.seconds)  # until compiled, in every sense
        caught_up(data)
        used, began = cpu_seconds(archive), time.monotonic()
        for number in range(options.turns):
            with paused(archive):
                alone.append(turn(folder, target, options.rate, options.seconds))
            caught_up(data)
            beside.append(turn(folder, target, options.rate, options.seconds))
            caught_up(data)
            print(number + 1, alone[-1], beside[-1], flush=True)
        cpu = cpu_between(used, cpu_seconds(archive)) | {"in_s": round(time.monotonic() - began)}
        archived = row_count(table)
    medians = [statistics.median(one["puback_p99_ms"] for one in side) for side in (alone, beside)]
    return {
        "puback_p99_ms, alone and beside the archive": medians,
        "moves by": f"{(medians[1] / medians[0] - 1) * 100:+.0f} %",
        "from receive time to readable": delays(table, beside),
        "rows in the table": archived,
        "cpu seconds of the archive": cpu,
        "trigger_s": options.trigger,
        "alone": alone,
        "beside": beside,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--trigger", type=float, default=2)
    options = parser.parse_args()
    machine_before = machine()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        found = measure(folder, options)
    messages = sum(one["sent_rate"] for one in found["alone"] + found["beside"]) * round(options.seconds)
    keep(f"spark-live-{options.rate}", machine_before, messages, found)
    if any(one["lost"] for one in found["alone"] + found["beside"]):
        sys.exit("messages were lost")


if __name__ == "__main__":
    main()
