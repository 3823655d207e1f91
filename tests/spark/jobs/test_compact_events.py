"""The job `compact-events`: its file leads to the state of the broker, record by record, however the history went."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from time import time, time_ns
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from librt.strings import BytesWriter
from pyspark.sql import DataFrame, SparkSession

from headrace.core.records.event import SESSION_CLOSED, SESSION_OPENED, SESSION_RESUMED, Event
from headrace.core.records.message import decode_batch
from headrace.core.state.state import Fold
from headrace.data.layout import Layout
from headrace.journal.bootstrap_file import BootstrapFile
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.services.state import lines
from headrace.storage.embedded.bootstrap import folded
from headrace_spark.base.errors import DataLoss, JournalMissing, LakeConflict
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import compact_events as job
from headrace_spark.lake.job_status import Places, job_statuses
from headrace_spark.lake.lake import Lake
from headrace_spark.source.journal import open_journals
from spark.conftest import Writer, settings_of
from unit.core.state.test_state import FILTERS, SUBSCRIBERS, TOPICS, History

pytestmark = pytest.mark.spark


def step(random: random.Random) -> tuple[object, ...]:
    """One of the steps of `History`; subscriptions, retained messages and crashes more often than there."""
    name, topic, flag = random.choice(SUBSCRIBERS), random.choice(TOPICS), random.random() < 0.5
    choices: list[tuple[object, ...]] = [
        ("connect", name, random.choice([4, 5]), 3),
        ("lose", name),
        ("disconnect", name),
        ("subscribe", name, random.choice(FILTERS), random.randrange(3)),
        ("subscribe", name, random.choice(FILTERS), random.randrange(3)),
        ("unsubscribe", name, random.choice(FILTERS)),
        ("publish", topic, random.randrange(3), True, flag),
        ("ack", name, random.randrange(4)),
    ]
    rare: list[tuple[object, ...]] = [
        ("fresh", name),
        ("crash",),
        ("expiring", topic),
        ("advance", 9),
        ("sync",),
    ]
    return random.choice(rare) if random.random() < 0.1 else random.choice(choices)


class Journal:
    """The journal of a history, on disk as far as it is durable."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.history = History()
        self._written = 0

    def go_on(self, steps: int, seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(steps):
            self.history.run(step(chooser))
        self.history.harness.sync()
        self._write()

    def _write(self) -> None:
        with closing(SegmentedLog.open(self.data_dir, LogSettings(), lambda _line: None)) as log:
            offset = 0
            for body in self.history.harness.journal.bodies:
                count = len(decode_batch(body, 0))
                if offset >= self._written:
                    log.append(body, count, time_ns() // 1000, time_ns() // 1000)
                offset += count
            self._written = offset

    @property
    def fold(self) -> Fold:
        return self.history.harness.broker.fold


def run(spark: SparkSession, data_dir: Path, lake: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    _, [file] = run_all(spark, data_dir, lake, capsys)
    return file


def run_all(
    spark: SparkSession, data_dir: Path, lake: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[Progress, list[Path]]:
    """Run it; the files of all journals."""
    settings: Any = settings_of("compact-events", data_dir, lake)
    settings = replace(settings, upkeep=replace(settings.upkeep, vacuum_retention_s=0))
    job.check(settings)
    progress = job.run(spark, settings, Flag(), lambda _: None)
    return progress, [Path(line) for line in capsys.readouterr().out.split()]


def test_the_file_leads_to_the_state_again_and_again(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "data")
    for part in range(2):
        journal.go_on(300, seed=part)
        file = run(spark, journal.data_dir, tmp_path / "lake", capsys)
        snapshot = BootstrapFile(file)
        assert lines(folded(snapshot, file)) == lines(journal.fold)
        assert snapshot.checkpoint == ConsumerPosition.read(journal.data_dir, "compact-events").offset
        assert len(list(snapshot.records())) < snapshot.checkpoint / 2
    before = DeltaTable(tmp_path / "lake" / "event_snapshot").version()
    assert run(spark, journal.data_dir, tmp_path / "lake", capsys) == file
    assert (
        DeltaTable(tmp_path / "lake" / "event_snapshot").version() == before
    )  # nothing new, nothing written
    file.write_bytes(b"")  # as a power cut leaves it
    os.utime(tmp_path / "lake" / "_checkpoints" / "upkeep-event_snapshot", (0, 0))
    assert run(spark, journal.data_dir, tmp_path / "lake", capsys) == file
    assert lines(folded(BootstrapFile(file), file)) == lines(journal.fold)
    table = tmp_path / "lake" / "event_snapshot"
    assert {str(path) for path in table.glob("*.parquet")} == set(DeltaTable(table).file_uris())
    with (
        Lake(tmp_path / "lake").holding("compact-events"),
        pytest.raises(LakeConflict, match="another process"),
    ):
        run(spark, journal.data_dir, tmp_path / "lake", capsys)


def test_a_client_id_stays_with_the_user_who_came_second(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was opened by nobody in particular; the record that names the owner is not the last resumption."""
    about: dict[str, object] = {"t": "default", "c": "d", "ex": 9, "v": 5, "lim": 0}
    records = [Event(SESSION_OPENED, 1, about | {"ty": 0})]
    for user in ({"u": "ada"}, {}, {}):
        records.append(Event(SESSION_CLOSED, 2, about | {"inc": 0, "will": 0}))
        records.append(Event(SESSION_RESUMED, 3, about | {"inc": 0} | user))
    with closing(SegmentedLog.open(tmp_path / "data", LogSettings(), lambda _line: None)) as log:
        for record in records:
            body = BytesWriter()
            record.encode_into(body)
            log.append(body.getvalue(), 1, time_ns() // 1000, time_ns() // 1000)
    read, events = spark.sparkContext.accumulator(0), job.events

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    def counted(*about: Any) -> DataFrame:
        rows = events(*about)
        return rows.mapInArrow(count, rows.schema)

    monkeypatch.setattr(job, "events", counted)
    file = run(spark, tmp_path / "data", tmp_path / "lake", capsys)
    assert len(records) <= read.value < 2 * len(records), "it is read once, whatever looks at its events"
    (session,) = folded(BootstrapFile(file), file).by_incarnation.values()
    assert session.owner == "ada"
    assert len(list(BootstrapFile(file).records())) == 4  # opened, closed, and two that resume


@pytest.mark.deep
def test_a_table_that_was_restored_is_not_the_state_that_its_log_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "data")
    for part in range(2):
        journal.go_on(60, seed=part)
        run(spark, journal.data_dir, tmp_path / "lake", capsys)
    DeltaTable(tmp_path / "lake" / "event_snapshot").restore(0)
    with pytest.raises(
        LakeConflict, match=r"has taken .*event_snapshot back to offset \d+, while its log says"
    ):
        run(spark, journal.data_dir, tmp_path / "lake", capsys)


def test_each_journal_of_a_lake_has_rows_and_files_of_its_own(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two shards, and another broker, which was the first to write there."""
    lake, layout = tmp_path / "lake", Layout.make(tmp_path / "shards", 2)
    shards, other = [Journal(directory) for directory in layout.directories()], Journal(tmp_path / "other")
    for seed, journal in enumerate((other, *shards)):
        journal.go_on(20 + seed, seed)
    assert run(spark, other.data_dir, lake, capsys).parent == lake / "bootstrap"
    progress, files = run_all(spark, layout.path, lake, capsys)
    assert (progress.lag, len(progress.ends)) == (0, 2)
    other.go_on(10, seed=9)
    files = [run(spark, other.data_dir, lake, capsys), *files]
    for journal, file in zip((other, *shards), files, strict=True):
        snapshot = BootstrapFile(file)
        assert file.parent == lake / "bootstrap" / snapshot.uuid
        assert lines(folded(snapshot, file)) == lines(journal.fold)
    version = DeltaTable(lake / "event_snapshot").version()
    assert run_all(spark, layout.path, lake, capsys)[1] == files[1:]
    assert DeltaTable(lake / "event_snapshot").version() == version  # nothing new, nothing written
    journals = [*open_journals(layout.path), *open_journals(other.data_dir)]
    [status] = job_statuses(Places(Lake(lake), journals, [], time()))
    assert (status.job, status.lag, status.offset) == (
        "compact-events",
        0,
        sum(journal.high_watermark() for journal in journals),
    )


def test_what_is_wrong_is_said_without_spark(journal: Writer, tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        job.check(settings_of("compact-events", tmp_path / "nothing", tmp_path))

    class Cut:
        location, uuid = str(tmp_path), "u"

        def complete_offset(self) -> int:
            return 5

    with pytest.raises(DataLoss, match="events from offset 0 up to 5 are gone"):
        job.starting_offset(Cut(), None)  # type: ignore[arg-type]
