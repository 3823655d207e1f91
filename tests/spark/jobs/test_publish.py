"""The job `publish`: the rows of a table at the devices, once, through kill -9 of everything; wrong use is said first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, wait_until
from headrace_spark.base.errors import BadOption, LakeConflict, QueryFailed
from headrace_spark.base.progress import Progress
from headrace_spark.devices.outbox import Outbox
from headrace_spark.jobs import publish as job
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.status import describe, pipeline_status
from headrace_spark.lake.tables import DEAD_LETTERS
from headrace_spark.source.local import LocalJournal
from spark import quick_java
from spark.conftest import Writer, settings_of
from spark.device_clients import received, subscribe
from spark.journals import mixed
from spark.stops import stop_all, stop_while_planning

pytestmark = pytest.mark.spark
WAIT_S = 400


class Cut(Exception):
    """Stands for kill -9."""


class Bench:
    """One lake with a table `commands`, and one broker."""

    def __init__(self, spark: SparkSession, lake: Path, broker: BrokerProcess) -> None:
        self.spark = spark
        self.lake = lake
        self.broker = broker

    def append(self, first: int, count: int, topic: str) -> None:
        columns = (f"concat('{topic}/', id % 3) as topic", "cast(id as string) as payload", "2 as qos")
        rows = self.spark.range(first, first + count, 1, 2).selectExpr(*columns)
        rows.write.format("delta").mode("append").save(str(self.lake / "commands"))

    def settings(self, **changes: Any) -> Any:
        url = f"tcp://127.0.0.1:{self.broker.port}"
        return settings_of("publish", self.lake, self.lake, **{"table": "commands", "url": url} | changes)

    def run(self, **changes: Any) -> int:
        settings = self.settings(**changes)
        job.check(settings)
        return job.run(self.spark, settings, Event(), lambda _: None).rows

    def forget(self) -> None:
        """Let Spark know nothing of the tables, as another process."""
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def payloads(self, client: str) -> list[int]:
        return sorted(int(packet.payload) for packet in received(self.broker, client))

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[str]]:
        """`headrace pipeline run publish` as a process of its own."""
        command = [sys.executable, "-m", "headrace", "pipeline", "run", "publish", "--lake", str(self.lake)]
        command += [
            "--set",
            f'pipeline.publish.url="tcp://127.0.0.1:{self.broker.port}"',
            "--master",
            "local[2]",
        ]
        command += ["--set", 'pipeline.publish.table="commands"', "--follow", "--trigger", "0"]
        process = subprocess.Popen(
            command, env=os.environ | quick_java.ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def bench(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "lake", broker)


def test_rows_are_published_once_and_new_ones_follow(bench: Bench) -> None:
    subscribe(bench.broker, "device-job", "job/#")
    bench.append(0, 200, "job")
    assert bench.run() == 200
    bench.append(200, 100, "job")
    assert bench.run() == 100
    assert bench.run() == 0
    assert sorted(int(packet.payload) for packet in received(bench.broker, "device-job")) == list(range(300))


@pytest.mark.parametrize(
    "since",
    [pytest.param("the rows that it had at first", marks=pytest.mark.deep), "commits that came since"],
)
def test_rows_leave_in_the_order_of_commits_files_and_rows(bench: Bench, since: str) -> None:
    """Whatever the sizes of the files: Spark packs them by size, the largest first."""
    client = f"device-{len(since)}"
    subscribe(bench.broker, client, f"{client}/#")

    def append(*texts: str) -> None:
        rows = pa.table({"topic": [f"{client}/engine"] * len(texts), "payload": list(texts)})
        write_deltalake(bench.lake / "commands", rows, mode="append")

    append("first")
    if since.startswith("commits"):
        bench.run()
    sent = ["first"]
    for commit, size in enumerate((10, 3000, 200, 40_000, 1)):
        texts = [f"{commit}.{row}." + row.to_bytes(2).hex() * size for row in range(4)]
        append(*texts)
        sent += texts
    two = bench.spark.range(0, 2, 1, 2).selectExpr(
        f"'{client}/engine' as topic", "repeat(cast(id as string), cast(1 + id * 500 as int)) as payload"
    )
    two.write.format("delta").mode("append").save(str(bench.lake / "commands"))
    sent += ["0", "1" * 501]
    bench.run()
    assert [packet.payload.decode() for packet in received(bench.broker, client)] == sent


def test_rows_of_a_merge_are_refused_and_not_passed_over_without_a_word(
    bench: Bench, journal: Writer
) -> None:
    """Alone, where no batch comes of it, and with appended rows behind it, whose batch would pass it."""
    subscribe(bench.broker, "device-merge", "merge/#")
    bench.append(0, 5, "merge")
    bench.run()
    bench.spark.sql(
        f"merge into delta.`{bench.lake}/commands` old using (select 'merge/1' topic, '99' payload, 2 qos) new "
        "on old.payload = new.payload when not matched then insert *"
    )
    bench.spark.sql(f"update delta.`{bench.lake}/commands` set payload = '98' where payload = '99'")
    bench.append(5, 5, "merge")
    for _ in range(2):
        with pytest.raises((LakeConflict, QueryFailed), match=r"version 2 of table .* is no append"):
            bench.run(restarts_max=0)
    journal.write(mixed(1))
    said = describe(pipeline_status([LocalJournal(journal.data_dir)], Lake(bench.lake)))
    assert "without version 2, which is no append" in said
    assert bench.run(skip_changes=True) == 6  # a MERGE that only inserts is an append
    assert bench.payloads("device-merge") == [*range(10), 99]
    assert bench.run() == 0


def test_a_stop_while_the_first_batch_was_planned_harms_nothing(bench: Bench) -> None:
    subscribe(bench.broker, "device-planned", "planned/#")
    bench.append(0, 5, "planned")
    stop_while_planning(bench.lake / "_checkpoints" / "publish-publish")
    assert bench.run() == 5
    assert len(received(bench.broker, "device-planned")) == 5


def test_files_that_the_outbox_no_longer_needs_go(bench: Bench) -> None:
    subscribe(bench.broker, "device-vacuum", "vacuum/#")
    bench.append(0, 5, "vacuum")
    bench.run()
    next((bench.lake / "outbox").rglob("*.parquet")).with_name("part-orphan.parquet").touch()
    os.utime(bench.lake / "_checkpoints" / "upkeep-outbox", (0, 0))
    bench.append(5, 5, "vacuum")
    bench.run(upkeep=replace(bench.settings().upkeep, vacuum_retention_s=0))
    on_disk = {
        str(path) for path in (bench.lake / "outbox").rglob("*.parquet") if "_delta_log" not in path.parts
    }
    assert on_disk == set(DeltaTable(bench.lake / "outbox").file_uris())
    assert len(received(bench.broker, "device-vacuum")) == 10


def test_a_checkpoint_that_is_older_than_the_outbox_is_moved_forward(bench: Bench) -> None:
    """Its next batch would have other rows under a number that the outbox and the broker have seen; so if it is lost."""
    subscribe(bench.broker, "device-older", "older/#")
    checkpoint = bench.lake / "_checkpoints" / "publish-publish"
    for first in (0, 20):
        bench.append(first, 20, "older")
        bench.run()
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "1").unlink()
        (checkpoint / folder / ".1.crc").unlink()
    bench.append(40, 20, "older")
    bench.run()
    shutil.rmtree(checkpoint)
    bench.append(60, 20, "older")
    bench.run()
    sent = [int(packet.payload) for packet in received(bench.broker, "device-older")]
    assert sorted(sent) == list(range(80))


def test_an_outbox_or_a_table_that_is_older_is_refused_with_both_named(bench: Bench, tmp_path: Path) -> None:
    for first in (0, 20):
        bench.append(first, 20, "refused")
        bench.run()
        if not first:
            for table in ("outbox", "commands"):
                shutil.copytree(bench.lake / table, tmp_path / "older" / table)
    for table in ("outbox", "commands"):
        shutil.move(bench.lake / table, tmp_path / "kept")
        shutil.copytree(tmp_path / "older" / table, bench.lake / table)
        with pytest.raises(LakeConflict, match=r"publish-publish and outbox .*restored from an older copy"):
            bench.run()
        shutil.rmtree(bench.lake / table)
        shutil.move(tmp_path / "kept", bench.lake / table)
    assert bench.run() == 0
    for table in ("outbox", "commands"):
        newest = max((bench.lake / table / "_delta_log").glob("*.json"))
        content = newest.read_bytes()
        newest.write_bytes(b"")
        with pytest.raises(
            LakeConflict, match=rf"{table}/_delta_log/{newest.name} is empty.*Restore the table"
        ):
            bench.run()
        newest.write_bytes(content)


def test_new_rows_of_a_lake_that_was_put_back_whole_leave(bench: Bench, tmp_path: Path) -> None:
    """Table, outbox and checkpoint know nothing of the batches since, whose numbers the broker has seen."""
    subscribe(bench.broker, "device-whole", "whole/#")
    for first in (0, 10):
        if first:
            shutil.copytree(bench.lake, tmp_path / "older")
        bench.append(first, 10, "whole")
        bench.run()
    shutil.rmtree(bench.lake)
    shutil.copytree(tmp_path / "older", bench.lake)
    bench.forget()
    bench.append(20, 10, "whole")
    bench.run()
    assert bench.payloads("device-whole") == list(range(30))


def test_an_outbox_that_lost_rows_by_restore_is_refused_until_they_are_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were kept and had not left: the transaction that says so outlives RESTORE."""
    subscribe(bench.broker, "device-restore", "restore/#")
    bench.append(0, 10, "restore")
    bench.run()
    bench.append(10, 10, "restore")

    def cut(*_: Any) -> int:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "publish", cut)
        with pytest.raises((Cut, QueryFailed)):
            bench.run(restarts_max=0)
    outbox = f"{bench.lake}/outbox"
    kept = DeltaTable(outbox).version()
    bench.spark.sql(f"RESTORE TABLE delta.`{outbox}` TO VERSION AS OF {kept - 1}")
    bench.forget()
    with pytest.raises(LakeConflict, match=rf"RESTORE has taken rows out .* VERSION AS OF {kept}\. "):
        bench.run()
    bench.spark.sql(f"RESTORE TABLE delta.`{outbox}` TO VERSION AS OF {kept}")
    bench.run()
    assert bench.payloads("device-restore") == list(range(20))


