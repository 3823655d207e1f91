"""The pipeline on a cluster: a real Kafka, a node, and the jobs that read its journals by their commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from e2e.raw import RawClient
from headrace.core.homes import Homes
from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.base.errors import JournalMissing
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import archive
from kafka_server import WITHIN_S, KafkaServer
from spark.conftest import settings_of
from spark.kafka_journals import KafkaShards

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SHARDS = 2


def archived(spark: SparkSession, url: str, lake: Path, **changes: Any) -> Progress:
    settings: ArchiveSettings = settings_of("archive", lake, lake, **changes)
    return archive.run(spark, replace(settings, journal=url), Event(), lambda _: None)


def rows_in(lake: Path, columns: list[str]) -> list[dict[str, Any]]:
    table = DeltaTable(lake / "messages").to_pyarrow_table().select(columns)
    found: list[dict[str, Any]] = table.sort_by(
        [("journal_uuid", "ascending"), ("journal_offset", "ascending")]
    ).to_pylist()
    return found


def test_the_table_has_every_message_of_all_partitions_once(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    shards, lake = KafkaShards(kafka, SHARDS), tmp_path / "lake"
    shards.write(150)
    columns = list(shards.rows()[0])
    progress = archived(spark, shards.url, lake, records_per_trigger_max=100)
    assert (progress.lag, rows_in(lake, columns)) == (0, shards.rows())
    shards.write(50, seed=2)
    archived(spark, shards.url, lake)
    assert rows_in(lake, columns) == shards.rows()


@pytest.fixture
def node(kafka: KafkaServer, tmp_path: Path) -> Iterator[tuple[str, BrokerProcess]]:
    """A cluster with a node that owns all shards."""
    url = kafka.make_cluster(SHARDS)
    broker = BrokerProcess(tmp_path / "n0", None, ["--cluster", url, "--node", "n0"])
    broker.start(WITHIN_S)
    yield url, broker
    broker.end()


@pytest.mark.time_limit(300)
def test_what_a_node_has_acknowledged_is_in_the_table_also_when_it_is_killed(
    spark: SparkSession, node: tuple[str, BrokerProcess], tmp_path: Path
) -> None:
    url, broker = node
    lake = tmp_path / "lake"
    names = [
        next(n for n in map(str, range(99)) if Homes(SHARDS).of_client("default", n) == s)
        for s in range(SHARDS)
    ]

    def publish(first: int) -> None:
        for name in names:
            with RawClient(broker.address, name) as client:
                client.connect(deadline_s=WITHIN_S)
                client.deliver_many(f"t/{name}", range(first, first + 100))

    publish(0)
    archived(spark, url, lake, records_per_trigger_max=70)
    publish(100)
    broker.kill()
    archived(spark, url, lake)  # no node is asked
    broker.start(WITHIN_S)
    publish(200)
    progress = archived(spark, url, lake)
    found = sorted(
        (row["client_id"], int(row["payload"]))
        for row in rows_in(lake, ["client_id", "payload", "journal_uuid", "journal_offset"])
    )
    assert found == sorted((name, number) for name in names for number in range(300))
    assert progress.lag == 0


def test_a_cluster_that_is_not_there_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    settings = replace(settings_of("archive", tmp_path, tmp_path), journal=f"kafka://{kafka.address}/none")
    with pytest.raises(JournalMissing, match="no such cluster"):
        archive.check(settings)
