"""`metrics` over several shards: what was published in one and delivered in another is counted once on each side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace.core.records.message import Message, copy_of, decode_batch
from headrace.core.records.record import Record
from headrace.data.layout import Layout
from headrace.journal.consumers import ConsumerPosition
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import metrics
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.status import describe, pipeline_status
from headrace_spark.lake.tables import DELIVERIES
from headrace_spark.source.journal import open_journals
from spark.conftest import Writer, settings_of
from spark.journals import Made
from unit.core.state.test_state import History

pytestmark = pytest.mark.spark
SUBSCRIBED: list[tuple[object, ...]] = [
    ("connect", "a", 5, 3),
    ("subscribe", "a", "#", 2),
    ("connect", "b", 4, 3),
    ("subscribe", "b", "a/+", 1),
    ("lose", "b"),
]


def history() -> list[Record]:
    """One journal: two sessions, one of which leaves, and messages of which most are acknowledged."""
    made = History()
    for step in SUBSCRIBED:
        made.run(step)
    for number in range(40):
        made.run(("publish", ("a/b", "a/c", "x")[number % 3], 1 + number % 2, False, True))
        made.run(("ack", "a", number % 4))
    made.harness.sync()
    offset, records = 0, list[Record]()
    for body in made.harness.journal.bodies:
        found = decode_batch(body, offset)
        records += found
        offset += len(found)
    return records


def write(data_dir: Path, records: Iterable[Record]) -> None:
    made = Made()
    for record in records:
        made.add(record)
    Writer(data_dir).write(made)


def run(spark: SparkSession, data_dir: Path, lake: Path, **changes: Any) -> Progress:
    settings = settings_of("metrics", data_dir, lake, **changes)
    return metrics.run(spark, settings, Event(), lambda _: None)


def counted(lake: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """What the tables sum up to, whichever journal and range a part is of."""
    found = {}
    for table, names in (
        ("traffic", ("client_id", "topic_prefix")),
        ("deliveries", ("client_id", "outcome")),
        ("backlog", ("client_id",)),
    ):
        sums = found[table] = Counter[tuple[str, ...]]()
        for row in DeltaTable(lake / table).to_pyarrow_table().to_pylist():
            sums[tuple(str(row[name]) for name in names)] += row["messages"]
    return found


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The same history, with its publishers at home in shard 1 and its subscribers in shard 0."""
    records = history()
    write(tmp_path / "one", records)
    layout = Layout.make(tmp_path / "several", 2)
    published = [record for record in records if isinstance(record, Message)]
    places = {id(message): place for place, message in enumerate(published)}
    copied = [
        copy_of(record, 1, places[id(record)]) if isinstance(record, Message) else record
        for record in records
    ]
    write(layout.directory(0), copied)
    write(layout.directory(1), published)
    return layout


def test_two_shards_give_the_figures_of_one_journal(
    spark: SparkSession, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spark, tmp_path / "one", tmp_path / "lake-1")
    expected = counted(tmp_path / "lake-1")
    assert expected["deliveries"]["a", "acked"] > 0
    assert expected["backlog"]["b",] > 0
    add, left = LakeTable.add_files, 3

    def cut(of: LakeTable, *about: Any) -> None:
        nonlocal left
        left -= of.definition is DELIVERIES
        if left <= 0:
            raise KeyboardInterrupt
        add(of, *about)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "add_files", cut)
        with pytest.raises(KeyboardInterrupt):
            run(spark, layout.path, tmp_path / "lake-2", records_per_trigger_max=30)
    progress = run(spark, layout.path, tmp_path / "lake-2", records_per_trigger_max=30)
    assert counted(tmp_path / "lake-2") == expected
    journals = open_journals(layout.path)
    ends = {journal.uuid: journal.high_watermark() for journal in journals}
    assert (progress.ends, progress.lag) == (ends, 0)
    for journal, directory in zip(journals, layout.directories(), strict=True):
        assert ConsumerPosition.read(directory, "metrics").offset == ends[journal.uuid]
    assert run(spark, layout.path, tmp_path / "lake-2").rows == 0
    said = describe(pipeline_status(journals, Lake(tmp_path / "lake-2")))
    assert f"job       metrics  offset {sum(ends.values()):,}  lag 0" in said
    assert all(
        f"consumer  metrics  journal {uuid}  offset {end:,}  lag 0" in said for uuid, end in ends.items()
    )