@pytest.mark.deep
def test_a_restore_while_the_job_runs_is_noticed_by_the_next_batch(bench: Bench) -> None:
    """Of the outbox, whose next transaction would hide it; and of the table, whose rows have left before."""
    subscribe(bench.broker, "device-meanwhile", "meanwhile/#")
    for name, said in (
        ("outbox", "RESTORE has taken rows out"),
        ("commands", "RESTORE has brought rows back"),
    ):
        bench.append(0, 10, "meanwhile")
        bench.run()
        bench.append(10, 10, "meanwhile")
        once = Event()

        def done(progress: Progress, name: str = name, once: Event = once) -> None:
            if progress.rows != 10 or once.is_set():
                return
            once.set()
            table = DeltaTable(bench.lake / name)
            table.restore(table.version() - 1)
            if name == "outbox":
                bench.append(20, 10, "meanwhile")
            else:
                table.update_incremental()
                table.restore(table.version() - 1)

        settings = bench.settings(follow=True, trigger_s=0.1, restarts_max=0)
        with pytest.raises((LakeConflict, QueryFailed), match=said):
            job.run(bench.spark, settings, Event(), done)
        assert bench.payloads("device-meanwhile") == list(range(20))
        shutil.rmtree(bench.lake)
        bench.forget()


@pytest.mark.slow
def test_kill_9_of_the_job_and_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", {"session.backlog_messages_max": 65_535}).start()
    try:
        bench = Bench(spark, tmp_path / "lake", broker)
        subscribe(broker, "device", "kill/#")

        def published(at_least: float) -> Any:
            return lambda: _received(broker) >= at_least

        bench.append(0, 6000, "kill")
        with bench.process() as process:
            wait_until(published(1000), "the first thousand", WAIT_S)
            process.send_signal(signal.SIGKILL)
        bench.append(6000, 6000, "kill")
        with bench.process() as process:
            before = _received(broker)
            wait_until(published(before + 1000), "another thousand", WAIT_S)
            broker.crash()
            wait_until(lambda: len(_committed(bench.lake)) >= 2, "both batches are done", WAIT_S)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, said
        assert sorted(int(packet.payload) for packet in received(broker, "device")) == list(range(12_000))
    finally:
        broker.end()


