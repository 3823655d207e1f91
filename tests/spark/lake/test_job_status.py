"""How far behind jobs are, from a lake as jobs leave it: made by hand here, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace_spark.lake.job_status import JobStatus, Places, describe_jobs, job_statuses, left_to_replay
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.messages import archive_id
from headrace_spark.lake.tables import METRICS_STATE, QUARANTINE
from headrace_spark.source.local import LocalJournal
from spark.conftest import Writer
from spark.journals import mixed
from spark.lake.test_lake import append

Statuses = Callable[..., dict[str, JobStatus]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def statuses(journal: Writer, lake: Lake) -> Statuses:
    journal.write(mixed(300))

    def look(*tables: Path) -> dict[str, JobStatus]:
        places = Places(lake, [LocalJournal(journal.data_dir)], tables, time() + 60)
        return {status.job: status for status in job_statuses(places)}

    return look


def checkpoint(folder: Path, table: Path, version: int) -> None:
    """As Spark leaves it after a batch over a Delta table."""
    position = {"reservoirId": str(DeltaTable(table).metadata().id), "index": -1, "isStartingVersion": False}
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "q"}')
    (folder / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(position | {"reservoirVersion": version}))
    (folder / "commits" / "0").write_text("v1\n{}")


def rows(table: Path, count: int) -> None:
    write_deltalake(table, pa.table({"n": list(range(count))}), mode="append")


def transaction(table: DeltaTable, app_id: str, version: int) -> None:
    """A commit without rows that says up to where it has the journal."""
    properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
    write_deltalake(table, table.to_pyarrow_table().slice(0, 0), mode="append", commit_properties=properties)


def test_a_lake_that_no_job_has_touched_says_nothing(statuses: Statuses) -> None:
    assert statuses() == {}


def test_jobs_that_read_the_journal(statuses: Statuses, journal: Writer, lake: Lake) -> None:
    append(lake, mixed(300), 0, 1, uuid=journal.uuid)
    transaction(DeltaTable(lake.messages), archive_id(journal.uuid, journal.epoch), 120)
    state = LakeTable(lake.root, METRICS_STATE)
    state.create()
    transaction(DeltaTable(state.folder), f"metrics-{journal.uuid}-{journal.epoch}", 250)
    write_deltalake(
        lake.root / "event_snapshot",
        pa.table(
            {
                "kind": ["checkpoint", "subscribed"],
                "journal_uuid": [journal.uuid] * 2,
                "journal_offset": [300, 7],
            }
        ),
    )
    found = statuses()
    assert {job: (status.offset, status.lag) for job, status in found.items()} == {
        "archive": (120, 180),
        "metrics": (250, 50),
        "compact-events": (300, 0),
    }
    archive, metrics = found["archive"], found["metrics"]
    assert archive.lag_bytes is not None
    assert metrics.lag_bytes is not None
    assert archive.lag_bytes > metrics.lag_bytes > 0
    assert archive.lag_s is not None
    assert archive.lag_s >= 60
    assert (found["compact-events"].lag_bytes, found["compact-events"].lag_s) == (0, 0.0)


def test_jobs_that_read_a_table(statuses: Statuses, lake: Lake, journal: Writer, tmp_path: Path) -> None:
    total = append(lake, mixed(300), 0, 1, uuid=journal.uuid)
    checkpoint(lake.checkpoints / "clean-messages", lake.messages, 0)
    for count in (5, 7):
        rows(lake.root / "commands", count)
        rows(tmp_path / "elsewhere", count + 1)
    checkpoint(lake.checkpoints / "publish-alarms", lake.root / "commands", 1)
    checkpoint(lake.checkpoints / "publish-far", tmp_path / "elsewhere", 1)
    quarantine = LakeTable(lake.root, QUARANTINE)
    quarantine.create()
    found = statuses(tmp_path / "elsewhere")
    assert {job: status.lag for job, status in found.items()} == {
        "archive": 300 - int(journal.rows()[-1]["journal_offset"]) - 1,
        "clean": total,
        "mend": 0,
        "publish-alarms": 7,
        "publish-far": 8,
    }
    alarms = found["publish-alarms"]
    assert alarms.offset is None
    assert alarms.lag_bytes is not None
    assert alarms.lag_bytes > 100
    assert alarms.lag_s is not None
    assert 59 < alarms.lag_s < 3600
    assert "nor named by the configuration" in statuses()["publish-far"].problem


def test_what_is_broken_is_said_and_hides_nothing_else(
    statuses: Statuses, lake: Lake, journal: Writer
) -> None:
    append(lake, mixed(300), 0, 1, uuid=journal.uuid)
    checkpoint(lake.checkpoints / "clean-messages", lake.messages, 0)
    (lake.checkpoints / "clean-messages" / "offsets" / "0").write_text("v1\n{")
    (lake.checkpoints / "replay-last.json").write_text("{")
    found = statuses()
    assert found["archive"].lag is not None
    assert "cut off" in found["clean"].problem
    assert "not whole" in found["replay-last"].problem
    lines = list(describe_jobs(found.values()))
    assert [line.split()[1] for line in lines] == ["archive", "clean", "replay-last"]


def part(count: int, first: int, last: int) -> dict[str, Any]:
    return {"rows": count, "bytes": 10 * count, "first": first, "last": last}


@pytest.mark.parametrize(
    ("done", "left"), [(0, (150, 1500)), (1, (125, 1250)), (4, (50, 500)), (5, (0, 0)), (9, (0, 0))]
)
def test_what_a_replay_has_left(done: int, left: tuple[int, int]) -> None:
    """Four slices of the first journal, one of the second."""
    assert left_to_replay([part(100, 1000, 1399), part(50, 0, 20)], 100, done) == left


def test_a_line_for_each() -> None:
    told = [JobStatus("archive", 1200, 3400, 5600, 7.4), JobStatus("replay-x", None, 1, 2, None)]
    assert list(describe_jobs(told)) == [
        "job       archive  offset 1,200  lag 3,400  5,600 bytes  7 s",
        "job       replay-x  lag 1  2 bytes",
    ]
