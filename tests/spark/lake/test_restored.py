"""What Delta's RESTORE takes out of a table is missed until it is back, or a job has written since."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from headrace_spark.lake.lake import Lake
from headrace_spark.lake.restored import BATCH, WRITTEN, Restores, lost_by_restore
from headrace_spark.lake.table_log import Folders
from spark.journals import mixed
from spark.lake.test_lake import append


def test_rows_that_a_restore_took_out_are_missed_until_it_is_taken_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.table.lost_by_restore() is None
    for batch in range(2):
        append(lake, mixed(20), 20 * batch, 0, batch)
    assert lake.table.lost_by_restore() is None
    DeltaTable(lake.messages).restore(0)
    assert lake.table.lost_by_restore() == 1
    DeltaTable(lake.messages).restore(1)
    assert lake.table.lost_by_restore() is None
    DeltaTable(lake.messages).optimize.compact()
    assert lake.table.lost_by_restore() is None


def test_only_what_lies_behind_the_last_commit_of_a_job_is_looked_at(tmp_path: Path) -> None:
    lake, tables = Lake(tmp_path), Folders()
    assert lost_by_restore(tables, lake.messages, WRITTEN) is None
    for batch in range(2):
        append(lake, mixed(20), 20 * batch, 0, batch)
    DeltaTable(lake.messages).restore(0)
    DeltaTable(lake.messages).optimize.compact()
    assert lost_by_restore(tables, lake.messages, WRITTEN) == 1
    append(lake, mixed(5), 40, 0, 2)
    assert lost_by_restore(tables, lake.messages, WRITTEN) is None
    assert lost_by_restore(tables, lake.messages, {BATCH}) == 1, "a WRITE is somebody else's there"


def test_while_a_job_writes_each_restore_is_missed_whatever_lies_behind_it(tmp_path: Path) -> None:
    lake, tables = Lake(tmp_path), Folders()
    restores = Restores(tables, lake.messages, WRITTEN)
    assert restores.lost() is None, "there is no table yet"
    for batch in range(2):
        append(lake, mixed(20), 20 * batch, 0, batch)
        assert restores.lost() is None
    DeltaTable(lake.messages).restore(0)
    DeltaTable(lake.messages).restore(1)
    append(lake, mixed(20), 40, 0, 2)
    assert restores.lost() is None, "it was taken back"
    DeltaTable(lake.messages).restore(1)
    append(lake, mixed(20), 60, 0, 3)
    assert restores.lost() == 4
    assert restores.lost() == 4
    assert Restores(tables, lake.messages, WRITTEN).lost() is None, (
        "the commit behind it hides it from a start"
    )


def test_of_a_table_whose_rows_are_replaced_their_number_says_nothing(tmp_path: Path) -> None:
    lake, tables = Lake(tmp_path), Folders()
    for batch in range(2):
        append(lake, mixed(20), 20 * batch, 0, batch)
    DeltaTable(lake.messages).delete("journal_offset < 20")
    append(lake, mixed(20), 40, 0, 2)
    rows = DeltaTable(lake.messages).to_pyarrow_table().num_rows
    DeltaTable(lake.messages).restore(1)
    assert DeltaTable(lake.messages).to_pyarrow_table().num_rows == rows
    assert lost_by_restore(tables, lake.messages, WRITTEN) is None
    assert lost_by_restore(tables, lake.messages, WRITTEN, is_replaced=True) == 3
    assert Restores(tables, lake.messages, WRITTEN, is_replaced=True).lost() == 3
    DeltaTable(lake.messages).restore(3)
    assert lost_by_restore(tables, lake.messages, WRITTEN, is_replaced=True) is None
