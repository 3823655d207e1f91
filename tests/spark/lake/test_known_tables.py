"""A lake that is moved, removed or replaced under a job is missed, and nothing is made where it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.runner import is_there
from headrace_spark.lake.known_tables import KnownTables
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_files import TableFiles
from headrace_spark.lake.tables import BACKLOG, CLEAN


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with two tables, as another process has left it."""
    for definition in (BACKLOG, CLEAN):
        LakeTable(tmp_path / "lake", definition).create()
    return Lake(tmp_path / "lake")


def moved(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def removed(root: Path) -> None:
    shutil.rmtree(root)


def replaced(root: Path) -> None:
    moved(root)
    for definition in (BACKLOG, CLEAN):
        LakeTable(root, definition).create()
    (root / "_checkpoints").mkdir()


def another_table(root: Path) -> None:
    shutil.rmtree(root / "clean")
    LakeTable(root, CLEAN).create()


def linked_elsewhere(root: Path) -> None:
    moved(root)
    for definition in (BACKLOG, CLEAN):
        LakeTable(root.with_name("other"), definition).create()
    root.symlink_to(root.with_name("other"))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (moved, "is gone"),
        (removed, "is gone"),
        (replaced, "is another table now"),
        (another_table, "is another table now"),
        (linked_elsewhere, "is another table now"),
    ],
)
def test_a_lake_that_is_not_the_one_it_was_is_missed_and_nothing_is_made(
    lake: Lake, harm: Callable[[Path], None], said: str
) -> None:
    table = lake.table_of(CLEAN)
    with lake.holding("clean"):
        table.create()
        assert table.log() is not None
        lake.require_held()
        harm(lake.root)
        before = sorted(lake.root.rglob("*")) if lake.root.exists() else None
        for look in (lake.require_held, table.log, table.create, lambda: lake.owner("clean", table.path)):
            with pytest.raises(LakeConflict, match=rf"/clean {said}: .* with the lake where it is now"):
                look()
        assert (sorted(lake.root.rglob("*")) if lake.root.exists() else None) == before


def test_nothing_that_a_job_writes_beside_its_tables_makes_a_lake_anew(lake: Lake) -> None:
    files, other = (
        TableFiles(lake.root / "backlog", BACKLOG.layout),
        TableFiles(lake.root / "clean", CLEAN.layout),
    )
    rows = BACKLOG.rows("u", messages=pa.array([1]))
    files.add(rows)
    lake.notes.write("replay-x.json", b"{}")
    moved(lake.root)
    assert not is_there(lake.root)
    writes: list[Callable[[], None]] = [
        lambda: other.add(CLEAN.rows("u", late=pa.array([True]))),
        lambda: lake.notes.write("a", b""),
    ]
    for write in writes:
        with pytest.raises(
            LakeConflict, match=r"is gone, where .* to be written: the lake was moved or removed"
        ):
            write()
    lake.marks().touch("clean")
    assert not lake.root.exists()


def test_a_copy_that_was_put_back_is_the_same_table(lake: Lake) -> None:
    """Whether it is older is seen by its transactions."""
    table = lake.table_of(CLEAN)
    table.create()
    shutil.copytree(lake.root, lake.root.with_name("copy"))
    removed(lake.root)
    lake.root.with_name("copy").rename(lake.root)
    lake.tables.require()
    assert table.log() is not None


def test_a_table_that_comes_later_is_no_loss(tmp_path: Path) -> None:
    known = KnownTables()
    assert known.open(tmp_path / "backlog") is None
    known.require()
    LakeTable(tmp_path, BACKLOG).create()
    assert known.open(tmp_path / "backlog") is not None
