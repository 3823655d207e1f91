"""What the job `clean` reads to find repeats: the ids that it had before, batch by batch.

    python -m benchmarks.repeats [--batches 20] [--rows 50000]

`messages` is written by this script: so many files, each of them a batch, of telemetry with ids that publishers chose;
one message in a thousand of each has the id of one of the batch before. `clean` goes through all of it in one run
(local[2]).

For each batch: seconds; the bytes of the ids (`message_id` and the place in the journal, as they lie in the Parquet
files) of all files that the tables have by then, which is what a batch read at first; and of the files that it did read.
Repeats are counted at the end: none may be missing. Writes results/repeats-<messages>.json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote

import matplotlib as mpl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.machine import machine
from benchmarks.process_tree import cpu_between, cpu_seconds
from benchmarks.spark_source import RESULTS, keep, row_count
from benchmarks.telemetry import TOPIC_SCHEMAS, with_copies, write_journal
from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.clean.cleaning import PLACE
from headrace_spark.clean.known_ids import KnownIds
from headrace_spark.jobs import clean
from headrace_spark.records.decode import decode_chunk
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.reading import wanted_chunks
from headrace_spark.source.selection import Selection

COPY_EVERY = 1000
STATISTICS: dict[str, str | None] = {
    "delta.dataSkippingStatsColumns": "topic,journal_uuid,journal_epoch,journal_offset"
}
COLUMNS = ("message_id", *PLACE)


def write_messages(data: Path, table: Path, batches: int, rows: int) -> int:
    """Write the table; -> how many rows are repeats."""
    reader = LocalJournal(data)
    found = [
        batch
        for chunk in wanted_chunks(reader, 0, reader.high_watermark(), Selection(), None)
        for batch in decode_chunk(chunk, arrow_schema(MESSAGES), "messages", Selection())
    ]
    whole = pa.Table.from_batches(found).combine_chunks()
    place = whole.schema.get_field_index("message_id")
    for number in range(batches):
        copied = with_copies(number, rows, COPY_EVERY)
        ids = pa.array([f"client:default/device-{n % 1000:03}/{n * 2_654_435_761:020x}" for n in copied])
        part: Any = whole.slice(number * rows, rows).set_column(place, "message_id", ids)
        write_deltalake(table, part, mode="append", partition_by=["tenant", "date"], configuration=STATISTICS)
    return (batches - 1) * rows // COPY_EVERY


class Watched(KnownIds):
    """Notes what each batch read."""

    seen: list[dict[str, Any]]

    def among(self, messages: DataFrame, since: date) -> DataFrame:
        before, tables = self.files_read, [Path(str(table.path)) for table in self._tables]
        at_first = sum(map(id_bytes, tables))
        held = set(self._numbers)
        began = time.monotonic()
        found = super().among(messages, since)
        new = set(self._numbers) - held
        hits = found.inputFiles()
        Watched.seen.append(
            {
                "seconds": round(time.monotonic() - began, 3),
                "files read": self.files_read - before,
                "bytes in all files": at_first,
                "bytes read": sum(id_bytes(table, new) for table in tables)
                + sum(id_bytes(table, {Path(hit).name for hit in hits}) for table in tables),
            }
        )
        return found


def id_bytes(table: Path, names: Iterable[str] | None = None) -> int:
    """The bytes of the columns that are read of ids, in all files of a table or in those of these names."""
    wanted = None if names is None else set(names)
    paths = [
        table / unquote(path) for path in pa.table(DeltaTable(table).get_add_actions())["path"].to_pylist()
    ]
    return sum(
        column.total_compressed_size
        for path in paths
        if wanted is None or path.name in wanted
        for group in [pq.ParquetFile(path).metadata]
        for row_group in range(group.num_row_groups)
        for column in map(group.row_group(row_group).column, range(group.num_columns))
        if column.path_in_schema in COLUMNS
    )


def measure(spark: SparkSession, folder: Path, expected: int) -> dict[str, Any]:
    (folder / "schemas.toml").write_text(TOPIC_SCHEMAS, encoding="utf-8")
    keys = {"pipeline.lake": folder / "lake", "pipeline.clean.topic_schemas": folder / "schemas.toml"}
    sets = [f"{key}={json.dumps(str(path))}" for key, path in keys.items()]
    settings = job_settings("clean", load(None, [*sets, "pipeline.clean.bytes_per_trigger_max=1"]))
    Watched.seen = []
    setattr(clean, "KnownIds", Watched)  # noqa: B010  (mypy lets no class be put in the place of another)
    used, began = cpu_seconds(os.getpid()), time.monotonic()
    clean.run(spark, settings, Event(), lambda _progress: None)
    seconds, cpu = time.monotonic() - began, cpu_between(used, cpu_seconds(os.getpid()))
    repeats = row_count(folder / "lake" / "repeats")
    if repeats != expected:
        sys.exit(f"{repeats} repeats were found instead of {expected}")
    return {"seconds": round(seconds, 1), "cpu seconds": cpu, "repeats": repeats, "batches": Watched.seen}


def draw(batches: list[dict[str, Any]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for name, colour in (("bytes in all files", "#c0504d"), ("bytes read", "#0b6e99")):
        axis.plot([one[name] / 1e6 for one in batches], "o-", color=colour, label=name, markersize=4)
    axis.set_xlabel("batch")
    axis.set_ylabel("MB of ids")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000)
    options = parser.parse_args()
    if options.rows % COPY_EVERY:
        parser.error(f"--rows: a multiple of {COPY_EVERY}, not {options.rows}")
    machine_before, messages = machine(), options.batches * options.rows
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        write_journal(folder / "data", messages)
        table = folder / "lake" / "messages"
        expected = write_messages(folder / "data", table, options.batches, options.rows)
        spark = open_session(SparkSettings(master="local[2]", app_name="bench"))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            found = measure(spark, folder, expected)
        finally:
            close_session(spark)
    draw(found["batches"], RESULTS / f"repeats-{messages}.png")
    keep(f"repeats-{messages}", machine_before, messages, found)


if __name__ == "__main__":
    main()
