"""A commit that was emptied, or taken from another table, is not believed, whatever the checksum beside it says."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.log_check import require_written


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The newest commit of a table of three, with the checksum that Spark puts beside each."""
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="append")
    commit = tmp_path / "_delta_log" / f"{2:020}.json"
    commit.write_text('{"commitInfo":{"txnId":"mine"}}\n' + commit.read_text())
    commit.with_suffix(".crc").write_text(json.dumps({"txnId": "mine", "setTransactions": []}))
    return commit


def test_what_spark_or_others_wrote_is_believed(newest: Path, tmp_path: Path) -> None:
    require_written(tmp_path, 2)
    newest.with_suffix(".crc").unlink()
    require_written(tmp_path, 2)
    newest.unlink()  # as after a checkpoint
    require_written(tmp_path, 2)


@pytest.mark.parametrize("content", ["", '{"commitInfo":{"txnId":"yours"}}\n', '{"protocol":{}}\n'])
def test_what_nobody_wrote_there_is_refused(newest: Path, tmp_path: Path, content: str) -> None:
    newest.write_text(content)
    with pytest.raises(LakeConflict, match=r"00002.json is empty, or was taken from .*Restore the table"):
        require_written(tmp_path, 2)


def test_an_emptied_commit_behind_others_is_seen_as_well(newest: Path, tmp_path: Path) -> None:
    newest.with_name(f"{1:020}.json").write_bytes(b"")
    assert DeltaTable(tmp_path).version() == 2
    with pytest.raises(LakeConflict, match=r"00001.json is empty"):
        require_written(tmp_path, 2)
