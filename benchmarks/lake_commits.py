"""What a commit costs when the table has had 100 000 of them: a day and a quarter of the archive at `trigger_s = 1`.

    python -m benchmarks.lake_commits [--before 0,100000] [--commits 200]

The log is made by this script, as the archive and its upkeep leave it: each commit adds a file and notes its offset, the
files of a thousand commits become one, and the last version has a checkpoint, written by delta-rs. No commit is old
enough to be cleaned up. The files that it names are not there: nobody reads them.

Then the archive's own commit (`append_files`, local[2]) adds files of ten rows; Delta's checkpoint after every tenth is
part of it. Seconds of each, sorted into p50, p99 and the most; CPU time of this process and its JVM. Writes
results/lake-commits-<most>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.machine import machine
from benchmarks.process_tree import cpu_between, cpu_seconds
from benchmarks.spark_source import keep
from benchmarks.telemetry import MIDNIGHT_US
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.lake.delta_commit import append_files
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.table_files import MESSAGES_LAYOUT, TableFiles
from headrace_spark.records.schema import MESSAGES, arrow_schema

APPLICATION: Final = "archive-bench-0"
COMPACTED_EVERY: Final = 1000
WARM: Final = 20
DAY: Final = "2026-09-21"
FOLDER: Final = f"tenant=default/date={DAY}"


def made_commits(commits: int) -> Iterator[list[dict[str, Any]]]:
    """The actions of each commit."""
    now_ms = time.time_ns() // 1_000_000
    since: list[str] = []
    for version in range(1, commits + 1):
        at_ms = now_ms - (commits - version) * 1000
        about = {"timestamp": at_ms, "operation": "STREAMING UPDATE", "operationParameters": {}}
        actions: list[dict[str, Any]] = [{"commitInfo": about}]
        if version % COMPACTED_EVERY:
            name = f"{FOLDER}/part-{version:036}.zstd.parquet"
            mark = {"appId": APPLICATION, "version": version, "lastUpdated": at_ms}
            actions += [{"txn": mark}, added(name, at_ms, version, 20_000, True)]
            since.append(name)
        else:
            actions += [removed(name, at_ms) for name in since]
            actions.append(added(f"{FOLDER}/all-{version:036}.parquet", at_ms, version, 20_000_000, False))
            since = []
        yield actions


def added(name: str, at_ms: int, version: int, rows: int, is_new: bool) -> dict[str, Any]:
    bounds = [("minValues", 0), ("maxValues", 19_999)]
    statistics: dict[str, Any] = {"numRecords": rows, "nullCount": {"topic": 0, "journal_offset": 0}}
    for which, beyond in bounds:
        statistics[which] = {"topic": "site/0/line/0", "journal_offset": version * 20_000 + beyond}
    partition = {"tenant": "default", "date": DAY}
    about = {"path": name, "partitionValues": partition, "size": 1_000_000, "modificationTime": at_ms}
    return {"add": about | {"dataChange": is_new, "stats": json.dumps(statistics)}}


def removed(name: str, at_ms: int) -> dict[str, Any]:
    partition = {"tenant": "default", "date": DAY}
    about = {"path": name, "deletionTimestamp": at_ms, "dataChange": False, "extendedFileMetadata": True}
    return {"remove": about | {"partitionValues": partition, "size": 1_000_000}}


def make_log(table: Path, commits: int) -> None:
    """Give a table that has nothing but its schema so many commits."""
    for version, actions in enumerate(made_commits(commits), 1):
        lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        (table / "_delta_log" / f"{version:020}.json").write_text(lines + "\n", encoding="utf-8")
    if commits:
        DeltaTable(table).create_checkpoint()


def a_file(table: Path) -> list[str]:
    """Write ten rows into a file; -> its action."""
    schema, files = arrow_schema(MESSAGES), TableFiles(table, MESSAGES_LAYOUT)
    row = {"tenant": "default", "topic": "site/0/line/0", "payload": b"x" * 200, "journal_uuid": "bench"}
    rows = [row | {"journal_offset": n} for n in range(10)]
    made = pa.Table.from_pylist(rows, schema)
    days = pa.array([MIDNIGHT_US // 86_400_000_000] * 10, pa.int32()).cast(pa.date32())
    made = made.set_column(schema.get_field_index("date"), "date", days)
    files.add(made.combine_chunks().to_batches()[0])
    return files.finish()


def measure(spark: SparkSession, folder: Path, before: int, commits: int) -> dict[str, Any]:
    lake = Lake(folder / str(before))
    lake.table.create(spark)
    make_log(lake.messages, before)
    took: list[float] = []
    used = cpu_seconds(os.getpid())
    for number in range(WARM + commits):
        if number == WARM:
            used = cpu_seconds(os.getpid())
        actions = a_file(lake.messages)
        began = time.monotonic()
        append_files(spark, lake.messages, actions, APPLICATION, before + number + 1)
        took.append(time.monotonic() - began)
    cpu = cpu_between(used, cpu_seconds(os.getpid()))
    if DeltaTable(lake.messages).version() < before + WARM + commits:
        sys.exit("a commit is missing")
    ordered = sorted(took[WARM:])
    return {
        "p50_s": round(ordered[len(ordered) // 2], 3),
        "p99_s": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 3),
        "max_s": round(ordered[-1], 3),
        "first_s": round(took[0], 3),
        "cpu ms a commit": round(sum(cpu.values()) / commits * 1000, 1),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", default="0,100000", help="how many commits the tables have had")
    parser.add_argument("--commits", type=int, default=200)
    options = parser.parse_args()
    machine_before = machine()
    befores = [int(count) for count in options.before.split(",")]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        spark = open_session(SparkSettings(master="local[2]", app_name="bench"))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            found = {
                f"after {before} commits": measure(spark, Path(scratch), before, options.commits)
                for before in befores
            }
        finally:
            close_session(spark)
    keep(f"lake-commits-{max(befores)}", machine_before, options.commits, found)


if __name__ == "__main__":
    main()
