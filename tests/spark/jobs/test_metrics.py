"""The job `metrics`: what a real broker did, counted by hand and by the tables; a range is cut off on the way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from deltalake import DeltaTable
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, make_broker, wait_until
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from headrace_spark.base.errors import BadOption, LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.jobs import metrics
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.status import pipeline_status
from headrace_spark.lake.tables import DELIVERIES, METRICS_STATE
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.metrics.usage import MEASURES
from headrace_spark.report.page import write_report
from headrace_spark.source.journal import open_journals
from headrace_spark.source.journal_range import JournalRange
from paho_end import end_loop
from spark.conftest import Shards, Writer, settings_of
from spark.histories import History
from spark.journals import Made

pytestmark = pytest.mark.spark


GROUP = "$share/workers/plant/+/t"


class Client:
    """A device or subscriber: connected when it is there, its subscriptions granted."""

    def __init__(
        self, broker: BrokerProcess, client_id: str, *filters: tuple[str, int], clean: bool = False
    ) -> None:
        self.received: list[str] = []
        self.granted = 0
        self.mqtt = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=clean)
        self.mqtt.on_message = lambda _client, _data, message: self.received.append(message.topic)
        self.mqtt.on_subscribe = self._on_subscribe
        self.mqtt.connect(*broker.address)
        self.mqtt.loop_start()
        wait_until(self.mqtt.is_connected, f"{client_id} connects", 30)
        for topic_filter, qos in filters:
            self.mqtt.subscribe(topic_filter, qos)
        wait_until(lambda: self.granted == len(filters), f"{client_id} is subscribed", 30)

    def _on_subscribe(self, *_: object) -> None:
        self.granted += 1

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> None:
        self.mqtt.publish(topic, payload, qos, retain).wait_for_publish(30)

    def await_messages(self, count: int) -> None:
        wait_until(lambda: len(self.received) >= count, f"{count} messages", 30)

    def leave(self) -> None:
        self.mqtt.disconnect()
        end_loop(self.mqtt)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = make_broker(tmp_path).start()
    yield process
    process.end()


def live(broker: BrokerProcess) -> None:
    """`app` is online, but for a crash of the broker; `away` leaves, and comes back to half of what it has missed."""
    device = Client(broker, "device", clean=True)
    device.publish("plant/9/t", b"kept", retain=True)
    app = Client(broker, "app", ("plant/#", 1), ("plant/1/t", 1), ("exact", 2))
    away = Client(broker, "away", ("plant/+/t", 2))
    away.await_messages(1)
    away.leave()
    worker = Client(broker, "worker", (GROUP, 1), ("exact", 0))
    for n in range(60):
        device.publish(f"plant/{n % 3}/t", b"x" * n, n % 3)
    device.publish("exact", b"e", 2)
    device.publish("nobody", b"n", 1)
    app.await_messages(1 + 60 + 1)
    app.leave()
    worker.await_messages(60 + 1)
    worker.leave()
    device.mqtt.loop_stop()  # it stays connected, and does not come back
    broker.crash()
    again = Client(broker, "away")
    again.await_messages(40)
    again.leave()
    device = Client(broker, "device", clean=True)
    for _ in range(5):
        device.publish("plant/1/t", b"yy")
    device.leave()
    broker.stop()


class Cut(Exception):
    """Stands for a kill -9 between two commits."""


def run(spark: SparkSession, data_dir: Path, lake: Path, scheme: str = "", **changes: Any) -> int:
    settings = settings_of("metrics", data_dir, lake, **changes)
    if scheme:
        settings = replace(settings, lake=LakeUrl(f"{scheme}:{lake}"))
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # another process
    return metrics.run(spark, settings, Event(), lambda _: None).rows


def table(lake: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(lake / name).to_pyarrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("scheme", ["", pytest.param("file", marks=pytest.mark.deep)])
def test_what_a_broker_did(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Into a folder, and into one that the job knows by its URL."""
    live(broker)
    data_dir, lake = tmp_path / "data", tmp_path / "lake"
    add = LakeTable.add_files
    half = JournalReader(data_dir).high_watermark() // 2

    def cut(of: LakeTable, *about: Any) -> None:
        if of.definition is DELIVERIES:
            raise Cut
        add(of, *about)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "add_files", cut)
        with pytest.raises(Cut):
            run(spark, data_dir, lake, scheme, records_per_trigger_max=half)
    # The range that was cut off is done again: what was written of it is not written twice. The next goes on from it.
    assert run(spark, data_dir, lake, scheme) > half
    assert run(spark, data_dir, lake, scheme) == 0

    by_prefix: Counter[str] = Counter()
    payload_bytes = 0
    for part in table(lake, "traffic"):
        by_prefix[part["topic_prefix"]] += part["messages"]
        payload_bytes += part["payload_bytes"]
        assert part["client_id"] == "device"
    # QoS 0 is not journaled: plant/0/t has none.
    assert by_prefix == {"plant/9": 1, "plant/1": 25, "plant/2": 20, "exact": 1, "nobody": 1}
    assert payload_bytes == 4 + sum(n for n in range(60) if n % 3) + 2 + 5 * 2

    last = {row["topic"]: row["payload"] for row in table(lake, "devices")}
    assert last == {
        "plant/9/t": b"kept",
        "plant/1/t": b"yy",
        "plant/2/t": b"x" * 59,
        "exact": b"e",
        "nobody": b"n",
    }

    ends = sorted((row["client_id"], row["end"]) for row in table(lake, "connections"))
    assert [client for client, _ in ends] == ["app", "away", "away", "device", "device", "worker"]
    assert ("app", "closed") in ends
    assert {end for client, end in ends if client == "device"} == {"broker_started", "ended"}
    assert all(
        row["disconnected_timestamp"] >= row["connected_timestamp"] for row in table(lake, "connections")
    )

    acked: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for part in table(lake, "deliveries"):
        assert part["outcome"] == "acked"
        acked[part["client_id"]] += part["messages"]
        unknown[part["client_id"]] += part["messages"] if part["latency_ms"] is None else 0
    # Retained, 40 of plant/+/t, exact. The retained one was published before anybody waited for it.
    assert acked == {"app": 42, "away": 41, GROUP: 40}
    assert unknown == {"app": 1, "away": 1, GROUP: 0}
    used: Counter[str] = Counter()
    for part in table(lake, "usage"):
        assert part["tenant"] == "default"
        used.update({name: part[name] for name in MEASURES})
    assert used.pop("connected_s") > 0
    assert used == {
        "messages_in": 48,
        "bytes_in": payload_bytes,
        "messages_out": 123,
        # What each of the three had of plant/+/t; `kept` went to app and away, `exact` to app.
        "bytes_out": 3 * sum(n for n in range(60) if n % 3) + 2 * len(b"kept") + 1,
        "connections": 6,
        "messages_dropped": 0,
    }
    waiting = {row["client_id"]: row["messages"] for row in table(lake, "backlog")}
    assert waiting == {"app": 5, "away": 5, GROUP: 5}
    end = ConsumerPosition.read(data_dir, "metrics").offset
    assert end == max(part["up_to_offset"] for part in table(lake, "traffic"))
    if not scheme:
        return
    url = UrlLake(spark, LakeUrl(f"{scheme}:{lake}"))
    state, [journal] = url.table_of(METRICS_STATE), open_journals(data_dir)
    shorter = JournalRange(journal, f"metrics-{journal.uuid}-{journal.epoch}", end, end + 10)
    assert metrics.planned(spark, state, shorter) == shorter
    longer = replace(shorter, end=end + 20)  # another driver that finds more
    assert metrics.planned(spark, state, longer) == shorter
    status = {job.job: job for job in pipeline_status([journal], url).jobs}
    assert (status["metrics"].offset, status["metrics"].lag) == (end, 0)
    page = write_report(url.root, tmp_path / "report.html", 1, 60, url.tables)
    assert page.deliveries is not None
    assert page.deliveries.acked == acked.total()
    settings = settings_of("metrics", data_dir, lake)
    settings = replace(settings, lake=url.root, spark=replace(settings.spark, master="yarn"))
    with pytest.raises(BadOption, match=r"pipeline\.master='yarn': local\[N\] is needed"):
        metrics.check(settings)


