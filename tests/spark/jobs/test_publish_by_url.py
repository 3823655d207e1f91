"""The jobs `publish`, `replay` and `compact-events` on a lake behind a URL: `file:` by the same calls as a bucket."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import time
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from headrace.journal.bootstrap_file import BootstrapFile
from headrace.journal.consumers import ConsumerPosition
from headrace.services.state import lines
from headrace.storage.embedded.bootstrap import folded
from headrace_spark.base.errors import BadOption, LakeConflict, QueryFailed, TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.devices.plans import TablePlans
from headrace_spark.jobs import compact_events, replay
from headrace_spark.lake.job_status import Places, job_statuses
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import lake_of
from headrace_spark.source.journal import journals_of
from spark.conftest import settings_of
from spark.device_clients import subscribe
from spark.jobs import test_publish
from spark.jobs.test_clean import Cut
from spark.jobs.test_compact_events import Journal
from spark.jobs.test_replay import MADE
from spark.lake.test_lake import UUID, append

pytestmark = pytest.mark.spark


class Bench(test_publish.Bench):
    """A lake in a folder that the jobs know by its URL."""

    def settings(self, **changes: Any) -> Any:
        return replace(super().settings(**{"restarts_max": 0} | changes), lake=LakeUrl(f"file:{self.lake}"))


@pytest.fixture
def bench(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "lake", broker)


@pytest.mark.parametrize(
    "step",
    ["add", pytest.param("kept", marks=pytest.mark.deep), pytest.param("done", marks=pytest.mark.deep)],
)
def test_each_row_leaves_once_whatever_was_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Behind the plan, behind what was kept, and behind what has left."""
    topic = f"by-url-{step}"
    subscribe(bench.broker, topic, f"{topic}/#")
    bench.append(0, 40, topic)
    assert bench.run() == 40
    bench.append(40, 20, topic)
    done = getattr(TablePlans, step)

    def cut(plans: TablePlans, batch: int) -> None:
        if step != "done":
            done(plans, batch)
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(TablePlans, step, cut)
        with pytest.raises((Cut, QueryFailed)):
            bench.run()
    bench.forget()
    bench.append(60, 20, topic)  # which a batch that is planned anew would have too
    bench.run()
    assert bench.payloads(topic) == list(range(80))
    assert bench.run() == 0
    bench.append(80, 7, topic)
    [job] = job_statuses(Places(lake_of(bench.spark, bench.settings().lake), [], [], time()))
    assert (job.job, job.lag, job.problem) == (f"publish-{bench.settings().name}", 7, "")


@pytest.mark.deep
def test_new_rows_of_a_lake_that_was_put_back_whole_leave(bench: Bench, tmp_path: Path) -> None:
    test_publish.test_new_rows_of_a_lake_that_was_put_back_whole_leave(bench, tmp_path)


