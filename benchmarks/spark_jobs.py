"""The jobs `clean` and `metrics` over a backlog: rows a second of the two one after the other.

    python -m benchmarks.spark_jobs [--messages 2000000] [--rounds 3]

The journal has 200-byte JSON payloads of 1 000 devices, ten subscribed applications and the acknowledgement of every
message (`telemetry`). The job `archive` fills a lake from it once; then `clean` decodes every payload by a topic schema
and `metrics` counts traffic, devices, connections, deliveries and their latencies, each as `headrace pipeline run` does,
in a Spark of local[2] that runs already, into new tables every round. Every round is in the result: the first compiles.
A rate is the messages by the seconds of a job from start to end; `both` is by the sum. Tables are counted afterwards
by delta-rs: a round that lost a row fails. Writes results/spark-jobs-<messages>.json.
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
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.machine import machine
from benchmarks.process_tree import cpu_between, cpu_seconds
from benchmarks.spark_source import keep
from benchmarks.telemetry import TOPIC_SCHEMAS, write_journal
from headrace.cli_pipeline import job_settings
from headrace.config import load
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.jobs import module_of

JOBS = ("clean", "metrics")


def run_job(spark: SparkSession, job: str, folder: Path) -> dict[str, Any]:
    """From start to end; seconds and CPU seconds."""
    keys = {
        "data_dir": folder / "data",
        "pipeline.lake": folder / "lake",
        "pipeline.clean.topic_schemas": folder / "schemas.toml",
    }
    settings = job_settings(job, load(None, [f"{key}={json.dumps(str(path))}" for key, path in keys.items()]))
    used, began = cpu_seconds(os.getpid()), time.monotonic()
    module_of(job).run(spark, settings, Event(), lambda _progress: None)
    seconds = time.monotonic() - began
    return {"seconds": round(seconds, 2), "cpu seconds": cpu_between(used, cpu_seconds(os.getpid()))}


def one_round(spark: SparkSession, folder: Path, messages: int) -> dict[str, Any]:
    found = {job: run_job(spark, job, folder) for job in JOBS}
    lake = folder / "lake"
    clean = DeltaTable(lake / "clean").to_pyarrow_dataset().count_rows()
    counted = {
        name: pc.sum(DeltaTable(lake / name).to_pyarrow_table(columns=["messages"])["messages"]).as_py()
        for name in ("traffic", "deliveries")
    }
    if not clean == counted["traffic"] == messages:
        sys.exit(f"{messages} messages, but {clean} rows in clean, {counted} in traffic and deliveries")
    for path in lake.iterdir():
        if path.name not in ("messages", "_checkpoints"):
            shutil.rmtree(path)
    for path in (lake / "_checkpoints").glob("clean*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    rates = {job: round(messages / of["seconds"]) for job, of in found.items()}
    rates["both"] = round(messages / sum(of["seconds"] for of in found.values()))
    return {"rows a second": rates, "load": os.getloadavg()[0], **found, "deliveries": counted["deliveries"]}


def measure(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    (folder / "schemas.toml").write_text(TOPIC_SCHEMAS, encoding="utf-8")
    spark = open_session(SparkSettings(master="local[2]", app_name="bench"))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run_job(spark, "archive", folder)
        runs = []
        for _ in range(rounds):
            runs.append(one_round(spark, folder, messages))
            print(runs[-1], flush=True)
    finally:
        close_session(spark)
    return {"best, rows a second": max(run["rows a second"]["both"] for run in runs), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine_before = machine()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        write_journal(folder / "data", options.messages, with_sessions=True)
        found = measure(folder, options.messages, options.rounds)
    keep(f"spark-jobs-{options.messages}", machine_before, options.messages, found)


if __name__ == "__main__":
    main()
