"""The Spark source: what a selective read costs beside a full scan, and the archive beside Spark's own Kafka source.

    python -m benchmarks.spark_source read [--messages 5000000]
    python -m benchmarks.spark_source skip [--messages 5000000]
    python -m benchmarks.spark_source archive [--messages 5000000] [--rounds 2]
    PYTHONPATH=tests python -m benchmarks.spark_source bucket [--messages 2000000] [--rounds 2]

`skip` writes a journal of 200-byte messages (`telemetry`) on 1 000 topics in turn, spread over a day, and reads it by
Spark: all of it, 1 % of the time, one topic (the first time making the topic index). Bytes are those that the reader
asks the disk for, counted in this process by the same code that runs on workers.

`read` is the same in one process without Spark: the reader and the decoder that run on workers.

`archive` puts the same messages into a Kafka 4.3.1 started here (2 partitions, as the tasks of ours) and archives both
with `availableNow` into Delta tables of the same columns, in turn, local[2], a million rows a batch. Rates are rows a
second from start to end of the query, Spark already running; CPU seconds are those of Spark and its Python workers,
servers' not among them.
The third contestant is the job `archive` itself, which writes all 22 columns of `messages`.

`bucket` lets two write into one bucket of S3Proxy (a real S3 server, with its objects in memory, on this machine), each
turn into a lake of its own. Spark's Kafka source with Delta's sink writes six columns, partitioned by day: topic,
payload, timestamp, partition and offset of Kafka, and the day; its checkpoint lies in the bucket, as it must where the
next driver runs elsewhere. The job `archive` writes all 22 columns of `messages`, partitioned by tenant and day; its
checkpoint is a folder of this machine, as always for a lake behind a URL: how far it is stands in the table. Both write
their files by Delta's writer with the same codec and commit by the same log store, with conditional writes.

Results go to results/spark-<what>-<messages>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.kafka_broker import connector_jars, kafka
from benchmarks.machine import machine
from benchmarks.process_tree import cpu_between, cpu_seconds
from benchmarks.telemetry import DAY_US, MIDNIGHT_US, PAYLOAD_BYTES, topic, write_journal
from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace.journal.disk import Disk
from headrace.journal.selective import TimeRange
from headrace_spark.base.object_store import add_log_store, for_lake
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.jobs import archive
from headrace_spark.lake.location import lake_location
from headrace_spark.records.decode import decode_chunk
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.reading import wanted_chunks
from headrace_spark.source.selection import Selection

RESULTS = Path(__file__).parent / "results"
ROWS_PER_BATCH = 1_000_000
KAFKA_TOPIC = "messages"
# Kafka starts while the first of these waits; on a loaded machine a batch given up would end the run.
PATIENT_PRODUCER = {"max.block.ms": 120_000, "request.timeout.ms": 120_000, "delivery.timeout.ms": 600_000}
BEGIN_US = MIDNIGHT_US + DAY_US // 2
ONE_PERCENT = TimeRange(BEGIN_US, BEGIN_US + DAY_US // 100)
ONE_TOPIC = topic(77)


class CountingDisk(Disk):
    """Counts what is read."""

    def __init__(self) -> None:
        self.bytes = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = super().pread(fd, length, position)
        self.bytes += len(data)
        return data


def timed(frame: DataFrame) -> float:
    """Seconds until every row has been made and thrown away."""
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def bytes_read(data_dir: Path, selection: Selection, cache: Path | None) -> int:
    disk = CountingDisk()
    reader = LocalJournal(data_dir, disk)
    for _ in wanted_chunks(reader, 0, reader.high_watermark(), selection, cache):
        pass
    return disk.bytes


def read(folder: Path) -> dict[str, Any]:
    """Seconds and bytes of the reader alone, every column decoded."""
    data, cache = folder / "data", folder / "cache"
    by_topic = Selection().with_topics([ONE_TOPIC])
    found: dict[str, Any] = {}
    for name, selection in (
        ("all", Selection()),
        ("time, 1 %", Selection(times=ONE_PERCENT)),
        ("topic, 1 of 1000, making the index", by_topic),
        ("topic, 1 of 1000", by_topic),
    ):
        disk = CountingDisk()
        reader = LocalJournal(data, disk)
        began, rows = time.monotonic(), 0
        for chunk in wanted_chunks(reader, 0, reader.high_watermark(), selection, cache):
            for batch in decode_chunk(chunk, arrow_schema(MESSAGES), "messages", selection):
                rows += batch.num_rows
        found[name] = {"rows": rows, "seconds": round(time.monotonic() - began, 3), "bytes": disk.bytes}
    for name, figures in found.items():
        figures["share of bytes"] = round(figures["bytes"] / found["all"]["bytes"], 4)
        figures["times faster"] = round(found["all"]["seconds"] / found[name]["seconds"], 1)
    return found


def skip(spark: SparkSession, folder: Path) -> dict[str, Any]:
    data, cache = folder / "data", folder / "cache"

    def frame() -> DataFrame:
        """A new one for each query, as `pushFilters` asks."""
        options = {"cache": str(cache), "pushFilters": "true"}
        return spark.read.format("headrace-journal").options(**options).load(str(data))

    moments = [f.timestamp_micros(f.lit(at)) for at in (ONE_PERCENT.since_us, ONE_PERCENT.until_us)]
    stamp = f.col("publish_timestamp")
    reads: dict[str, tuple[Callable[[], DataFrame], Selection]] = {
        "all": (frame, Selection()),
        "time, 1 %": (
            lambda: frame().where((stamp >= moments[0]) & (stamp < moments[1])),
            Selection(times=ONE_PERCENT),
        ),
        "topic, 1 of 1000": (
            lambda: frame().where(f.col("topic") == ONE_TOPIC),
            Selection().with_topics([ONE_TOPIC]),
        ),
    }
    timed(frame().limit(1000))
    first = timed(reads["topic, 1 of 1000"][0]())
    size = bytes_read(data, Selection(), None)
    found: dict[str, Any] = {"topic, 1 of 1000, making the index": {"seconds": round(first, 2)}}
    for name, (query, selection) in reads.items():
        seconds = min(timed(query()) for _ in range(3))
        read = bytes_read(data, selection, cache)
        found[name] = {
            "rows": query().count(),
            "seconds": round(seconds, 2),
            "bytes": read,
            "share of bytes": round(read / size, 4),
        }
    whole = found["all"]["seconds"]
    for name in list(reads)[1:]:
        found[name]["times faster"] = round(whole / found[name]["seconds"], 1)
    index = sum(path.stat().st_size for path in cache.rglob("*.topics"))
    found["topic indexes"] = {"bytes": index, "share of bytes": round(index / size, 4)}
    return found


def fill_kafka(spark: SparkSession, data: Path, server: str) -> None:
    frame = spark.read.format("headrace-journal").option("columns", "topic,payload").load(str(data))
    values = frame.select(f.col("topic").alias("key"), f.col("payload").alias("value"))
    writer = values.write.format("kafka").option("kafka.bootstrap.servers", server)
    for key, value in PATIENT_PRODUCER.items():
        writer = writer.option(f"kafka.{key}", value)
    writer.option("topic", KAFKA_TOPIC).save()


def from_kafka(spark: SparkSession, server: str, lake: Path | str) -> str:
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", server)
        .option("subscribe", KAFKA_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
        .select(
            f.col("key").cast("string").alias("topic"),
            f.col("value").alias("payload"),
            f.col("timestamp").alias("publish_timestamp"),
            f.col("partition").alias("journal_epoch"),
            f.col("offset").alias("journal_offset"),
            f.to_date("timestamp").alias("date"),
        )
    )
    return run_to_delta(frame, lake)


def from_journal(spark: SparkSession, data: Path, lake: Path) -> str:
    frame = (
        spark.readStream.format("headrace-journal")
        .option("consumer", f"bench-{lake.name}")
        .option("columns", "topic,payload,publish_timestamp,journal_epoch,journal_offset,date")
        .option("maxRowsPerTrigger", ROWS_PER_BATCH)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .load(str(data))
    )
    return run_to_delta(frame, lake)


def run_to_delta(frame: DataFrame, lake: Path | str) -> str:
    table = join(lake, "messages")
    writer = frame.writeStream.format("delta").partitionBy("date").trigger(availableNow=True)
    query = writer.option("checkpointLocation", join(lake, "checkpoint")).start(table)
    query.awaitTermination()
    return table


def join(lake: Path | str, name: str) -> str:
    return f"{lake}/{name}"


def by_job(spark: SparkSession, data: Path, lake: Path | str) -> str:
    said = {
        "data_dir": str(data),
        "pipeline.lake": str(lake),
        "pipeline.archive.consumer": f"job-{Path(lake).name}",  # a consumer belongs to one lake
    }
    sets = [f"{key}={json.dumps(value)}" for key, value in said.items()]
    settings = job_settings("archive", load(None, sets))
    archive.run(spark, settings, Event(), lambda _progress: None)
    return join(lake, "messages")


def in_turn(
    spark: SparkSession, sides: Mapping[str, Callable[[str], str]], lakes: str, messages: int, rounds: int
) -> dict[str, Any]:
    """Let each side in each round write a lake of its own, whose name begins with `lakes`. The first side is what the
    others are compared with: the best rate of each, and the least CPU time."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(rounds):
        for number, (name, side) in enumerate(sides.items()):
            runs[name].append(one_archive(spark, f"{lakes}-{turn}-{number}", side, messages))
            print(name, runs[name][-1], flush=True)
    best = {name: max(run["rows a second"] for run in of) for name, of in runs.items()}
    cpu = {name: min(run["cpu us a row"] for run in of) for name, of in runs.items()}
    first, *others = sides
    return {
        "runs": runs,
        "best, rows a second": best,
        "least cpu us a row": cpu,
        "times Spark's Kafka source": {name: round(best[name] / best[first], 2) for name in others},
        "times its cpu": {name: round(cpu[name] / cpu[first], 2) for name in others},
    }


