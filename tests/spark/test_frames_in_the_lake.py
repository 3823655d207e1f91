"""Frames of devices and MQTT side by side through the whole pipeline, in the lake of a headrace before `protocol`."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, free_port, headrace
from e2e.device import Device
from e2e.raw import RawClient
from headrace_spark.jobs import archive, clean, compact_events, metrics, publish
from headrace_spark.lake.lake import Lake
from headrace_spark.report.page import write_report
from spark.conftest import settings_of

pytestmark = pytest.mark.spark

BEFORE = Path(__file__).parents[1] / "vectors" / "lake" / "before_frames.tar.gz"
OLD_FRAMES, OLD_MQTT = 230, 10
LOCKS = "locks/door-9"
USER_PROPERTY = 0x26


class Pipeline:
    """A broker with the data directory of before, and the jobs on its lake."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        with tarfile.open(BEFORE) as packed:
            packed.extractall(folder, filter="data")
        self.spark = spark
        self.lake = folder / "lake"
        self.schemas = folder / "schemas.toml"
        self.frame_port = free_port()
        self.broker = BrokerProcess(folder, extra=["--listen", f"frame://127.0.0.1:{self.frame_port}"])

    def run(self, name: str, job: Any, **changes: Any) -> Any:
        settings = settings_of(name, self.broker.data_dir, self.lake, **changes)
        return job.run(self.spark, settings, Event(), lambda _: None)

    def run_all(self) -> None:
        self.run("archive", archive)
        self.run("clean", clean, topic_schemas=str(self.schemas))
        self.run("metrics", metrics)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.lake / table).to_pyarrow_table().to_pylist()
        return found


