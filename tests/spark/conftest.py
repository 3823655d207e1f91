"""What the Spark tests share: real journals written by the real log, and one SparkSession for all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace.data.layout import Layout
from headrace.journal.log import LogSettings, SegmentedLog
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.object_store import add_log_store, for_lake
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings
from kafka_server import KafkaServer, kafka_server
from spark import quick_java
from spark.journals import Made, of_a_shard

# Small heaps and the quick compiler: the tests start several Sparks and none of them runs for long. To make and compile
# Java of each query takes longer than to work through a dozen rows without: a fifth of all that these tests cost. What
# tests start as processes compiles as it does anywhere, and so does the suite that runs apart.
QUICK = {"spark.driver.extraJavaOptions": quick_java.OPTIONS}
if os.environ.get("HEADRACE_SUITE") != "spark-deep":
    QUICK |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


class Writer:
    """A journal in a data directory: `write` appends, and closes again so that a reader sees all of it."""

    def __init__(self, data_dir: Path, settings: LogSettings | None = None) -> None:
        self.data_dir = data_dir
        self.made = Made()
        # Small segments, so that ranges cross them.
        self._settings = settings or LogSettings(segment_bytes_max=16 << 10)
        self.uuid = ""
        self.epoch = 0

    def open(self, settings: LogSettings | None = None) -> SegmentedLog:
        return SegmentedLog.open(self.data_dir, settings or self._settings, lambda _line: None)

    def write(self, made: Made, records_per_batch: int = 50) -> None:
        """Append everything in `made`."""
        with closing(self.open()) as log:
            self.uuid, self.epoch = log.uuid, log.epoch
            assert log.next_offset == len(self.made.records)
            for batch in made.batches([records_per_batch] * (len(made.records) // records_per_batch + 1)):
                times = [made.records[i].timestamp_us for i in range(batch.base_offset, batch.end_offset)]
                log.append(batch.body, batch.count, min(times), max(times))
        self.made.records += made.records

    def rows(self) -> list[dict[str, Any]]:
        """The table that an archive of this journal must give, by offset."""
        return self.made.rows(self.uuid, self.epoch)


class Shards:
    """A data directory of several shards, each with a journal, copies of others and how far its streams are."""

    def __init__(self, data_dir: Path, count: int = 3) -> None:
        self.data_dir = data_dir
        self.writers = [Writer(directory) for directory in Layout.make(data_dir, count).directories()]

    def write(self, count: int, seed: int = 1) -> None:
        """Append about so many records to each shard."""
        for number, writer in enumerate(self.writers):
            source = (number + 1) % len(self.writers)
            writer.write(of_a_shard(count, 100 * seed + number, source))

    def rows(self) -> list[dict[str, Any]]:
        """The table that an archive of all shards must give, by journal and offset."""
        rows = [row for writer in self.writers for row in writer.rows()]
        return sorted(rows, key=lambda row: (row["journal_uuid"], row["journal_offset"]))


def settings_of(job: str, data_dir: Path, lake: Path, **changes: Any) -> Any:
    """What `[pipeline]` says by default, with changes."""
    sets = [f"data_dir={json.dumps(str(data_dir))}", f"pipeline.lake={json.dumps(str(lake))}"]
    return replace(job_settings(job, load(None, sets)), **changes)


@pytest.fixture
def journal(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "data")


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    made = Shards(tmp_path / "shards")
    made.write(300)
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that allows everything; tests use topics and names of their own."""
    running = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield running
    running.end()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = SparkSettings(master="local[2]", driver_memory="768m", extra=QUICK)
    settings = for_lake(settings, LakeUrl("s3a://any"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("HEADRACE_JARS", str(settings.jars))  # for processes that tests start
        session = open_session(settings)
        add_log_store(session)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One node of Kafka for the whole run."""
    with kafka_server() as server:
        yield server
