"""The pipeline on a cluster: a real Kafka, a node, and the jobs that read its journals by their commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, free_port, wait_until
from e2e.raw import RawClient
from headrace.core.homes import Homes
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.registry import presence_now
from headrace.storage.kafka.topics import Topics
from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.base.errors import JournalMissing
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import archive, compact_events, metrics
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.status import pipeline_status
from headrace_spark.source.journal import journals_of
from kafka_server import WITHIN_S, KafkaServer
from spark.conftest import Shards, settings_of
from spark.kafka_journals import KafkaShards

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SHARDS = 2
JOBS: list[tuple[str, Any]] = [("archive", archive), ("metrics", metrics), ("compact-events", compact_events)]


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


class Nodes:
    """Two nodes that share the shards of a cluster, and a publisher at home in each shard."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.url = kafka.make_cluster(SHARDS)
        self.brokers = [self._made(folder / name, name) for name in ("n0", "n1")]
        homes, numbers = Homes(SHARDS), [str(n) for n in range(99)]
        self.names = [next(n for n in numbers if homes.of_client("default", n) == s) for s in range(SHARDS)]

    def _made(self, folder: Path, name: str) -> BrokerProcess:
        peer = ["--peer-listen", f"tcp://127.0.0.1:{free_port()}"]
        return BrokerProcess(folder, None, ["--cluster", self.url, "--node", name, *peer])

    def wait_until_shared(self) -> None:
        """Wait until each node owns a shard."""
        url = ClusterUrl.parse(self.url)
        topic_id, _ = Topics(url).identity()

        def is_shared() -> bool:
            found = presence_now(url, topic_id, SHARDS)
            return [len(one.shards) for one in found.nodes] == [1, 1]

        wait_until(is_shared, "each node owns a shard", WITHIN_S)

    def publish(self, broker: BrokerProcess, first: int, count: int) -> None:
        """Publish so many numbers from each publisher, each acknowledged."""
        for name in self.names:
            with self._connected(broker, name) as client:
                client.deliver_many(f"t/{name}", range(first, first + count))

    @staticmethod
    def _connected(broker: BrokerProcess, name: str) -> RawClient:
        """A client that was let in: as long as nobody owns its shard it is told to come again."""
        until = time.monotonic() + WITHIN_S
        while True:
            client = RawClient(broker.address, name)
            try:
                client.connect(deadline_s=WITHIN_S)
                return client
            except (AssertionError, OSError):
                client.close()
                if time.monotonic() > until:
                    raise


@pytest.fixture
def nodes(kafka: KafkaServer, tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(kafka, tmp_path)
    for broker in found.brokers:
        broker.start(WITHIN_S)
    found.wait_until_shared()
    yield found
    for broker in found.brokers:
        broker.end()


@pytest.mark.time_limit(300)
def test_a_job_that_follows_has_all_that_was_acknowledged_once_though_its_shards_move(
    spark: SparkSession, nodes: Nodes, tmp_path: Path
) -> None:
    first, second = nodes.brokers
    lake, count, over, seen = tmp_path / "lake", 50, Event(), Event()
    failed: list[BaseException] = []

    def look(progress: Progress) -> None:
        """Go on from one stage to the next as the table has what was published."""
        if progress.rows >= SHARDS * count:
            seen.set()
        if failed or progress.rows >= 2 * SHARDS * count:
            over.set()

    def publish() -> None:
        try:
            nodes.publish(first, 0, count)
            assert seen.wait(WITHIN_S)
            first.kill()  # what it owned has no owner for some seconds
            nodes.publish(second, count, count)
        except BaseException as error:
            failed.append(error)

    publisher = Thread(target=publish)
    publisher.start()
    settings: ArchiveSettings = settings_of("archive", lake, lake, follow=True, trigger_s=0.2)
    archive.run(spark, replace(settings, journal=nodes.url), over, look)
    publisher.join(WITHIN_S)
    assert not failed
    columns = ["client_id", "payload", "journal_uuid", "journal_offset"]
    found = sorted((row["client_id"], int(row["payload"])) for row in rows_in(lake, columns))
    assert found == sorted((name, number) for name in nodes.names for number in range(2 * count))


def test_a_cluster_that_is_not_there_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    settings = replace(settings_of("archive", tmp_path, tmp_path), journal=f"kafka://{kafka.address}/none")
    with pytest.raises(JournalMissing, match="no such cluster"):
        archive.check(settings)


@pytest.mark.deep
@pytest.mark.time_limit(600)
def test_all_jobs_of_a_cluster_say_what_those_of_a_data_directory_say(
    spark: SparkSession, kafka: KafkaServer, shards: Shards, tmp_path: Path
) -> None:
    """The same records in Kafka and on disk: the tables differ by the names of journals alone."""
    cluster = KafkaShards(kafka, len(shards.writers))
    for here, there in zip(shards.writers, cluster.writers, strict=True):
        there.write(here.made)
    found = []
    for name, url in (("disk", ""), ("kafka", cluster.url)):
        lake = tmp_path / name
        for job, module in JOBS:
            settings = replace(settings_of(job, shards.data_dir, lake), journal=url)
            module.check(settings)
            progress = module.run(spark, settings, Event(), lambda _: None)
            assert progress.lag == 0
        status = pipeline_status(journals_of(settings), Lake(lake))
        assert {one.name for one in status.consumers} == {"archive", "metrics", "compact-events"}
        assert {one.lag for one in status.consumers} == {0}
        assert status.table is not None
        found.append(
            {
                "table": status.table.rows,
                "traffic": total(lake / "traffic", "messages"),
                "messages": total(lake / "messages", "journal_offset"),
                "devices": DeltaTable(lake / "devices").to_pyarrow_table().num_rows,
                "events": sorted(DeltaTable(lake / "event_snapshot").to_pyarrow_table()["kind"].to_pylist()),
            }
        )
    assert found[0] == found[1]


def total(table: Path, column: str) -> int:
    return int(pc.sum(DeltaTable(table).to_pyarrow_table()[column]).as_py())
