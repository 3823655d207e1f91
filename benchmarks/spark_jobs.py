"""The jobs `clean` and `metrics` over a backlog: rows a second of the two one after the other.

    python -m benchmarks.spark_jobs [--messages 2000000] [--rounds 3] [--sessions 1000000]

The journal has 200-byte JSON payloads of 1 000 devices, ten subscribed applications and the acknowledgement of every
message (`telemetry`). The job `archive` fills a lake from it once; then `clean` decodes every payload by a topic schema
and `metrics` counts traffic, devices, connections, deliveries and their latencies, each as `headrace pipeline run` does,
in a Spark of local[2] that runs already, into new tables every round. Every round is in the result: the first compiles.
A rate is the messages by the seconds of a job from start to end; `both` is by the sum. Tables are counted afterwards
by delta-rs: a round that lost a row fails. Writes results/spark-jobs-<messages>.json.

With `--sessions` there are so many more sessions, each with a subscription of its own, opened before the first message
and taken in by `metrics` before the first round (`opening`); every tenth message is for one of them. Memory: the peak of
this process, which is the driver, of its JVM and of the largest Python worker. Bytes of the state are those of the files
that the commits of `metrics` added. Writes results/spark-jobs-<messages>x<sessions>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.machine import machine
from benchmarks.process_tree import begin_peaks, cpu_between, cpu_seconds, peak_mb
from benchmarks.spark_source import keep, row_count
from benchmarks.telemetry import TOPIC_SCHEMAS, write_crowd, write_messages
from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.jobs import module_of
from headrace_spark.lake.table_log import Folders

JOBS = ("clean", "metrics")


def run_job(spark: SparkSession, job: str, folder: Path) -> dict[str, Any]:
    """From start to end; seconds and CPU seconds."""
    keys = {
        "data_dir": folder / "data",
        "pipeline.lake": folder / "lake",
        "pipeline.clean.topic_schemas": folder / "schemas.toml",
    }
    settings = job_settings(job, load(None, [f"{key}={json.dumps(str(path))}" for key, path in keys.items()]))
    begin_peaks(os.getpid())
    used, began = cpu_seconds(os.getpid()), time.monotonic()
    module_of(job).run(spark, settings, Event(), lambda _progress: None)
    seconds = time.monotonic() - began
    cpu = cpu_between(used, cpu_seconds(os.getpid()))
    return {"seconds": round(seconds, 2), "cpu seconds": cpu, "peak_mb": peak_mb(os.getpid())}


def one_round(spark: SparkSession, folder: Path, messages: int) -> dict[str, Any]:
    lake = folder / "lake"
    shutil.copytree(folder / "opened", lake)
    shutil.rmtree(folder / "data" / "consumers")
    shutil.copytree(folder / "consumers", folder / "data" / "consumers")
    run_job(spark, "archive", folder)
    before = versions(lake / "metrics_state")
    found = {job: run_job(spark, job, folder) for job in JOBS}
    clean = row_count(lake / "clean")
    counted = {
        name: pc.sum(Folders().scan(lake / name, ["messages"])["messages"]).as_py()
        for name in ("traffic", "deliveries")
    }
    if not clean == counted["traffic"] == messages:
        sys.exit(f"{messages} messages, but {clean} rows in clean, {counted} in traffic and deliveries")
    rates = {job: round(messages / of["seconds"]) for job, of in found.items()}
    rates["both"] = round(messages / sum(of["seconds"] for of in found.values()))
    cpu = sum(sum(of["cpu seconds"].values()) for of in found.values())
    written = added(lake / "metrics_state", before)
    shutil.rmtree(lake)
    return {
        "rows a second": rates,
        "cpu us a row": round(cpu / messages * 1e6, 2),
        "load": os.getloadavg()[0],
        **found,
        "deliveries": counted["deliveries"],
        "state": written,
    }


def versions(table: Path) -> int:
    """How many commits a table has."""
    return len(list((table / "_delta_log").glob("*.json")))


def added(table: Path, since: int) -> dict[str, int]:
    """What the commits after the first `since` added; and what they left."""
    found = {"commits": 0, "rows added": 0, "bytes added": 0}
    for commit in sorted((table / "_delta_log").glob("*.json"))[since:]:
        adds = [json.loads(line)["add"] for line in commit.read_text().splitlines() if '"add"' in line[:8]]
        found["commits"] += 1
        found["rows added"] += sum(json.loads(add["stats"])["numRecords"] for add in adds)
        found["bytes added"] += sum(add["size"] for add in adds)
    return found | {"rows in it": row_count(table)}


def opened(spark: SparkSession, folder: Path, sessions: int) -> dict[str, Any]:
    """A lake whose job `metrics` has taken in all sessions, kept for the rounds in `opened`."""
    write_crowd(folder / "data", sessions)
    found = run_job(spark, "metrics", folder) if sessions else {}
    (folder / "lake").mkdir(exist_ok=True)
    (folder / "lake").rename(folder / "opened")
    (folder / "data" / "consumers").mkdir(exist_ok=True)
    shutil.copytree(folder / "data" / "consumers", folder / "consumers")
    return found


def measure(folder: Path, messages: int, rounds: int, sessions: int) -> dict[str, Any]:
    (folder / "schemas.toml").write_text(TOPIC_SCHEMAS, encoding="utf-8")
    spark = open_session(SparkSettings(master="local[2]", app_name="bench"))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        opening = opened(spark, folder, sessions)
        write_messages(folder / "data", messages, sessions, are_acknowledged=True)
        runs = []
        for _ in range(rounds):
            runs.append(one_round(spark, folder, messages))
            print(runs[-1], flush=True)
    finally:
        close_session(spark)
    best = max(run["rows a second"]["both"] for run in runs)
    return {"sessions": sessions, "best, rows a second": best, "opening": opening, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=0)
    options = parser.parse_args()
    machine_before = machine()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        found = measure(Path(scratch), options.messages, options.rounds, options.sessions)
    crowd = f"x{options.sessions}" if options.sessions else ""
    keep(f"spark-jobs-{options.messages}{crowd}", machine_before, options.messages, found)


if __name__ == "__main__":
    main()