@pytest.fixture(scope="module")
def pipeline(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    found = Pipeline(spark, tmp_path_factory.mktemp("frames"))
    found.broker.start()
    yield found
    found.broker.end()


@pytest.fixture(scope="module")
def ids(pipeline: Pipeline) -> dict[bytes, bytes]:
    """Message id -> payload, of what devices published now; what came meanwhile over MQTT is in the pipeline too."""
    answers: dict[bytes, bytes] = {}
    with Device(pipeline.frame_port, b"door-9") as device, Device(pipeline.frame_port, b"\x07", 1) as old:
        for seq in range(20):
            payload = json.dumps({"number": seq}).encode()
            answers[device.publish(seq, LOCKS, payload)] = payload
        assert device.publish(19, LOCKS, payload) in answers, "sent again, stored once"
        answers[device.publish(20, LOCKS, b"no JSON")] = b"no JSON"
        answers[old.publish(1, "lock/open", b"5")] = b"5"
    with RawClient(pipeline.broker.address, "meter", 5) as client:
        client.connect()
        for number in range(6):
            properties = {USER_PROPERTY: [("message-id", str(number // 2))]}
            client.deliver(LOCKS, b'{"number": 7}', 1, properties=properties)
        client.disconnect()
    pipeline.run_all()
    return answers


def test_what_came_as_frames_is_in_messages_with_its_sn_and_protocol(
    pipeline: Pipeline, ids: dict[bytes, bytes]
) -> None:
    rows = pipeline.rows("messages")
    assert Counter(row["protocol"] for row in rows) == {None: OLD_FRAMES + OLD_MQTT, "frame": 22, "mqtt": 6}
    frames = {md5(row["message_id"].encode()).digest(): row for row in rows if row["protocol"] == "frame"}
    assert {found: row["payload"] for found, row in frames.items()} == ids
    assert Counter(row["client_id"] for row in frames.values()) == {"door-9": 21, "7": 1}


def test_the_id_in_16_bytes_joins_in_spark(pipeline: Pipeline, ids: dict[bytes, bytes]) -> None:
    """As a service does with its own table of ids that it has processed."""
    processed = pipeline.spark.createDataFrame([(bytearray(found),) for found in ids], "id binary")
    messages = pipeline.spark.read.format("delta").load(str(Lake(pipeline.lake).messages))
    joined = messages.join(processed, messages.message_id.isNotNull() & _same("message_id", "id"))
    assert joined.count() == len(ids)


def _same(text: str, found: str) -> Any:
    from pyspark.sql import functions as F

    return F.unhex(F.md5(F.col(text))) == F.col(found)


def test_clean_decodes_frames_by_topic_schema_and_finds_repeats_by_the_id(
    pipeline: Pipeline, ids: dict[bytes, bytes]
) -> None:
    rows = [row for row in pipeline.rows("clean") if row["topic"] == LOCKS]
    assert sorted(row["lock"]["number"] for row in rows if row["client_id"] == "door-9") == list(range(20))
    assert [row["lock"]["number"] for row in rows if row["client_id"] == "meter"] == [7] * 3
    [broken] = [row for row in pipeline.rows("quarantine") if row["topic"] == LOCKS]
    assert (broken["client_id"], broken["reason"], broken["payload"]) == ("door-9", "not_json", b"no JSON")
    assert len([row for row in pipeline.rows("repeats") if row["client_id"] == "meter"]) == 3
    numbers = [row["number"] for row in pipeline.rows("clean") if row["topic"] == "lock/open"]
    assert 5 in numbers


def test_metrics_and_the_report_count_them(
    pipeline: Pipeline, ids: dict[bytes, bytes], tmp_path: Path
) -> None:
    counted: Counter[str | None] = Counter()
    for part in pipeline.rows("traffic"):
        counted[part["protocol"]] += part["messages"]
    assert counted == {None: OLD_FRAMES + OLD_MQTT, "frame": 22, "mqtt": 6}
    last = {(row["client_id"], row["topic"]): row["payload"] for row in pipeline.rows("devices")}
    assert last["door-9", LOCKS] == b"no JSON"
    figures = write_report(pipeline.lake, tmp_path / "report.html", 36_500, 60)
    assert figures.traffic is not None
    assert figures.traffic.messages == OLD_FRAMES + OLD_MQTT + 28
    assert figures.traffic.protocols == [("?", OLD_FRAMES + OLD_MQTT), ("frame", 22), ("mqtt", 6)]
    assert figures.traffic.devices == 2
    assert "devices of frames" in (tmp_path / "report.html").read_text()


def test_jobs_go_on_behind_what_they_did(pipeline: Pipeline, ids: dict[bytes, bytes]) -> None:
    before = {name: len(pipeline.rows(name)) for name in ("messages", "clean", "quarantine", "repeats")}
    with Device(pipeline.frame_port, b"door-9") as device:
        device.publish(99, LOCKS, b'{"number": 99}')
    pipeline.run_all()
    after = {name: len(pipeline.rows(name)) for name in before}
    assert {name: after[name] - before[name] for name in before} == {
        **dict.fromkeys(("messages", "clean"), 1),
        **dict.fromkeys(("quarantine", "repeats"), 0),
    }


def test_commands_from_spark_reach_a_device_that_joins_its_own_topic(pipeline: Pipeline) -> None:
    commands = pipeline.lake / "commands"
    with Device(pipeline.frame_port, b"door-9") as device:
        assert device.join("commands/door-9", "door-9") == 0
        device.start_pull("commands/door-9", "door-9", 10, 60_000)
        rows = pipeline.spark.range(3).selectExpr(
            "'commands/door-9' as topic", "cast(id as string) as payload"
        )
        rows.coalesce(1).write.format("delta").mode("append").save(str(commands))
        url = f"tcp://127.0.0.1:{pipeline.broker.port}"
        assert pipeline.run("publish", publish, table="commands", url=url).rows == 3
        got = device.pulled()
        while len(got) < 3:
            got += device.pull("commands/door-9", "door-9", 10, 60_000)
        assert sorted(one.payload for one in got) == [b"0", b"1", b"2"]
        assert device.ack("commands/door-9", "door-9", *(one.message_id for one in got)) == 0


def test_a_fresh_broker_has_the_queues_and_clusters_of_before(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They were made before the checkpoint of a compact-events that did not look at them."""
    pipeline.run("compact-events", compact_events)
    snapshot = capsys.readouterr().out.split()[-1]
    dump = headrace("session", "dump", "--data-dir", str(pipeline.broker.data_dir))
    queues = [line for line in dump.stdout.splitlines() if "queue" in line]
    assert '"queue": "default/lock/open"' in "".join(queues)
    port = free_port()
    fresh = BrokerProcess(tmp_path, extra=["--listen", f"frame://127.0.0.1:{port}", "--bootstrap", snapshot])
    fresh.start()
    try:
        assert "topic queues begin empty" in fresh.stderr
        found = headrace("session", "dump", "--data-dir", str(fresh.data_dir))
        assert [line for line in found.stdout.splitlines() if "queue" in line] == queues
        with Device(port) as device:
            device.publish(1, "lock/open", b"1")
            assert device.join("lock/open", "store") == 0
            assert [one.payload for one in device.pull("lock/open", "store", 10)] == [b"1"]
    finally:
        fresh.end()
