"""Columns of others are theirs; one of ours that is dropped, renamed or retyped is named, with what brings it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from headrace_spark.base.errors import LakeConflict
from headrace_spark.jobs.compact_events import SNAPSHOT
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.own_columns import differences, require_own_columns
from headrace_spark.lake.table_log import Folders, NewTable, commit_name
from headrace_spark.lake.tables import TABLES
from headrace_spark.records.schema import ADDED_TO_MESSAGES, MESSAGES

SITE = {"name": "site", "type": "string", "nullable": True, "metadata": {}}
FOREIGN = Schema.from_json(json.dumps({"type": "struct", "fields": [SITE]})).fields


def changed(table: Path, change: Any) -> int:
    """Commit other columns, as ALTER TABLE does; returns the version before."""
    log = DeltaTable(table)
    about = log.metadata()
    columns = change(json.loads(log.schema().to_json())["fields"])
    metadata = {
        "id": str(about.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": list(about.partition_columns),
        "configuration": dict(about.configuration),
        "createdTime": 0,
    }
    lines = [{"commitInfo": {"timestamp": 0, "operation": "ALTER"}}, {"metaData": metadata}]
    version = log.version()
    (table / commit_name(version + 1)).write_text("\n".join(map(json.dumps, lines)))
    return version


def dropped(name: str) -> Any:
    return lambda columns: [column for column in columns if column["name"] != name]


def renamed(name: str, other: str) -> Any:
    return lambda columns: [
        column | {"name": other} if column["name"] == name else column for column in columns
    ]


def retyped(name: str, kind: str) -> Any:
    return lambda columns: [
        column | {"type": kind} if column["name"] == name else column for column in columns
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    Folders().create(lake.messages, NewTable(MESSAGES, ("tenant", "date"), "", {}))
    for definition in TABLES:
        LakeTable(tmp_path, definition).create()
    return lake


def test_columns_of_others_are_theirs(lake: Lake) -> None:
    for name in ("messages", *(table.name for table in TABLES)):
        DeltaTable(lake.root / name).alter.add_columns(list(FOREIGN))
    assert lake.table.state() is not None
    for definition in TABLES:
        assert "site" in LakeTable(lake.root, definition).columns()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dropped("qos"), "no column qos"),
        (renamed("qos", "q"), "no column qos"),
        (retyped("qos", "integer"), "column qos is int, not tinyint"),
    ],
)
def test_a_column_of_ours_is_missed_with_what_brings_it_back(lake: Lake, change: Any, said: str) -> None:
    for table, log in (
        (lake.messages, lake.table.log),
        (lake.root / "clean", LakeTable(lake.root, TABLES[0]).log),
    ):
        DeltaTable(table).alter.add_columns(list(FOREIGN))
        before = changed(table, change)
        assert before == 1
        changed(table, lambda columns: columns)  # whatever else is altered behind it
        with pytest.raises(LakeConflict, match=said) as refused:
            log()
        assert f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1." in str(refused.value)
        DeltaTable(table).restore(before)
        log()


def test_a_table_that_never_had_them_is_to_be_moved_away(tmp_path: Path) -> None:
    other = StructType([field for field in MESSAGES if field.name != "payload"])
    Folders().create(tmp_path / "messages", NewTable(other, ("tenant", "date"), "", {}))
    with pytest.raises(LakeConflict, match=r"no column payload\. Use another lake, or move the table away"):
        Lake(tmp_path).table.log()


def test_columns_that_an_older_headrace_had_not_are_no_difference(tmp_path: Path) -> None:
    old = StructType([field for field in MESSAGES if field.name not in ADDED_TO_MESSAGES])
    Folders().create(tmp_path / "messages", NewTable(old, ("tenant", "date"), "", {}))
    assert Lake(tmp_path).table.log() is not None
    Folders().create(tmp_path / "event_snapshot", NewTable(SNAPSHOT, ("journal_uuid",), "", {}))
    log = Folders().open(tmp_path / "event_snapshot")
    assert log is not None
    require_own_columns(Folders(), tmp_path / "event_snapshot", log, SNAPSHOT)
    assert differences(log, MESSAGES, MESSAGES.names) == []
