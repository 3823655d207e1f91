"""The Delta table of the archive: counted on the way by its log alone, read back at the end with Spark.

    python -m demo.lake LAKE      what Spark finds in the table, as one line of JSON

Spark runs in a process of its own, because its JVM writes to the terminal whatever it likes, whenever it likes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from demo.evidence import Reading
from demo.services import SHORT_LIVED_JVM
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings


@dataclass(frozen=True)
class Archived:
    """What Spark found: the readings in journal order; the busiest devices as (device, messages, bytes)."""

    readings: list[Reading]
    busiest: list[tuple[str, int, int]]


def exists(lake: Path) -> bool:
    """Whether the archive job has come as far as creating its table."""
    return DeltaTable.is_deltatable(str(lake / "messages"))


def row_count(lake: Path) -> int:
    """Rows of the table, from the statistics in its log."""
    try:
        table = DeltaTable(lake / "messages")
    except TableNotFoundError:
        return 0
    return sum(table.get_add_actions(flatten=True)["num_records"].to_pylist())


def readings(lake: Path) -> list[Reading]:
    """Every reading in the table, without Spark: how the demo knows that the archive has caught up."""
    try:
        table = DeltaTable(lake / "messages")
    except TableNotFoundError:
        return []
    rows = QueryBuilder().register("messages", table).execute("select payload from messages").read_all()
    parsed = (json.loads(payload) for payload in rows["payload"].to_pylist())
    return [(reading["device"], reading["seq"]) for reading in parsed]


def ask_spark(lake: Path, log: Path) -> Archived:
    """Run this module on the table; what Spark says besides goes into `log`."""
    environment = os.environ | SHORT_LIVED_JVM
    with log.open("wb") as errors:
        command = [sys.executable, "-m", "demo.lake", str(lake)]
        found = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=errors, env=environment).stdout
        )
    return Archived(
        [(device, seq) for device, seq in found["readings"]], [tuple(row) for row in found["busiest"]]
    )


def read_with_spark(lake: Path) -> Archived:
    """The whole table, by Spark."""
    spark = open_session(SparkSettings(app_name="headrace-demo"))
    try:
        decoded = _decode(spark.read.format("delta").load(str(lake / "messages"))).cache()
        in_order = decoded.orderBy("journal_epoch", "journal_offset").select("device", "seq").toArrow()
        columns = (in_order[name].to_pylist() for name in ("device", "seq"))
        busiest = [(row.device, row.messages, row.bytes) for row in _busiest(decoded).collect()]
        return Archived(list(zip(*columns, strict=True)), busiest)
    finally:
        spark.stop()


def _decode(messages: DataFrame) -> DataFrame:
    """Rows of `messages` -> journal_epoch, journal_offset, device, seq, bytes."""
    payload = F.col("payload").cast("string")
    reading = F.from_json(payload, "device string, seq long")
    return messages.select(
        "journal_epoch",
        "journal_offset",
        reading["device"].alias("device"),
        reading["seq"].alias("seq"),
        F.length("payload").alias("bytes"),
    )


def _busiest(decoded: DataFrame) -> DataFrame:
    """device, messages, bytes of the ten devices with the most bytes, repeats not counted."""
    once = decoded.dropDuplicates(["device", "seq"])
    totals = once.groupBy("device").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
    return totals.orderBy(F.desc("bytes"), "device").limit(10)


if __name__ == "__main__":
    print(json.dumps(asdict(read_with_spark(Path(sys.argv[1])))))
