"""The Spark source: what a selective read costs beside a full scan, and the archive beside Spark's own Kafka source.

    PYTHONPATH=src python -m benchmarks.spark_source read [--messages 5000000]
    PYTHONPATH=src python -m benchmarks.spark_source skip [--messages 5000000]
    PYTHONPATH=src python -m benchmarks.spark_source archive [--messages 5000000] [--rounds 2]

`skip` writes a journal of 200-byte messages on 1 000 topics in turn, spread over a day, and reads it by Spark: all of
it, 1 % of the time, one topic (the first time making the topic index). Bytes are those that the reader asks the disk for,
counted in this process by the same code that runs on workers.

`read` is the same in one process without Spark: the reader and the decoder that run on workers.

`archive` writes the same messages into a Kafka 4.3.1 started here (fetched by Maven, as is Spark's connector) and
archives both with `availableNow` into Delta tables of the same columns, in turn. Rates are rows a second from start
to end of the query, Spark already running. Results go to results/spark-source-<what>-<messages>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from librt.strings import BytesWriter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.core.message import Message
from headrace.journal.disk import Disk
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.selective import TimeRange
from headrace_spark.decode import decode_chunk
from headrace_spark.jars import jar_files, jars_folder
from headrace_spark.reading import wanted_chunks
from headrace_spark.schema import MESSAGES, arrow_schema
from headrace_spark.selection import Selection
from headrace_spark.session import open_session
from headrace_spark.settings import SparkSettings
from headrace_spark.source import JournalDataSource

RESULTS = Path(__file__).parent / "results"
TOPICS = 1000
BATCH = 500
DAY_US = 86_400_000_000
NOON_US = 1_790_000_000_000_000 // DAY_US * DAY_US
PAYLOAD = bytes(range(200))
KAFKA_TOPIC = "messages"
KAFKA_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>b</groupId><artifactId>b</artifactId><version>1</version><packaging>pom</packaging>
<dependencyManagement><dependencies><dependency><groupId>org.apache.spark</groupId>
<artifactId>spark-token-provider-kafka-0-10_2.13</artifactId><version>4.0.0</version></dependency></dependencies>
</dependencyManagement><dependencies>%s</dependencies></project>"""
BROKER = (
    ("org.apache.kafka", "kafka_2.13", "4.3.1"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
CONNECTOR = (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),)
CONNECTOR_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")


class CountingDisk(Disk):
    """Counts what is read."""

    def __init__(self) -> None:
        self.bytes = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = super().pread(fd, length, position)
        self.bytes += len(data)
        return data


def write_journal(data_dir: Path, messages: int) -> None:
    """The records of a topic differ in their time alone, so they are put together from parts."""
    parts = []
    for n in range(TOPICS):
        out = BytesWriter()
        topic = f"site/{n % 10}/line/{n}".encode()
        Message(0, 1, 7, 3, "default", b"default" + b"device-%d" % n, 7, topic, b"", -1, PAYLOAD).encode_into(
            out
        )
        parts.append((out.getvalue()[:8], out.getvalue()[16:]))
    log = SegmentedLog.open(data_dir, LogSettings(durability="none"), print)
    for base in range(0, messages, BATCH):
        stamps = [NOON_US + n * DAY_US // messages for n in range(base, base + BATCH)]
        records = [
            b"".join((parts[n % TOPICS][0], stamp.to_bytes(8, "little"), parts[n % TOPICS][1]))
            for n, stamp in enumerate(stamps, base)
        ]
        log.append(b"".join(records), BATCH, stamps[0], stamps[-1])
    log.close()


def timed(frame: DataFrame) -> float:
    """Seconds until every row has been made and thrown away."""
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def bytes_read(data_dir: Path, selection: Selection, cache: Path | None) -> int:
    disk = CountingDisk()
    reader = JournalReader(data_dir, disk)
    for _ in wanted_chunks(reader, 0, reader.high_watermark(), selection, cache):
        pass
    return disk.bytes


def read(folder: Path) -> dict[str, Any]:
    """Seconds and bytes of the reader alone, every column decoded."""
    data, cache = folder / "data", folder / "cache"
    begin = NOON_US + DAY_US // 2
    by_topic = Selection().with_topics(["site/7/line/77"])
    found: dict[str, Any] = {}
    for name, selection in (
        ("all", Selection()),
        ("time, 1 %", Selection(times=TimeRange(begin, begin + DAY_US // 100))),
        ("topic, 1 of 1000, making the index", by_topic),
        ("topic, 1 of 1000", by_topic),
    ):
        disk = CountingDisk()
        reader = JournalReader(data, disk)
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
    frame = spark.read.format("headrace-journal").option("cache", str(cache)).load(str(data))
    begin = NOON_US + DAY_US // 2
    moments = [f.timestamp_micros(f.lit(moment)) for moment in (begin, begin + DAY_US // 100)]
    stamp = f.col("publish_timestamp")
    reads: dict[str, tuple[DataFrame, Selection]] = {
        "all": (frame, Selection()),
        "time, 1 %": (
            frame.where((stamp >= moments[0]) & (stamp < moments[1])),
            Selection(times=TimeRange(begin, begin + DAY_US // 100)),
        ),
        "topic, 1 of 1000": (
            frame.where("topic = 'site/7/line/77'"),
            Selection().with_topics(["site/7/line/77"]),
        ),
    }
    timed(frame.limit(1000))
    first = timed(reads["topic, 1 of 1000"][0])
    size = bytes_read(data, Selection(), None)
    found: dict[str, Any] = {"topic, 1 of 1000, making the index": {"seconds": round(first, 2)}}
    for name, (query, selection) in reads.items():
        seconds = min(timed(query) for _ in range(3))
        read = bytes_read(data, selection, cache)
        found[name] = {
            "rows": query.count(),
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


def fetch(folder: Path, artifacts: tuple[tuple[str, str, str], ...]) -> Path:
    """Jars by Maven, kept for the next time."""
    if not folder.exists():
        tags = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
            for group, name, version in artifacts
        )
        temporary = folder.with_suffix(".part")
        temporary.mkdir(parents=True, exist_ok=True)
        (temporary / "pom.xml").write_text(KAFKA_POM % tags)
        command = ["mvn", "-B", "-q", "-U", "-f", str(temporary / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run(
            [*command, "-DincludeScope=runtime", f"-DoutputDirectory={temporary}"], check=True, timeout=600
        )
        temporary.rename(folder)
    return folder


@contextmanager
def kafka(folder: Path, port: int) -> Iterator[str]:
    """One broker, until the block ends."""
    jars = fetch(jars_folder().parent / "bench-kafka-4.3.1", BROKER)
    folder.mkdir()
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "logs",
        "num.partitions": 12,
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    config = folder / "node.properties"
    config.write_text("\n".join(f"{key}={value}" for key, value in properties.items()))
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    format_command = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        "AAAAAAAAAAAAAAAAAAAAAQ",
        "-c",
        str(config),
    ]
    subprocess.run(format_command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def fill_kafka(spark: SparkSession, data: Path, server: str) -> None:
    frame = spark.read.format("headrace-journal").option("columns", "topic,payload").load(str(data))
    values = frame.select(f.col("topic").alias("key"), f.col("payload").alias("value"))
    writer = values.write.format("kafka").option("kafka.bootstrap.servers", server)
    writer.option("topic", KAFKA_TOPIC).option("kafka.max.block.ms", "120000").save()


def archive_kafka(spark: SparkSession, server: str, table: Path) -> float:
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", server)
        .option("subscribe", KAFKA_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
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
    return run_to_delta(frame, table)


def archive_journal(spark: SparkSession, data: Path, table: Path) -> float:
    frame = (
        spark.readStream.format("headrace-journal")
        .option("consumer", f"bench-{table.name}")
        .option("columns", "topic,payload,publish_timestamp,journal_epoch,journal_offset,date")
        .option("maxRowsPerTrigger", 1_000_000)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .load(str(data))
    )
    return run_to_delta(frame, table)


def run_to_delta(frame: DataFrame, table: Path) -> float:
    began = time.monotonic()
    writer = frame.writeStream.format("delta").partitionBy("date").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{table}-checkpoint").start(str(table))
    query.awaitTermination()
    return time.monotonic() - began


def compare(spark: SparkSession, folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    with kafka(folder / "kafka", 29_092) as server:
        fill_kafka(spark, folder / "data", server)
        runs: dict[str, list[int]] = {"kafka": [], "headrace-journal": []}
        sides: dict[str, Callable[[Path], float]] = {
            "kafka": lambda table: archive_kafka(spark, server, table),
            "headrace-journal": lambda table: archive_journal(spark, folder / "data", table),
        }
        for turn in range(rounds):
            for name, side in sides.items():
                table = folder / f"{name}-{turn}"
                seconds = side(table)
                rows = spark.read.format("delta").load(str(table)).count()
                if rows != messages:
                    sys.exit(f"{name}: {rows} rows instead of {messages}")
                runs[name].append(round(messages / seconds))
                shutil.rmtree(table)
    best = {name: max(rates) for name, rates in runs.items()}
    return {"rows a second": runs, "ratio of the best": round(best["headrace-journal"] / best["kafka"], 2)}


def connector_jars() -> str:
    jars = fetch(jars_folder().parent / "bench-spark-kafka-4.2.0", CONNECTOR)
    wanted = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(CONNECTOR_JARS)]
    return ",".join([*wanted, *map(str, jar_files(jars_folder()))])


def with_spark(what: str, folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    extra = {"spark.jars": connector_jars()} if what == "archive" else {}
    spark = open_session(SparkSettings(master="local[2]", app_name="bench", extra=extra))
    spark.dataSource.register(JournalDataSource)
    try:
        return skip(spark, folder) if what == "skip" else compare(spark, folder, messages, rounds)
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("read", "skip", "archive"))
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        write_journal(folder / "data", options.messages)
        if options.what == "read":
            found = read(folder)
        else:
            found = with_spark(options.what, folder, options.messages, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    load = round(os.getloadavg()[0], 1)
    result = {
        "messages": options.messages,
        "payload": len(PAYLOAD),
        "cpus": os.cpu_count(),
        "load": load,
        **found,
    }
    text = json.dumps(result, indent=2)
    (RESULTS / f"spark-source-{options.what}-{options.messages}.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
