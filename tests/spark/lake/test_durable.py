"""What a table's log names is synced, files before the commits that name them, each once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace_spark.lake.durable import SyncedTable, sync_path


class Syncs:
    """What was synced, in order; really, too."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def __call__(self, path: Path) -> None:
        sync_path(path)
        self.paths.append(path)

    def taken(self) -> list[Path]:
        taken, self.paths = self.paths, []
        return taken


def append(table: Path, *sites: str) -> None:
    rows = pa.table({"site": sites, "value": list(range(len(sites)))})
    write_deltalake(table, rows, mode="append", partition_by=["site"])


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "table"


def test_files_come_before_the_commit_that_names_them_and_their_folders_too(table: Path) -> None:
    append(table, "north", "a b")
    syncs = Syncs()
    SyncedTable(table, syncs).sync()
    found = syncs.taken()
    files = set(table.glob("site=*/*.parquet"))
    assert len(files) == 2
    assert set(found[:2]) == files
    assert found[2] == commit(table, 0)
    folders = {table.parent, table, table / "_delta_log", *(file.parent for file in files)}
    assert set(found[3:]) == folders


def test_a_text_with_the_line_breaks_of_other_alphabets_is_one_line_of_the_log(table: Path) -> None:
    append(table, "north\u2028\u2029\x85east")
    syncs = Syncs()
    SyncedTable(table, syncs).sync()
    assert set(table.rglob("*.parquet")) < set(syncs.taken())


def test_only_what_is_new_is_synced_again(table: Path) -> None:
    append(table, "north")
    syncs = Syncs()
    synced = SyncedTable(table, syncs)
    synced.sync()
    syncs.taken()
    synced.sync()
    assert syncs.taken() == []
    append(table, "south")
    synced.sync()
    found = syncs.taken()
    assert [path.parent.name for path in found if path.suffix == ".parquet"] == ["site=south"]
    assert [path for path in found if path.suffix == ".json"] == [commit(table, 1)]


def test_a_checkpoint_of_the_log_is_synced_with_its_commit(table: Path) -> None:
    append(table, "north")
    DeltaTable(table).create_checkpoint()
    syncs = Syncs()
    SyncedTable(table, syncs).sync()
    logged = [path.name for path in syncs.taken() if path.parent.name == "_delta_log"]
    assert logged == [f"{0:020d}.checkpoint.parquet", f"{0:020d}.json"]


def test_a_file_that_a_vacuum_took_is_none_of_the_table(table: Path) -> None:
    append(table, "north")
    append(table, "south")
    taken = next(table.glob("site=north/*.parquet"))
    taken.unlink()
    syncs = Syncs()
    SyncedTable(table, syncs).sync()
    assert {path.parent.name for path in syncs.taken() if path.suffix == ".parquet"} == {"site=south"}


def test_a_long_history_is_not_read_again_at_each_start(table: Path) -> None:
    for _ in range(15):
        append(table, "north")
    syncs = Syncs()
    SyncedTable(table, syncs).sync()
    assert [path for path in syncs.taken() if path.suffix == ".json"] == [
        commit(table, n) for n in range(5, 15)
    ]
