"""An anomaly in a stream becomes a command at the device, within seconds and once.

    python examples/anomaly_to_command.py --data-dir headrace-data --lake lake --url tcp://127.0.0.1:1883

Devices publish readings as JSON, `{"celsius": 71.5}`, to `site/<device>/temp`. Whoever is above the limit is told to stop
on `command/<device>`, QoS 2. The readings come from the broker's journal, so none is missed while this program is away;
the commands go through the outbox, so none is sent twice when it comes back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.devices.outbox import Outbox


def readings(spark: SparkSession, data_dir: Path) -> DataFrame:
    """Everything that is published from now on; after a restart, from where it stopped."""
    return (
        spark.readStream.format("headrace")
        .option("consumer", "anomalies")
        .option("startingOffsets", "latest")
        .load(str(data_dir))
    )


def commands(readings: DataFrame, limit_celsius: float) -> DataFrame:
    """Readings in, commands out: the columns of `headrace_spark.devices.outgoing`."""
    celsius = F.get_json_object(F.col("payload").cast("string"), "$.celsius").cast("double")
    device = F.split("topic", "/")[1]
    return readings.where(F.col("topic").rlike("^site/[^/]+/temp$") & (celsius > limit_celsius)).select(
        F.concat(F.lit("command/"), device).alias("topic"),
        F.to_json(F.struct(F.lit("stop").alias("action"), celsius.alias("celsius"))).alias("payload"),
        F.lit(2).alias("qos"),
        F.lit(60).alias("message_expiry_s"),
    )


def start(
    spark: SparkSession, data_dir: Path, lake: Path, address: BrokerAddress, limit: float
) -> StreamingQuery:
    outbox = Outbox(lake / "outbox", address)
    outbox.create(spark)
    writer = commands(readings(spark, data_dir), limit).writeStream.foreachBatch(outbox.batches())
    writer = writer.trigger(processingTime="500 milliseconds")
    return writer.option("checkpointLocation", str(lake / "_checkpoints" / "anomalies")).start()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--url", default="tcp://127.0.0.1:1883")
    parser.add_argument("--username")
    parser.add_argument("--password")
    parser.add_argument("--limit", type=float, default=90.0, help="degrees Celsius")
    given = parser.parse_args()
    password = None if given.password is None else given.password.encode()
    address = BrokerAddress(given.url, given.username, password)
    spark = open_session(SparkSettings(app_name="anomalies"))
    start(spark, given.data_dir, given.lake.absolute(), address, given.limit).awaitTermination()


if __name__ == "__main__":
    main()
