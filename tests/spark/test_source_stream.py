"""Streams of `headrace`: triggers, restarts, the registered consumer, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace.journal.backup import backup
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.log import LogSettings
from headrace.journal.reader import JournalReader
from headrace.journal.restore import restore
from headrace_spark.base.errors import ForeignOffset
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.reading import JournalPartition
from headrace_spark.source.stream import StreamReader
from spark.conftest import Writer
from spark.journals import mixed

pytestmark = pytest.mark.spark

Run = Callable[..., list[StreamingQueryProgress]]


@pytest.fixture
def run(spark: SparkSession, journal: Writer, tmp_path: Path) -> Run:
    """Read what is available, into a Delta table or nowhere; returns the progress of the batches that had rows."""

    def run(sink: str = "delta", **options: Any) -> list[StreamingQueryProgress]:
        query = (
            spark.readStream.format("headrace")
            .options(**{"consumer": "test"} | options)
            .load(str(journal.data_dir))
            .writeStream.format(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]

    return run


def written(tmp_path: Path) -> list[dict[str, Any]]:
    """Read back without Spark; a row that is there twice stays twice."""
    table = DeltaTable(tmp_path / "out").to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by("journal_offset").to_pylist()
    return rows


def drop_what_nobody_needs(journal: Writer) -> int:
    """Retention with hardly any room; returns where the journal begins afterwards."""
    limits = LogSettings(segment_bytes_max=4096, retention_bytes=1, consumer_retention_s=1 << 40)
    with closing(journal.open(limits)) as log:
        log.set_floor(log.next_offset)
        while log.apply_retention():
            pass
        return log.start_offset


def test_triggers_respect_the_limit_and_a_restart_repeats_nothing(
    run: Run, journal: Writer, tmp_path: Path
) -> None:
    journal.write(mixed(1000, 1))
    batches = run(maxRowsPerTrigger=300)
    assert len(batches) == 4
    assert all(batch.numInputRows <= 300 for batch in batches)
    assert written(tmp_path) == journal.rows()
    journal.write(mixed(500, 2))
    assert len(run(maxRowsPerTrigger=1000)) == 1
    assert run() == []
    assert written(tmp_path) == journal.rows()


def test_bytes_limit_a_trigger_too(run: Run, journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(1200, 3))
    size = sum(path.stat().st_size for path in (journal.data_dir / "journal").glob("*.log"))
    batches = run(maxBytesPerTrigger=size // 3)
    assert 3 <= len(batches) <= 4
    assert written(tmp_path) == journal.rows()


def test_the_consumer_is_registered_and_its_position_follows(run: Run, journal: Writer) -> None:
    journal.write(mixed(900, 4))
    run("noop", maxRowsPerTrigger=300)
    position = ConsumerPosition.read(journal.data_dir, "test")
    assert (position.uuid, position.epoch, position.offset) == (journal.uuid, journal.epoch, 900)
    journal.write(mixed(10, 5))
    run("noop")
    assert ConsumerPosition.read(journal.data_dir, "test").offset == 910


def test_retention_waits_for_the_consumer(run: Run, journal: Writer) -> None:
    journal.write(mixed(900, 6))
    run("noop", maxRowsPerTrigger=300)
    journal.write(mixed(900, 26))
    assert 0 < drop_what_nobody_needs(journal) <= 900
    assert sum(batch.numInputRows for batch in run("noop")) > 0


def test_latest_begins_at_the_high_watermark(run: Run, journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(100, 7))
    assert run(startingOffsets="latest") == []
    journal.write(mixed(50, 8))
    run(startingOffsets="latest")
    assert written(tmp_path) == [row for row in journal.rows() if row["journal_offset"] >= 100]


def test_another_journal_under_the_same_checkpoint_is_refused(
    run: Run, journal: Writer, tmp_path: Path
) -> None:
    journal.write(mixed(100, 9))
    run()
    (journal.data_dir).rename(tmp_path / "old")
    other = Writer(journal.data_dir, LogSettings())
    other.write(mixed(200, 10))
    with pytest.raises(StreamingQueryException, match="use the right data directory"):
        run()


def test_records_that_retention_took_are_not_skipped_silently(
    run: Run, journal: Writer, tmp_path: Path
) -> None:
    journal.write(mixed(900, 11))
    run(maxRowsPerTrigger=300)
    journal.write(mixed(900, 12))
    ConsumerPosition.remove(journal.data_dir, "test")
    start = drop_what_nobody_needs(journal)
    assert start > 900
    with pytest.raises(StreamingQueryException, match=f"offsets 900 to {start} are gone"):
        run()
    run(failOnDataLoss="false")
    offsets = [row["journal_offset"] for row in written(tmp_path)]
    assert offsets == [
        row["journal_offset"]
        for row in journal.rows()
        if row["journal_offset"] < 900 or row["journal_offset"] >= start
    ]


def test_a_stream_without_a_consumer_is_refused(spark: SparkSession, journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(10))
    stream = spark.readStream.format("headrace-journal").load(str(journal.data_dir))
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(StreamingQueryException, match="a stream needs a consumer name"):
        writer.trigger(availableNow=True).start().awaitTermination()


def reader(journal: Writer, **options: str) -> StreamReader:
    """The stream as Spark's driver has it, without Spark."""
    return StreamReader(
        SourceOptions.parse({"path": str(journal.data_dir), "consumer": "few"} | options), MESSAGES
    )


