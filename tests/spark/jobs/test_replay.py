"""The job `replay`: the chosen part of the archive, once, in its order, kept apart; resumed under its name."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from e2e.wire import USER_PROPERTY
from headrace.mqtt.topics import matches
from headrace_spark.base.errors import BadOption, BrokerUnreachable, LakeConflict, QueryFailed
from headrace_spark.jobs import replay as job
from headrace_spark.lake.lake import Lake
from spark.conftest import settings_of
from spark.device_clients import received, subscribe
from spark.journals import mixed
from spark.lake.test_lake import UUID, append
from spark.odd_values import ENDS_OF_LINES

pytestmark = pytest.mark.spark
MADE = mixed(400)


class Bench:
    """A lake with an archive of one journal, and a broker."""

    def __init__(self, spark: SparkSession, lake: Path, broker: BrokerProcess) -> None:
        self.spark = spark
        self.lake = lake
        self.url = f"tcp://127.0.0.1:{broker.port}"
        append(Lake(lake), MADE, 0, 1)

    def run(self, **changes: Any) -> int:
        own = {"url": self.url, "offsets_per_slice": 150, "patience_s": 30.0}
        settings = settings_of("replay", self.lake, self.lake, **own | changes)
        job.check(settings)
        return job.run(self.spark, settings, Event(), lambda _: None).rows

    def forget_slices(self, name: str) -> None:
        """What kill -9 leaves behind between the last message and the note of it."""
        path = self.lake / "_checkpoints" / f"replay-{name}.json"
        noted = json.loads(path.read_text())
        assert noted["slices_done"] > 0
        path.write_text(json.dumps(noted | {"slices_done": 0}))


@pytest.fixture
def bench(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "lake", broker)


def expected(topic_filter: str) -> dict[str, list[bytes]]:
    """Payloads by topic, in journal order."""
    found = defaultdict(list)
    for row in MADE.rows(UUID, 1):
        if matches(topic_filter, row["topic"]):
            found[row["topic"]].append(row["payload"])
    return found


def test_to_devices_once_and_kept_apart(bench: Bench, broker: BrokerProcess) -> None:
    subscribe(broker, "device-replay", "again/#")
    rows = len(MADE.rows(UUID, 1))
    assert bench.run(name="all", prefix="again/") == rows
    bench.forget_slices("all")
    assert bench.run(name="all", prefix="again/") == rows
    found = defaultdict(list)
    for packet in received(broker, "device-replay"):
        assert ("replay", "all") in packet.properties[USER_PROPERTY]
        assert "replay-of" in dict(packet.properties[USER_PROPERTY])
        found[packet.topic.removeprefix("again/")].append(packet.payload)
    everything = {row["topic"] for row in MADE.rows(UUID, 1)}
    assert found == {topic: expected(topic)[topic] for topic in everything}


def test_one_client_at_a_rate(bench: Bench, broker: BrokerProcess) -> None:
    topic = MADE.rows(UUID, 1)[0]["topic"]
    subscribe(broker, "meter-7", "replay/to/meter-7/#")
    count = bench.run(name="one", client="meter-7", topic=topic, rate=5000.0)
    found = [packet.payload for packet in received(broker, "meter-7")]
    assert (len(found), found) == (count, expected(topic)[topic])


def test_into_a_table_once(bench: Bench) -> None:
    rows = [row for row in MADE.rows(UUID, 1) if row["qos"] == 1]
    for _ in range(2):
        assert bench.run(name="table", table="again", where="qos = 1") == len(rows)
        bench.forget_slices("table")
    table = DeltaTable(bench.lake / "again").to_pyarrow_table().sort_by("journal_offset")
    assert table.select(list(rows[0])).to_pylist() == rows


def test_columns_of_others_stay_where_they_are(bench: Bench) -> None:
    """A table of an earlier replay has not those of a later `messages`."""
    rows = len(MADE.rows(UUID, 1))
    assert bench.run(name="before", table="columns") == rows
    bench.spark.sql(f"alter table delta.`{bench.lake}/messages` add column site string")
    assert bench.run(name="after", table="columns", where="site is null") == rows
    table = DeltaTable(bench.lake / "columns").to_pyarrow_table()
    assert (table.num_rows, "site" in table.column_names) == (2 * rows, False)


def test_one_replay_of_a_name_at_a_time(bench: Bench) -> None:
    with (
        Lake(bench.lake).holding("replay-twice"),
        pytest.raises(LakeConflict, match="another process is running job replay-twice"),
    ):
        bench.run(name="twice", table="twice")


def test_slices_are_what_they_were_at_the_first_start(bench: Bench) -> None:
    """Whatever would be counted today: numbers of slices are what is remembered as done."""
    whole = bench.run(name="noted", table="noted", offsets_per_slice=100)
    notes = bench.lake / "_checkpoints" / "replay-noted.json"
    noted = json.loads(notes.read_text())
    part = noted["parts"][0]
    assert (part["uuid"], part["rows"]) == (UUID, whole)
    notes.write_text(json.dumps(noted | {"parts": [part | {"last": part["first"]}]}))
    assert bench.run(name="noted", table="noted", offsets_per_slice=100) == 1


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        pytest.param(
            "_checkpoints/replay-harmed.json",
            None,
            "replay-harmed.json is empty, cut off or something else",
            marks=pytest.mark.deep,
        ),
        ("_checkpoints/replay-harmed.json", "not/notes", "replay-harmed.json is empty, cut off or something"),
        ("harmed", "nothing", "says that table harmed has the slices up to 2, and it has not"),
        ("messages", "other", "was noted for version 0 of another table than .*messages"),
    ],
)
def test_what_was_put_in_the_place_of_notes_or_tables_is_refused(
    bench: Bench, path: str, source: str | None, problem: str
) -> None:
    bench.run(name="harmed", table="harmed")
    append(Lake(bench.lake / "others"), MADE, 0, 1)
    (bench.lake / "other").symlink_to(bench.lake / "others" / "messages")
    (bench.lake / "not").mkdir()
    (bench.lake / "not" / "notes").write_text('{"id": "x"}')
    (bench.lake / path).rename(bench.lake / "kept")
    if source is None:
        (bench.lake / path).write_bytes(b"")
    elif (bench.lake / source).exists():
        (bench.lake / path).symlink_to(bench.lake / source)
    with pytest.raises(LakeConflict, match=f"{problem}.*[Rr]emove the file"):
        bench.run(name="harmed", table="harmed")


def test_a_version_that_has_taken_the_place_of_the_noted_one_is_refused(tmp_path: Path) -> None:
    """The archive was put back from an older copy and has gone on since: its log counts on."""
    lake = Lake(tmp_path / "lake")
    append(lake, MADE, 0, 1)
    shutil.copytree(lake.messages, tmp_path / "older")
    append(lake, mixed(20), 400, 1, batch=1)
    settings = settings_of("replay", tmp_path, lake.root, name="noted", table="again")
    job.Notes.of(settings, lake).save()
    assert job.Notes.of(settings, lake).version == 1
    shutil.rmtree(lake.messages)
    (tmp_path / "older").rename(lake.messages)
    for batch in (1, 2):
        append(lake, mixed(10), 390 + 10 * batch, 1, batch=batch)
    with pytest.raises(LakeConflict, match=r"was noted for version 1 of another table .*remove the file"):
        job.Notes.of(settings, lake)


def test_a_dry_run_counts(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    stamps = sorted(row["publish_timestamp"] for row in MADE.rows(UUID, 1))
    middle = stamps[len(stamps) // 2]
    bench.run(name="dry", dry_run=True, since=middle.isoformat(), url="tcp://127.0.0.1:1")
    said = json.loads(capsys.readouterr().out)
    wanted = [row for row in MADE.rows(UUID, 1) if row["publish_timestamp"] >= middle]
    assert said["rows"] == len(wanted)
    assert said["journals"][0]["bytes"] == sum(len(row["payload"]) for row in wanted)
    assert not (bench.lake / "_checkpoints").exists()


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+", "a/#", "a/+", "+/b", "a", "+/b/#", "a.c", "a/+/c", "$x/+", "\\E/+", "+/\u2028", "+/#"],
)
def test_a_topic_filter_means_what_it_means_in_mqtt(spark: SparkSession, topic_filter: str) -> None:
    topics = ["a", "a/b", "a/b/c", "/b", "b", "abc", "a.c", "$x", "$x/y", "\\E/a", "a/", "x/b/c"]
    topics += [f"{topic}{end}" for topic in ("a", "a/b", "a/", "x/b/") for end in ENDS_OF_LINES]
    frame = spark.createDataFrame([(topic,) for topic in topics], ["topic"])
    for condition in job.matching(topic_filter):
        frame = frame.where(condition)
    assert {row.topic for row in frame.collect()} == {t for t in topics if matches(topic_filter, t)}


def test_a_version_or_a_table_that_does_not_fit_is_not_called_a_wrong_condition(bench: Bench) -> None:
    bench.spark.range(3).write.format("delta").save(str(bench.lake / "numbers"))
    with pytest.raises(QueryFailed, match="metadata mismatch"):
        bench.run(name="late", table="numbers")
    messages = bench.lake / "messages"
    append(Lake(bench.lake), mixed(20, 9), 400, 1, batch=1)
    DeltaTable(messages).create_checkpoint()
    (messages / "_delta_log" / "00000000000000000000.json").unlink()  # as its age does
    jvm: Any = bench.spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(LakeConflict, match=r"for version 0 of .*messages, which cannot be .*remove the file"):
        bench.run(name="late", table="numbers")


def test_a_name_stands_for_one_replay(bench: Bench) -> None:
    bench.run(name="fixed", table="fixed", topic="a/#")
    with pytest.raises(BadOption, match="stands for another replay"):
        bench.run(name="fixed", table="fixed", topic="b/#")


def test_what_was_replayed_is_left_out(bench: Bench) -> None:
    settings = settings_of("replay", bench.lake, bench.lake, name="x")
    rows = job.chosen(bench.spark.read.format("delta").load(str(bench.lake / "messages")), settings)
    twice = job.marked(rows, settings)
    assert twice.where(job.is_replayed()).count() == rows.count()


def test_a_property_of_the_publisher_s_own_leaves_nothing_out(bench: Bench) -> None:
    """Whatever he calls it: a replay sets two, and the second one names a message of the archive."""
    pairs = [
        [("replay", "no")],
        [("replay-of", "client:a/b/c")],
        [("replay", "1"), ("replay-of", "yesterday")],
        [("Replay", "1"), ("replay-of", "journal:u:1:2")],
        [],
        [("replay", "all"), ("replay-of", "journal:u:1:2")],
        [("replay", "mine"), ("replay", "all"), ("replay-of", "client:a/b/c"), ("producer-id", "p")],
    ]
    rows = bench.spark.createDataFrame(
        [(n, each) for n, each in enumerate(pairs)],
        "n int, user_properties array<struct<name:string,value:string>>",
    )
    assert [row.n for row in rows.where(~job.is_replayed()).orderBy("n").collect()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"since": "yesterday"}, "pipeline.replay.since='yesterday': a time like"),
        ({"until": "2026-11-21T22:00:00"}, "pipeline.replay.until"),
        ({"topic": "a/#/b"}, "not a topic filter"),
        ({"prefix": "a/#/"}, "not the beginning of a topic"),
        ({"name": "a/b"}, "letters, digits"),
        ({"table": "messages"}, "the jobs of headrace write that table"),
        ({"table": "x/../clean"}, "the jobs of headrace write that table"),
        ({"table": "messages/again"}, "the jobs of headrace write that table"),
        (
            {"where": "publish_timestamp > now() - interval 1 day", "table": "t"},
            "now() is another one at every start",
        ),
        ({"where": "rand() < 0.5", "table": "t"}, "rand() is another one at every start"),
        ({"where": "no such column = 1", "table": "t"}, "pipeline.replay.where="),
    ],
)
def test_wrong_use_is_said(bench: Bench, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadOption, match=re.escape(problem)):
        bench.run(**changes)


def test_without_an_archive_or_a_broker(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(LakeConflict, match="run the job archive first"):
        job.check(settings_of("replay", tmp_path, tmp_path / "nothing"))
    with pytest.raises(QueryFailed, match="no acknowledgement from broker"):
        bench.run(name="away", url="tcp://127.0.0.1:1", patience_s=0.1)
    assert BrokerUnreachable("x").exit_code == 1