@pytest.mark.slow
@pytest.mark.deep
def test_a_stop_of_all_its_processes_in_the_middle_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", {"session.backlog_messages_max": 65_535}).start()
    try:
        bench = Bench(spark, tmp_path / "lake", broker)
        subscribe(broker, "device", "stop/#")
        bench.append(0, 30_000, "stop")
        with bench.process() as process:
            wait_until(lambda: _received(broker) >= 500, "the first of them", 2 * WAIT_S)
            stop_all(process)
        bench.append(30_000, 10, "stop")
        bench.run()
        assert bench.payloads("device") == list(range(30_010))
    finally:
        broker.end()


def _received(broker: BrokerProcess) -> float:
    return broker.metrics().get('headrace_publishes_received_total{tenant="default"}', 0.0)


def _committed(lake: Path) -> list[str]:
    return [path.name for path in (lake / "_checkpoints" / "publish-publish" / "commits").glob("[0-9]*")]


def test_rows_that_cannot_be_sent_are_put_aside_and_the_others_go_on(
    bench: Bench, journal: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    subscribe(bench.broker, "device-aside", "aside/#")
    topic = (
        "case id % 10 when 3 then '$SYS/x' when 5 then 'aside/#' when 6 then null else 'aside/t' end as topic"
    )
    qos = "cast(case id % 10 when 7 then 300 else 2 end as int) as qos"
    rows = bench.spark.range(0, 40, 1, 2).selectExpr(topic, "cast(id as string) as payload", qos)
    rows.write.format("delta").save(str(bench.lake / "commands"))
    bench.run()
    assert "16 rows were put aside in" in capsys.readouterr().err
    for name in ("0", ".0.crc"):
        (bench.lake / "_checkpoints/publish-publish/commits" / name).unlink()  # so the batch is done again
    bench.append(100, 5, "aside")
    bench.run()
    sent = [int(packet.payload) for packet in received(bench.broker, "device-aside")]
    assert sorted(sent) == [n for n in range(40) if n % 10 not in (3, 5, 6, 7)] + list(range(100, 105))
    aside = LakeTable(bench.lake, DEAD_LETTERS).read(bench.spark).collect()
    assert {int(row.payload): row.reason for row in aside} == {
        n: {3: "Not authorized (0x87)", 7: "exactly once needs QoS 1 or 2"}.get(
            n % 10, "that is no topic name"
        )
        for n in range(40)
        if n % 10 in (3, 5, 6, 7)
    }
    journal.write(mixed(1))
    said = describe(pipeline_status([LocalJournal(journal.data_dir)], Lake(bench.lake)))
    assert "dead_letters  rows 16: 8 'that is no topic name', 4 'Not authorized (0x87)'" in said


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"table": ""}, "the table whose rows are published is needed"),
        ({"table": "nothing"}, "there is no Delta table in"),
        ({"url": "http://b"}, "tcp://host:port"),
        ({"password_file": "/nowhere"}, "No such file"),
        ({"name": "../x"}, "letters, digits"),
    ],
)
def test_wrong_use_is_said_without_spark(bench: Bench, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadOption, match=problem) as caught:
        job.check(bench.settings(**changes))
    assert caught.value.exit_code == 2