def compare_in_bucket(
    spark: SparkSession, folder: Path, lakes: str, messages: int, rounds: int
) -> dict[str, Any]:
    data = folder / "data"
    with kafka(folder / "kafka") as server:
        fill_kafka(spark, data, server)
        sides: dict[str, Callable[[str], str]] = {
            "kafka": lambda lake: from_kafka(spark, server, lake),
            "job archive, 22 columns": lambda lake: by_job(spark, data, lake),
        }
        return in_turn(spark, sides, lakes, messages, rounds)


def compare(spark: SparkSession, folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    data = folder / "data"
    with kafka(folder / "kafka") as server:
        fill_kafka(spark, data, server)
        sides: dict[str, Callable[[str], str]] = {
            "kafka": lambda lake: from_kafka(spark, server, lake),
            "headrace-journal": lambda lake: from_journal(spark, data, Path(lake)),
            "job archive, 22 columns": lambda lake: by_job(spark, data, lake),
        }
        return in_turn(spark, sides, str(folder / "lake"), messages, rounds)


def one_archive(spark: SparkSession, lake: str, side: Callable[[str], str], messages: int) -> dict[str, Any]:
    used, began = cpu_of(spark), time.monotonic()
    table = side(lake)
    seconds = time.monotonic() - began
    cpu = cpu_between(used, cpu_of(spark))
    rows = spark.read.format("delta").load(table).count()
    if rows != messages:
        sys.exit(f"{table}: {rows} rows instead of {messages}")
    size = bytes_of(spark, table)
    remove(spark, lake)
    return {
        "rows a second": round(messages / seconds),
        "cpu us a row": round(sum(cpu.values()) / messages * 1e6, 3),
        "cpu seconds": cpu,
        "bytes a row": round(size / messages, 1),
        "load": os.getloadavg()[0],
    }


def cpu_of(spark: SparkSession) -> dict[str, float]:
    """CPU seconds of this process, of Spark's Java and of the workers that it started: not of servers beside them."""
    context: Any = spark.sparkContext
    return cpu_seconds(context._gateway.proc.pid) | {"driver": time.process_time()}


def bytes_of(spark: SparkSession, table: str) -> int:
    found = spark.sql(f"describe detail delta.`{table}`").first()
    assert found is not None
    return int(found["sizeInBytes"])


def remove(spark: SparkSession, lake: str) -> None:
    """Remove a folder, or all that begins so in a bucket."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    path = jvm.org.apache.hadoop.fs.Path(lake)
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)


def in_bucket(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    from spark.s3_server import BUCKET, SERVER, client_settings, s3_server  # in tests/

    lakes = f"s3a://{BUCKET}/lake"
    with s3_server(folder, java=["-Xmx2g"]) as address:
        extra = {"spark.jars": connector_jars()} | client_settings(address)
        settings = SparkSettings(master="local[2]", app_name="bench", extra=extra)
        spark = open_session(for_lake(settings, lake_location(lakes)))
        add_log_store(spark)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return {"server": SERVER} | compare_in_bucket(spark, folder, lakes, messages, rounds)
        finally:
            close_session(spark)


def with_spark(what: str, folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    if what == "bucket":
        return in_bucket(folder, messages, rounds)
    extra = {"spark.jars": connector_jars()} if what == "archive" else {}
    spark = open_session(SparkSettings(master="local[2]", app_name="bench", extra=extra))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        return skip(spark, folder) if what == "skip" else compare(spark, folder, messages, rounds)
    finally:
        close_session(spark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("read", "skip", "archive", "bucket"))
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    machine_before = machine()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        write_journal(folder / "data", options.messages)
        if options.what == "read":
            found = read(folder)
        else:
            found = with_spark(options.what, folder, options.messages, options.rounds)
    keep(f"spark-{options.what}-{options.messages}", machine_before, options.messages, found)


def row_count(table: Path) -> int:
    """Return how many rows a table has, as its log says."""
    return sum(pa.table(DeltaTable(table).get_add_actions(flatten=True))["num_records"].to_pylist())


def keep(name: str, machine_before: dict[str, Any], messages: int, found: dict[str, Any]) -> None:
    """Write a result, and say it."""
    about = {"messages": messages, "payload_bytes": PAYLOAD_BYTES, "machine": machine_before}
    text = json.dumps({**about, "load_average_after": os.getloadavg(), **found}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