def test_the_journals_of_shards_are_worked_on_in_turn(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("metrics", shards.data_dir, tmp_path / "lake", records_per_trigger_max=100)
    tables = metrics.Tables(Lake(tmp_path / "lake"))
    for each in tables.all:
        each.create()
    journals = open_journals(shards.data_dir)
    turns = deque(metrics.begun(settings, tables, journal, "metrics:1") for journal in journals)
    found = [metrics.next_range(turns, settings)[1] for _ in range(4)]
    uuids = [writer.uuid for writer in shards.writers]
    assert [one.journal.uuid for one in found if one is not None] == [*uuids, uuids[0]]
    assert {(one.start, one.end) for one in found if one is not None} == {(0, 100)}
    for writer in shards.writers:
        assert ConsumerPosition.read(writer.data_dir, "metrics").owner == "metrics:1"
    idle = turns[0]
    monkeypatch.setattr(idle, "next", lambda *_: None)
    ranges, one = metrics.next_range(turns, settings)
    assert (ranges is idle, one is None) == (False, False)
    for each_turn in turns:
        monkeypatch.setattr(each_turn, "next", lambda *_: None)
    assert metrics.next_range(turns, settings)[1] is None


@pytest.mark.parametrize("name", ["traffic", pytest.param("devices", marks=pytest.mark.deep)])
def test_what_a_restore_took_out_is_missed_until_it_is_back(
    spark: SparkSession, journal: Writer, tmp_path: Path, name: str
) -> None:
    """It keeps the transactions by which the tables say how far they count."""
    records = History(3, 400).made.records
    lake = tmp_path / "lake"
    for part in range(2):
        made = Made()
        made.records = records[part * len(records) // 2 : (part + 1) * len(records) // 2]
        journal.write(made)
        run(spark, journal.data_dir, lake)
        if not part:
            version = DeltaTable(lake / name).version()
    DeltaTable(lake / name).restore(version)
    with pytest.raises(
        LakeConflict, match=rf"RESTORE has taken rows out of table .*/{name}.*TO VERSION AS OF"
    ):
        run(spark, journal.data_dir, lake)
    DeltaTable(lake / name).restore(DeltaTable(lake / name).version() - 1)
    run(spark, journal.data_dir, lake)


def test_columns_of_others_are_kept_where_rows_are_updated_and_null_in_new_ones(
    spark: SparkSession, journal: Writer, tmp_path: Path
) -> None:
    records, lake = History(3, 400).made.records, tmp_path / "lake"
    names = [table.path.name for table in metrics.Tables(Lake(lake)).all]

    def counted(part: int) -> dict[str, Any]:
        made = Made()
        made.records = records[part * len(records) // 2 : (part + 1) * len(records) // 2]
        journal.write(made)
        run(spark, journal.data_dir, lake)
        return {name: DeltaTable(lake / name).to_pyarrow_table() for name in names}

    before = counted(0)
    for name in names:
        spark.sql(f"alter table delta.`{lake}/{name}` add column site string")
    spark.sql(f"update delta.`{lake}/devices` set site = 'Oslo'")
    after = counted(1)
    assert all("site" in table.column_names for table in after.values())
    assert after["traffic"].num_rows > before["traffic"].num_rows
    key = ("tenant", "client_id", "topic")
    known = {tuple(row[name] for name in key) for row in before["devices"].to_pylist()}
    rows = {tuple(row[name] for name in key): row for row in after["devices"].to_pylist()}
    assert {at: row["site"] for at, row in rows.items()} == {
        at: "Oslo" if at in known else None for at in rows
    }
    offsets = {at: row["journal_offset"] for at, row in rows.items()}
    assert any(
        offsets[tuple(row[name] for name in key)] > row["journal_offset"]
        for row in before["devices"].to_pylist()
    )


def test_what_does_not_fit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    settings = settings_of("metrics", tmp_path / "data", tmp_path / "lake")
    with pytest.raises(BadOption, match="consumer"):
        metrics.check(settings_of("metrics", tmp_path / "data", tmp_path / "lake", consumer="../x"))
    process = make_broker(tmp_path).start()
    process.stop()
    metrics.check(settings)
    tables = metrics.Tables(Lake(tmp_path / "lake"))
    tables.backlog.create()
    tables.backlog.folder.rename(tables.state.folder)
    with pytest.raises(LakeConflict, match="another schema"):
        metrics.check(settings)
