"""The job `clean`: nothing vanishes, nothing comes twice, whatever is killed; what does not fit is refused unharmed."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from headrace_spark.base.errors import BadOption, EngineMissing, LakeConflict, QueryFailed
from headrace_spark.base.progress import Progress
from headrace_spark.clean.topic_schemas import BadTopicSchema
from headrace_spark.jobs import clean
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from spark.conftest import settings_of
from spark.journals import Made, message, user_properties
from spark.stops import stop_while_planning

pytestmark = pytest.mark.spark

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
STATISTICS = {"delta.dataSkippingStatsColumns": "topic,journal_uuid,journal_epoch,journal_offset"}
SCHEMAS = """
[[schema]]
name = "reading"
topics = ["plant/+/t"]
fields = { device = "string", value = "double" }
"""


def made(numbers: range, ids: range | None = None) -> Made:
    """Readings; every third is broken, every fifth has no schema; with `ids`, each has an id of its publisher."""
    out = Made()
    for n in numbers:
        properties = user_properties(("message-id", f"m-{ids[n - numbers[0]]}")) if ids is not None else b""
        payload = b"broken" if n % 3 == 0 else json.dumps({"device": f"d{n}", "value": n}).encode()
        topic = "nowhere" if n % 5 == 0 else f"plant/{n % 7}/t"
        out.add(message(n, topic=topic, payload=payload, version=5, properties=properties))
    return out


class Bench:
    """A table `messages`, written as the archive would write it but without Spark, and what is cleaned of it."""

    def __init__(self, spark: SparkSession, lake: Path) -> None:
        self.spark = spark
        self.lake = lake
        self.file = lake.parent / "schemas.toml"
        self.file.write_text(SCHEMAS)
        self.written = 0

    def add(self, records: Made) -> None:
        schema = arrow_schema(MESSAGES)
        batches = decode(records.batches([], 0, self.written), UUID, 0, 1 << 40, schema)
        rows: Any = pa.Table.from_batches(batches, schema)
        write_deltalake(
            self.lake / "messages",
            rows,
            mode="append",
            partition_by=["tenant", "date"],
            configuration=STATISTICS,
        )
        self.written += len(records.records)

    def settings(self, **changes: Any) -> clean.Settings:
        settings: clean.Settings = settings_of(
            "clean",
            self.lake,
            self.lake,
            **{"topic_schemas": str(self.file), "restarts_max": 0} | changes,
        )
        return settings

    def clean(self, **changes: Any) -> int:
        return clean.run(self.spark, self.settings(**changes), Event(), lambda _: None).rows

    def offsets(self, table: str) -> list[int]:
        column = DeltaTable(self.lake / table).to_pyarrow_table(columns=["journal_offset"])
        return sorted(column["journal_offset"].to_pylist())


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places, at no moment without either: a job looks at its tables all the time."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, exchanged = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if libc.renameat2(at_cwd, bytes(one), at_cwd, bytes(other), exchanged):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "lake")


def test_rows_in_are_clean_and_quarantine_and_repeats(bench: Bench) -> None:
    bench.add(made(range(60)))
    assert bench.clean() == 60
    bench.add(made(range(60, 90), range(30)))
    bench.add(made(range(90, 120), range(15, 45)))
    assert bench.clean() == 60
    # 60 to 89 have the ids 0 to 29, 90 to 119 the ids 15 to 44: half of these came before.
    good = [n for n in range(120) if n % 3 and n % 5 and not 90 <= n < 105]
    assert bench.offsets("clean") == good
    assert bench.offsets("repeats") == list(range(90, 105))
    assert bench.offsets("quarantine") == [n for n in range(120) if n not in good and not 90 <= n < 105]
    reasons = DeltaTable(bench.lake / "quarantine").to_pyarrow_table()["reason"].to_pylist()
    assert Counter(reasons).keys() == {"not_json", "no_schema"}
    rows = DeltaTable(bench.lake / "clean").to_pyarrow_table().sort_by("journal_offset").to_pylist()
    assert [row["reading"] for row in rows[:2]] == [
        {"device": "d1", "value": 1.0},
        {"device": "d2", "value": 2.0},
    ]
    assert bench.clean() == 0


@pytest.mark.deep
def test_a_stop_while_the_first_batch_was_planned_harms_nothing(bench: Bench) -> None:
    bench.add(made(range(30)))
    stop_while_planning(bench.lake / "_checkpoints" / "clean-messages")
    assert bench.clean() == 30
    everything(bench, 30)


def test_the_lag_is_what_is_still_to_clean(bench: Bench) -> None:
    for first in range(0, 60, 10):
        bench.add(made(range(first, first + 10)))
    stop, lags = Event(), []

    def stop_at_the_first_batch(progress: Progress) -> None:
        lags.append(progress.lag)
        if progress.rows:
            stop.set()

    one_file = bench.settings(bytes_per_trigger_max=1, follow=True, trigger_s=0)
    clean.run(bench.spark, one_file, stop, stop_at_the_first_batch)
    assert max(lags) >= 10
    assert clean.run(bench.spark, bench.settings(), Event(), lambda _: None).lag == 0


class Cut(Exception):
    """Stands for a kill -9 between two commits."""


def test_a_batch_that_was_cut_off_anywhere_comes_to_the_same_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(made(range(30), range(30)))
    bench.clean()
    bench.add(made(range(30, 60), range(20, 50)))
    append = LakeTable.append
    left = [0]  # appends before the next cut

    def cut(table: LakeTable, rows: DataFrame, app_id: str, version: int, note: str = "") -> None:
        if left[0] == 0:
            raise Cut(table.definition.name)
        left[0] -= 1
        append(table, rows, app_id, version, note)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "append", cut)
        for left[0] in (0, 1, 1):  # at clean, at repeats, at quarantine
            with pytest.raises(QueryFailed):
                bench.clean()
            bench.file.write_text(SCHEMAS + "# changed\n")
            with pytest.raises(
                LakeConflict, match="a batch is unfinished that was begun with other topic schemas"
            ):
                bench.clean()
            bench.file.write_text(SCHEMAS)
    bench.clean()
    # 30 to 39 have the ids 20 to 29, which came before.
    good = [n for n in range(60) if n % 3 and n % 5 and not 30 <= n < 40]
    assert bench.offsets("clean") == good
    assert bench.offsets("repeats") == list(range(30, 40))
    assert bench.offsets("quarantine") == [n for n in range(60) if n not in good and not 30 <= n < 40]


def test_schemas_may_be_added_and_not_changed(bench: Bench) -> None:
    bench.add(made(range(10)))
    bench.clean()
    bench.file.write_text(
        SCHEMAS + '[[schema]]\nname = "other"\ntopics = ["nowhere"]\nfields = { a = "long" }\n'
    )
    records = Made()
    records.add(message(10, topic="nowhere", payload=b'{"a":7}'))
    bench.add(records)
    bench.clean()
    rows = DeltaTable(bench.lake / "clean").to_pyarrow_table().sort_by("journal_offset").to_pylist()
    assert (rows[-1]["other"], rows[-1]["reading"], rows[0]["other"]) == ({"a": 7}, None, None)
    bench.file.write_text(SCHEMAS.replace("double", "string"))
    with pytest.raises(LakeConflict, match="another name"):
        bench.clean()
    assert len(bench.offsets("clean")) == len(rows)


def test_fields_may_be_added_to_a_schema(bench: Bench) -> None:
    bench.add(made(range(10)))
    bench.clean()
    before = DeltaTable(bench.lake / "clean").to_pyarrow_table().sort_by("journal_offset").to_pylist()
    bench.file.write_text(SCHEMAS.replace('value = "double"', 'extra = "string", value = "double"'))
    bench.add(made(range(10, 20)))
    bench.clean()
    rows = DeltaTable(bench.lake / "clean").to_pyarrow_table().sort_by("journal_offset").to_pylist()
    assert [row["journal_offset"] for row in rows[: len(before)]] == [row["journal_offset"] for row in before]
    assert {**before[0]["reading"], "extra": None} == rows[0]["reading"]
    bench.file.write_text(SCHEMAS)
    with pytest.raises(LakeConflict, match="fields may be added"):
        bench.clean()


def test_what_does_not_fit_together_is_refused(bench: Bench) -> None:
    with pytest.raises(LakeConflict, match="run the job archive"):
        clean.check(bench.settings())
    with pytest.raises(BadOption, match=r"pipeline\.clean\.topic_schemas"):
        clean.check(bench.settings(topic_schemas=""))
    with pytest.raises(BadTopicSchema, match="cannot read"):
        clean.check(bench.settings(topic_schemas="nothing.toml"))
    bench.add(made(range(10)))
    bench.clean()
    checkpoint = bench.lake / "_checkpoints" / "clean-messages"
    metadata = (checkpoint / "metadata").read_text()
    (checkpoint / "metadata").write_text('{"id": "another query"}')
    with pytest.raises(LakeConflict, match="the table was replaced, or restored from an older copy"):
        clean.check(bench.settings())
    (checkpoint / "metadata").write_text(metadata)
    shutil.move(bench.lake / "clean", bench.lake / "elsewhere")
    with pytest.raises(LakeConflict, match="is gone"):
        clean.check(bench.settings())
    shutil.move(bench.lake / "quarantine", bench.lake / "clean")
    with pytest.raises(LakeConflict, match="another schema"):
        clean.check(bench.settings())


@pytest.mark.deep
def test_columns_of_others_stop_nothing(bench: Bench) -> None:
    bench.add(made(range(30)))
    assert bench.clean() == 30
    for table in ("messages", "clean", "quarantine", "repeats"):
        bench.spark.sql(f"alter table delta.`{bench.lake}/{table}` add column site string")
    schema = arrow_schema(MESSAGES)
    rows = decode(made(range(30, 60)).batches([], 0, 30), UUID, 0, 1 << 40, schema)
    frame = bench.spark.createDataFrame(pa.Table.from_batches(rows, schema))
    frame.write.format("delta").mode("append").save(str(bench.lake / "messages"))
    assert bench.clean() == 30
    everything(bench, 60)
    assert DeltaTable(bench.lake / "clean").to_pyarrow_table()["site"].null_count > 0


def everything(bench: Bench, count: int) -> None:
    """Every row is in one of the tables, once."""
    offsets = [offset for table in ("clean", "quarantine", "repeats") for offset in bench.offsets(table)]
    assert sorted(offsets) == list(range(count))


@pytest.mark.deep
def test_a_checkpoint_that_is_older_than_the_tables_loses_and_repeats_nothing(bench: Bench) -> None:
    """Rolled back by two batches, or lost: the batches to come have other rows under the same numbers."""
    bench.add(made(range(30), range(30)))
    for first in (30, 60):
        bench.clean()
        bench.add(made(range(first, first + 30), range(first - 10, first + 20)))
    bench.clean()
    checkpoint = bench.lake / "_checkpoints" / "clean-messages"
    for folder in ("offsets", "commits"):
        for name in sorted(path.name for path in (checkpoint / folder).glob("[0-9]*"))[-2:]:
            (checkpoint / folder / name).unlink()
            (checkpoint / folder / f".{name}.crc").unlink()
    before = {table: bench.offsets(table) for table in ("clean", "quarantine", "repeats")}
    bench.add(made(range(90, 120), range(80, 110)))
    assert bench.clean() == 30
    everything(bench, 120)
    for table, offsets in before.items():
        assert bench.offsets(table)[: len(offsets)] == offsets
    shutil.rmtree(checkpoint)
    assert bench.clean() == 0
    everything(bench, 120)


def test_rows_that_a_restore_brings_back_are_not_cleaned_again(bench: Bench) -> None:
    """As the archive says what to do about rows that one has taken out: that adds their files anew. They may also come
    with the rows themselves in one batch."""
    for first in (0, 30, 60):
        bench.add(made(range(first, first + 30)))
        bench.clean()
    messages = DeltaTable(bench.lake / "messages")
    messages.restore(0)
    messages.update_incremental()
    messages.restore(2)
    bench.clean()
    everything(bench, 90)
    bench.add(made(range(90, 120)))
    messages.update_incremental()
    messages.restore(4)
    messages.update_incremental()
    messages.restore(5)
    assert messages.to_pyarrow_table().num_rows == 120
    bench.clean()
    everything(bench, 120)


@pytest.mark.deep
def test_an_older_checkpoint_of_another_query_repeats_nothing(bench: Bench, tmp_path: Path) -> None:
    """The checkpoint was lost, the job went on without it, and then it was put back."""
    checkpoint = bench.lake / "_checkpoints" / "clean-messages"
    bench.add(made(range(30)))
    bench.clean()
    checkpoint.rename(tmp_path / "first")
    for first in (30, 60):
        bench.add(made(range(first, first + 30)))
        bench.clean()
    checkpoint.rename(tmp_path / "second")
    shutil.copytree(tmp_path / "first", checkpoint)
    bench.add(made(range(90, 120)))
    bench.clean()
    everything(bench, 120)
    for name, end in (("second", 150), ("first", 180)):
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / name, checkpoint)
        bench.add(made(range(end - 30, end)))
        bench.clean()
        everything(bench, end)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("restored", "RESTORE has taken rows out of table .*/clean"),
        pytest.param(
            "put back", "table .*/clean does not hold that.*Remove the checkpoint", marks=pytest.mark.deep
        ),
        pytest.param(
            "source put back", "table .*/messages was replaced.*Remove the checkpoint", marks=pytest.mark.deep
        ),
    ],
)
def test_what_is_done_to_tables_while_the_job_runs_is_noticed_by_the_next_batch(
    bench: Bench, tmp_path: Path, harm: str, said: str
) -> None:
    """Its commit, or what it reads, would hide it."""
    bench.add(made(range(30)))
    bench.clean()
    shutil.copytree(bench.lake, tmp_path / "older")
    bench.add(made(range(30, 60)))
    once = Event()

    def done(progress: Progress) -> None:
        if progress.rows != 30 or once.is_set():
            return
        once.set()
        if harm == "restored":
            DeltaTable(bench.lake / "clean").restore(DeltaTable(bench.lake / "clean").version() - 1)
            bench.add(made(range(60, 90)))
            return
        name = "messages" if harm == "source put back" else "clean"
        older = Bench(bench.spark, tmp_path / "older")
        for first in (30, 60, 70) if name == "messages" else ():
            older.written = first
            older.add(made(range(first, first + 10)))
        exchange(older.lake / name, bench.lake / name)
        if name == "clean":
            bench.written = 60
            bench.add(made(range(60, 70)))

    with pytest.raises((LakeConflict, QueryFailed), match=said):
        clean.run(bench.spark, bench.settings(follow=True, trigger_s=0.1), Event(), done)


def test_older_copies_in_the_place_of_tables_are_refused(bench: Bench, tmp_path: Path) -> None:
    bench.add(made(range(30)))
    bench.clean()
    for table in ("clean", "quarantine", "messages"):
        shutil.copytree(bench.lake / table, tmp_path / "older" / table)
    bench.add(made(range(30, 60)))
    bench.clean()
    bench.add(made(range(60, 90)))
    bench.clean()
    for table in ("quarantine", "messages", "clean"):
        shutil.move(bench.lake / table, tmp_path / "kept")
        shutil.copytree(tmp_path / "older" / table, bench.lake / table)
        if table == "messages":
            written, bench.written = bench.written, 30
            bench.add(made(range(30, 32)))
            bench.add(made(range(32, 60)))
            bench.written = written
        with pytest.raises(
            LakeConflict, match=f"/{table}.*restored from an older copy.*Remove the checkpoint"
        ):
            bench.clean()
        shutil.rmtree(bench.lake / table)
        shutil.move(tmp_path / "kept", bench.lake / table)
    assert bench.clean() == 0
    shutil.rmtree(bench.lake / "clean")
    shutil.copytree(tmp_path / "older" / "clean", bench.lake / "clean")
    shutil.rmtree(bench.lake / "_checkpoints" / "clean-messages")
    bench.clean()
    everything(bench, 90)


def test_files_that_schemas_name_are_kept_with_an_unfinished_batch(bench: Bench, tmp_path: Path) -> None:
    bench.lake.mkdir()
    notes = Lake(bench.lake).notes
    record = {"type": "record", "name": "R", "fields": [{"name": "device", "type": "string"}]}
    bench.file.write_text(SCHEMAS + 'avro = "reading.avsc"\n')
    named = bench.file.with_name("reading.avsc")
    named.write_text(json.dumps(record))
    clean.Pinned(notes, False).keep(bench.file)
    named.write_text(json.dumps(record | {"doc": "changed"}))
    clean.Pinned(notes, False).require(bench.file)
    pinned = clean.Pinned(notes, True)
    with pytest.raises(LakeConflict, match=r"other topic schemas than .*reading\.avsc"):
        pinned.require(bench.file)
    named.write_text(json.dumps(record))
    pinned.require(bench.file)


def test_workers_that_cannot_decode_a_format_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "MODULES", ("msgspec", "nowhere"))
    bench.add(made(range(4)))
    assert bench.clean() == 4  # JSON needs neither
    bench.file.write_text(SCHEMAS + '[[schema]]\nname = "edge"\ntopics = ["edge/#"]\nsparkplug = true\n')
    with pytest.raises(EngineMissing, match="Spark workers lack nowhere: install them"):
        bench.clean()
