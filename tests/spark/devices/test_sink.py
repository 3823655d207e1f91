"""The sink `headrace-mqtt`: batches and streams arrive, once, in order; what is wrong is said in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess
from headrace_spark.base.errors import BadOption, QueryFailed
from headrace_spark.devices.sink import SinkOptions
from spark.device_clients import received, subscribe

pytestmark = pytest.mark.spark


def write(frame: DataFrame, broker: BrokerProcess, **options: Any) -> None:
    url = f"tcp://127.0.0.1:{broker.port}"
    frame.write.format("headrace-mqtt").options(**{"url": url} | options).mode("append").save()


def test_a_batch_under_a_name_is_published_once(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = spark.range(0, 4000, 1, 2).selectExpr("'sink/batch' as topic", "cast(id as string) as payload")
    subscribe(broker, "device-batch", "sink/batch")
    write(frame, broker, producer="recall")
    write(frame, broker, producer="recall")
    write(frame.limit(1), broker)  # without a name it is another message
    found = [int(packet.payload) for packet in received(broker, "device-batch")]
    assert sorted(found[:4000]) == list(range(4000))
    assert [n for n in found if n >= 2000] == list(range(2000, 4000))  # a partition keeps its order
    assert found[4000:] == [0]


def test_a_stream_that_repeats_a_batch(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """What kill -9 between the last acknowledgement and Spark's commit leaves behind."""
    subscribe(broker, "device-stream", "sink/stream")

    def append(first: int) -> None:
        frame = spark.range(first, first + 500, 1, 1)
        columns = frame.selectExpr("'sink/stream' as topic", "cast(cast(id as string) as binary) as payload")
        columns.write.format("delta").mode("append").save(str(tmp_path / "commands"))

    def run() -> None:
        query = (
            spark.readStream.format("delta")
            .load(str(tmp_path / "commands"))
            .writeStream.format("headrace-mqtt")
            .option("url", f"tcp://127.0.0.1:{broker.port}")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    append(0)
    run()
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    append(500)
    run()
    assert [int(packet.payload) for packet in received(broker, "device-stream")] == list(range(1000))


@pytest.mark.parametrize(
    ("select", "options", "problem"),
    [
        (("'t' as topic",), {}, "column payload is missing"),
        (("'t' as topic", "'p' as payload"), {"url": "broker:1883"}, "tcp://host:port or tls://"),
        (("'t' as topic", "'p' as payload"), {"color": "red"}, "no such option; there are url"),
        (("'t/#' as topic", "'p' as payload"), {}, "row 0 to topic 't/#': that is no topic name"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, broker: BrokerProcess, select: tuple[str, ...], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(*select), broker, **options)
    assert problem in str(QueryFailed.from_spark(caught.value))


def test_options() -> None:
    found = SinkOptions.parse({"URL": "tls://b", "userName": "u", "password": "p", "patience": "1.5"})
    assert (found.address.username, found.address.password, found.patience_s) == ("u", b"p", 1.5)
    for patience in ("0", "-1", "soon"):
        with pytest.raises(BadOption, match="a number above 0"):
            SinkOptions.parse({"url": "tcp://b", "patience": patience})