def test_a_batch_waits_for_enough_offsets_or_for_its_time(journal: Writer) -> None:
    journal.write(mixed(100, 13))
    patient = reader(journal, minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    first = patient.latestOffset(patient.initialOffset(), limit)
    assert first["offset"] == 100
    journal.write(mixed(49, 14))
    assert patient.latestOffset(first, limit) is first
    assert patient.latestOffset(first, ReadAllAvailable())["offset"] == 149
    journal.write(mixed(1, 15))
    assert patient.latestOffset(first, limit)["offset"] == 150

    hasty = reader(journal, minOffsetsPerTrigger="50", maxTriggerDelay="0")
    assert hasty.latestOffset(hasty.latestOffset(hasty.initialOffset(), limit), limit)["offset"] == 150
    journal.write(mixed(1, 16))
    assert hasty.latestOffset(first, limit)["offset"] == 151


def test_a_new_start_and_available_now_wait_for_nothing(journal: Writer) -> None:
    journal.write(mixed(10, 17))
    few = reader(journal, minOffsetsPerTrigger="50", maxOffsetsPerTrigger="60")
    begin = few.initialOffset()
    first = few.latestOffset(begin, few.getDefaultReadLimit())
    assert first["offset"] == 10
    journal.write(mixed(20, 18))
    assert few.latestOffset(first, few.getDefaultReadLimit()) is first
    few.prepareForTriggerAvailableNow()
    assert few.latestOffset(first, few.getDefaultReadLimit())["offset"] == 30


def test_the_consumer_is_where_spark_asks_from(journal: Writer) -> None:
    """Whatever comes next: an idle query, and one that has ended at the present end, hold nothing back that they have."""

    def position() -> int:
        return ConsumerPosition.read(journal.data_dir, "few").offset

    journal.write(mixed(100, 21))
    few = reader(journal, maxOffsetsPerTrigger="60")
    limit = few.getDefaultReadLimit()
    few.prepareForTriggerAvailableNow()
    first = few.latestOffset(few.initialOffset(), limit)
    assert (first["offset"], position()) == (60, 0)
    last = few.latestOffset(first, limit)
    few.commit(first)
    assert (last["offset"], position()) == (100, 60)  # it is planned, and not done
    journal.write(mixed(10, 22))
    assert few.latestOffset(last, limit) is last
    assert position() == 100
    ConsumerPosition.remove(journal.data_dir, "few")
    assert few.latestOffset(last, limit) is last
    assert ConsumerPosition.list(journal.data_dir) == []  # who has removed it meant it


def test_a_stream_goes_on_in_what_was_restored_of_its_journal(journal: Writer, tmp_path: Path) -> None:
    """Its checkpoint names the epoch of before, in the batch that is done and in one that was planned."""
    journal.write(mixed(100, 23))
    few = reader(journal, maxOffsetsPerTrigger="60")
    limit = few.getDefaultReadLimit()
    first = few.latestOffset(few.initialOffset(), limit)
    planned = few.latestOffset(first, limit)
    backup(journal.data_dir, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    records, journal = journal.made.records, Writer(tmp_path / "restored")
    journal.made.records = records
    journal.write(mixed(10, 24))
    again = reader(journal)
    parts = [part for part in again.partitions(first, planned) if isinstance(part, JournalPartition)]
    assert (min(part.start for part in parts), max(part.end for part in parts)) == (60, 100)
    epoch = JournalReader(journal.data_dir).epoch
    assert epoch > planned["epoch"]
    assert {part.epoch for part in parts} == {epoch}
    last = again.latestOffset(planned, again.getDefaultReadLimit())
    assert (last["offset"], last["epoch"]) == (110, epoch)
    again.commit(planned)
    assert ConsumerPosition.read(journal.data_dir, "few").offset == 100
    assert again.latestOffset(last, again.getDefaultReadLimit()) is last
    assert ConsumerPosition.read(journal.data_dir, "few").offset == 110


@pytest.mark.parametrize(
    ("count", "what"),
    [(20, r"up to offset 150(?s:.)*ends at 120"), (80, r"up to offset 150(?s:.)*another one")],
)
def test_a_stream_whose_journal_was_put_back_is_refused_also_where_that_has_grown_past_it(
    run: Run, journal: Writer, tmp_path: Path, count: int, what: str
) -> None:
    """The files were copied back, with nothing that says so: uuid and epoch are those of the checkpoint."""
    journal.write(mixed(100, 27))
    shutil.copytree(journal.data_dir, tmp_path / "copy")
    records = list(journal.made.records)
    journal.write(mixed(50, 28))
    assert sum(batch.numInputRows for batch in run()) == len(journal.rows())
    rows, few = written(tmp_path), reader(journal)
    read = few.latestOffset(few.initialOffset(), few.getDefaultReadLimit())
    few.commit(read)
    shutil.rmtree(journal.data_dir)
    shutil.copytree(tmp_path / "copy", journal.data_dir)
    journal.made.records = records
    others = mixed(count, 29)
    for record in others.records:
        record.timestamp_us += 1_000_000
    journal.write(others)
    with pytest.raises(StreamingQueryException, match=rf"{what}(?s:.)*a new checkpoint"):
        run()
    assert written(tmp_path) == rows
    for again in (few, reader(journal)):  # one that runs on, and one that begins again
        with pytest.raises(ForeignOffset, match="headrace restore"):
            again.latestOffset(read, again.getDefaultReadLimit())
        with pytest.raises(ForeignOffset, match="headrace restore"):
            again.partitions(read, read)
    assert ConsumerPosition.list(journal.data_dir) == [], "nothing of the journal is let go for it"
    assert reader(journal, startingOffsets="latest").initialOffset()["offset"] == 100 + count


def test_progress_says_what_a_batch_took_and_what_it_left(run: Run, journal: Writer) -> None:
    journal.write(mixed(500, 19))
    batches = run("noop", maxOffsetsPerTrigger=300)
    ends = [json.loads(batch.sources[0].endOffset) for batch in batches]
    latest = [json.loads(batch.sources[0].latestOffset) for batch in batches]
    assert [(end["offset"], end["lag"]) for end in ends] == [(300, 200), (500, 0)]
    assert all(end["bytes"] > 0 for end in ends)
    assert {offset["offset"] for offset in latest} == {500}


def test_a_plain_query_has_the_names_that_are_nobodys(run: Run, journal: Writer) -> None:
    journal.write(mixed(100, 20))
    position = (journal.uuid, journal.epoch, 0)
    ConsumerPosition.register(journal.data_dir, "archive", *position, owner="0f5c /lake")
    ConsumerPosition.register(journal.data_dir, "free", *position)
    with pytest.raises(
        StreamingQueryException, match=r"belongs to 0f5c /lake(?s:.)*Give another consumer name"
    ):
        run("noop", consumer="archive")
    assert sum(batch.numInputRows for batch in run("noop", consumer="free")) == len(journal.rows())