@pytest.mark.deep
def test_an_outbox_that_lost_rows_by_restore(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    test_publish.test_an_outbox_that_lost_rows_by_restore_is_refused_until_they_are_back(bench, monkeypatch)


@pytest.mark.deep
def test_an_outbox_that_was_restored_from_an_older_copy_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.append(0, 10, "older-url")
    bench.run()
    shutil.copytree(bench.lake / "outbox", tmp_path / "older")
    bench.append(10, 10, "older-url")
    bench.run()
    shutil.rmtree(bench.lake / "outbox")
    shutil.copytree(tmp_path / "older", bench.lake / "outbox")
    bench.forget()
    with pytest.raises(
        LakeConflict, match=r"publish-.*\.json and outbox .* do not belong together: .* batch 1"
    ):
        bench.run()
    with pytest.raises(BadOption, match="there is no Delta table in file:"):
        bench.run(table="nothing")


@pytest.mark.deep
def test_a_lake_that_was_moved_to_another_url_sends_nothing_again(bench: Bench, tmp_path: Path) -> None:
    """The broker would take it for new where the last batch left more than a week ago."""
    subscribe(bench.broker, "bucket-moved", "bucket-moved/#")
    bench.append(0, 10, "bucket-moved")
    assert bench.run() == 10
    again = 'headrace_publishes_repeated_total{tenant="default"}'
    before = bench.broker.metrics().get(again, 0)
    bench.lake = bench.lake.rename(tmp_path / "elsewhere")
    bench.run()
    assert bench.broker.metrics().get(again, 0) == before
    bench.append(10, 10, "bucket-moved")
    assert bench.run() == 10
    assert bench.payloads("bucket-moved") == list(range(20))


@pytest.mark.deep
def test_a_lake_that_was_moved_between_a_folder_and_a_url_sends_nothing_again(bench: Bench) -> None:
    bench.append(0, 10, "moved-url")
    of_folder = test_publish.Bench(bench.spark, bench.lake, bench.broker)
    of_folder.run()
    with pytest.raises(LakeConflict, match=r"_plans/publish\.json says that rows have left"):
        bench.run()
    for name in ("outbox", "_checkpoints"):
        shutil.rmtree(bench.lake / name)
    bench.forget()
    bench.run()
    with pytest.raises(LakeConflict, match=r"_checkpoints/publish-publish\.json says that rows have left"):
        of_folder.run()


def test_a_part_of_the_archive_again_into_a_table_and_to_devices(bench: Bench) -> None:
    append(Lake(bench.lake), MADE, 0, 1)
    rows = [row for row in MADE.rows(UUID, 1) if row["qos"] == 1]
    url = f"tcp://127.0.0.1:{bench.broker.port}"
    settings = settings_of(
        "replay", bench.lake, bench.lake, name="url", url=url, offsets_per_slice=150, where="qos = 1"
    )
    settings = replace(settings, lake=LakeUrl(f"file:{bench.lake}"), table="again")
    note = bench.lake / "_checkpoints" / "replay-url.json"
    for _ in range(2):
        replay.check(settings)
        assert replay.run(bench.spark, settings, Event(), lambda _: None).rows == len(rows)
        note.write_text(json.dumps(json.loads(note.read_text()) | {"slices_done": 0}))
        note.with_name(f".{note.name}.crc").unlink()  # as Hadoop keeps of a local file
        bench.forget()
    table = DeltaTable(bench.lake / "again").to_pyarrow_table().sort_by("journal_offset")
    assert table.select(list(rows[0])).to_pylist() == rows


@pytest.mark.parametrize(
    "table", ["messages", "../l/clean", "s3a://b/l//outbox/", "s3a://b/l/x/../repeats", "messages/again"]
)
def test_a_replay_into_a_table_of_the_jobs_is_refused(tmp_path: Path, table: str) -> None:
    settings = settings_of("replay", tmp_path, tmp_path, name="url", url="tcp://127.0.0.1:1883", table=table)
    with pytest.raises(BadOption, match=r"pipeline\.replay\.table="):
        replay.check(replace(settings, lake=LakeUrl("s3a://b/l")))


def test_the_state_of_the_broker_is_kept_with_the_lake(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "data")
    settings = settings_of("compact-events", journal.data_dir, bench.lake)
    settings = replace(settings, lake=LakeUrl(f"file:{bench.lake}"))
    for part in range(3):
        journal.go_on(150, seed=part)
        compact_events.run(bench.spark, settings, Event(), lambda _: None)
        file = Path(capsys.readouterr().out.strip().removeprefix("file:"))
        snapshot = BootstrapFile(file)
        assert lines(folded(snapshot, file)) == lines(journal.fold)
        assert snapshot.checkpoint == ConsumerPosition.read(journal.data_dir, "compact-events").offset
    assert len(list((bench.lake / "bootstrap").glob("*.snapshot"))) == 2
    version = DeltaTable(bench.lake / "event_snapshot").version()
    compact_events.run(bench.spark, settings, Event(), lambda _: None)
    assert DeltaTable(bench.lake / "event_snapshot").version() == version  # nothing new, nothing written
    events = compact_events.events

    def slow(spark: SparkSession, *about: Any) -> Any:
        """Another driver brings the table further while this one counts."""
        with monkeypatch.context() as patched:
            patched.setattr(compact_events, "events", events)
            lake = lake_of(spark, settings.lake)
            rows = spark.read.format("delta").load(str(bench.lake / "event_snapshot"))
            [read] = journals_of(settings)
            compact_events.put_in_place(
                lake, lake.root / "event_snapshot", rows, read, read.high_watermark() + 5
            )
        return events(spark, *about)

    journal.go_on(50, seed=9)
    monkeypatch.setattr(compact_events, "events", slow)
    with pytest.raises(TableMoved, match="another process writes it"):
        compact_events.run(bench.spark, settings, Event(), lambda _: None)
