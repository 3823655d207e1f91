"""The outbox: what is published is what was kept, whatever a repeated batch looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.devices.outbox import OUTBOX, Outbox, numbered
from spark.device_clients import received, subscribe

pytestmark = pytest.mark.spark


@pytest.fixture
def outbox(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Outbox:
    made = Outbox(tmp_path / "outbox", BrokerAddress(f"tcp://127.0.0.1:{broker.port}"), connections=3)
    made.create(spark)
    return made


def test_every_row_has_a_number_of_its_own_and_a_topic_one_producer(spark: SparkSession) -> None:
    frame = spark.range(1000).selectExpr(
        "concat('t/', id % 7) as topic", "'p' as payload", "id as journal_offset"
    )
    rows = numbered(frame, "query", 5, 3, "run").collect()
    assert numbered(frame, "query", 5, 3, "run").schema.names == OUTBOX.names
    assert len({(row.producer, row.sequence) for row in rows}) == 1000
    assert len({row.topic for row in rows}) == len({(row.topic, row.producer) for row in rows})
    assert {row.sequence >> 32 for row in rows} == {5}


def test_a_batch_that_comes_again_otherwise_is_published_as_it_was_kept(
    spark: SparkSession, broker: BrokerProcess, outbox: Outbox
) -> None:
    subscribe(broker, "device-outbox", "outbox/#")
    first = spark.range(0, 300, 1, 2).selectExpr(
        "concat('outbox/', id % 5) as topic", "string(id) as payload"
    )
    other = spark.range(1000, 1100).selectExpr("'outbox/x' as topic", "string(id) as payload")
    for frame in (first, other):
        outbox.stage(frame, "query", 0)
        outbox.publish(spark, "query", 0)
    outbox.stage(other, "query", 1)
    outbox.publish(spark, "query", 1)
    found = [int(packet.payload) for packet in received(broker, "device-outbox")]
    assert sorted(found) == [*range(300), *range(1000, 1100)]
    for number in range(5):  # a topic keeps its order
        assert [n for n in found if n < 300 and n % 5 == number] == list(range(number, 300, 5))


def test_old_batches_are_forgotten(spark: SparkSession, outbox: Outbox) -> None:
    frame = spark.range(10).selectExpr("'t' as topic", "'p' as payload")
    for batch in range(3):
        outbox.stage(frame, "query", batch)
    outbox.forget(spark, "query", 2)
    assert set(DeltaTable(str(outbox.table)).to_pyarrow_table()["batch"].to_pylist()) == {2}
