"""A broker of several shards as one source: all journals, each published message once, from files and over HTTP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from prometheus_client.registry import CollectorRegistry
from pyspark.sql import SparkSession

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind
from headrace.api.journal import JournalRoutes
from headrace.core.records.message_id import Origin
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.snapshot import SnapshotWriter
from headrace_spark.base.errors import BadOption, JournalMissing, LakeConflict
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.journal import open_journal, open_journals
from headrace_spark.source.log_reader import DividedFrom
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.remote import RemoteJournal
from headrace_spark.source.source import BatchReader
from spark.conftest import Shards

pytestmark = pytest.mark.spark


@pytest.fixture
def address(shards: Shards) -> Iterator[str]:
    """The journals over HTTP, as a broker serves them."""
    (shards.data_dir / "tokens").write_text("secret\nread tenant=tenant-1 theirs\n")
    routes = JournalRoutes([writer.data_dir for writer in shards.writers], shards.data_dir / "tokens")
    app = application(lambda: "", CollectorRegistry(), routes.routes())
    bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
    port = bound.getsockname()[1]
    with ServedApart(app, bound, f"http://127.0.0.1:{port}", lambda _event, _detail: None):
        yield f"headrace://127.0.0.1:{port}"


def rows_of(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """All rows of a batch read, by journal and offset, without Spark."""
    given = {"path": str(path), "token": "secret", "partitions": "2", "cache": "none"} | options
    reader = BatchReader(SourceOptions.parse(given), MESSAGES)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["journal_uuid"], row["journal_offset"]))


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"user_properties": [dict(pair) for pair in row["user_properties"]]} for row in rows]


def test_a_data_directory_gives_every_published_message_once(shards: Shards) -> None:
    found = rows_of(shards.data_dir)
    assert plain(found) == shards.rows()
    assert len({row["journal_uuid"] for row in found}) == 3
    only = shards.writers[1]
    assert plain(rows_of(only.data_dir)) == only.rows()


def test_over_http_it_is_the_same(shards: Shards, address: str) -> None:
    assert plain(rows_of(address)) == shards.rows()
    assert plain(rows_of(f"{address}?compression=gzip")) == shards.rows()
    ours = [row for row in shards.rows() if row["tenant"] == "tenant-1"]
    assert plain(rows_of(address, token="theirs")) == ours
    only = shards.writers[2]
    assert plain(rows_of(f"{address}?shard=2")) == only.rows()
    for journal, writer in zip(open_journals(address, "secret"), shards.writers, strict=True):
        journal.consumers.register("far", journal.uuid, journal.epoch, 7, "archive:1")
        assert ConsumerPosition.read(writer.data_dir, "far").offset == 7
        assert [found.name for found in journal.consumers.list()] == ["far"]


def test_a_part_of_a_journal_that_was_divided_says_of_which_from_the_files_and_over_http(
    shards: Shards, address: str
) -> None:
    directory = shards.writers[1].data_dir / "journal"
    snapshot = SnapshotWriter(directory, 0)
    snapshot.add(Origin("old", 200, [(0, 3), (100, 5)]).entry())
    snapshot.commit()
    for location in (str(shards.data_dir), address):
        found = [journal.divided_from() for journal in open_journals(location, "secret")]
        assert found == [None, DividedFrom("old", 5, 200), None]


def test_one_journal_is_not_taken_for_all(shards: Shards, address: str) -> None:
    with pytest.raises(BadOption, match="3 shards lie there, and one journal is wanted"):
        open_journal(shards.data_dir)
    with pytest.raises(LakeConflict, match="this broker has 3 shards"):  # what a reader of before asks for
        RemoteJournal(address, "secret").high_watermark()
    with pytest.raises(BadOption, match="two of them are the same journal"):
        rows_of(f"{shards.data_dir},{shards.writers[0].data_dir}")


def test_shards_that_are_not_all_there_are_no_smaller_broker(shards: Shards) -> None:
    shutil.rmtree(shards.writers[1].data_dir)
    with pytest.raises(JournalMissing, match="shard-1 is missing"):
        open_journals(shards.data_dir)


def test_a_stream_is_one_consumer_of_every_shard(spark: SparkSession, shards: Shards, tmp_path: Path) -> None:
    def run() -> None:
        reader = (
            spark.readStream.format("headrace").option("consumer", "all").option("maxRowsPerTrigger", 400)
        )
        writer = reader.load(str(shards.data_dir)).writeStream.format("delta")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(str(tmp_path / "out")).awaitTermination()

    run()
    shards.write(100, seed=2)
    run()
    table = DeltaTable(tmp_path / "out").to_pyarrow_table()
    found = table.sort_by([("journal_uuid", "ascending"), ("journal_offset", "ascending")]).to_pylist()
    assert plain(found) == shards.rows()
    for writer in shards.writers:
        assert ConsumerPosition.read(writer.data_dir, "all").offset > 0
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = json.loads(newest.read_text().splitlines()[2])["journals"]
    assert {end["uuid"]: end["offset"] for end in ends} == {
        writer.uuid: len(writer.made.records) for writer in shards.writers
    }
