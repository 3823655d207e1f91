"""A data directory of shards is there as a whole or not at all, and nothing of somebody else goes with what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.data.building import built, is_interrupted
from headrace.data.layout import Layout
from headrace.journal.copying import Likeness

MAKING = "made.tmp"
LIKENESS = Likeness(0o640, 0o750)


def make(target: Path) -> None:
    with built(target, MAKING, LIKENESS, target) as making:
        Layout.make(making, 2)


def fail(target: Path) -> None:
    with built(target, MAKING, LIKENESS, target) as making:
        Layout.make(making, 2)
        raise ZeroDivisionError


def test_what_was_made_is_moved_up(tmp_path: Path) -> None:
    make(tmp_path / "new")
    assert Layout.open(tmp_path / "new").shards == 2
    assert not (tmp_path / "new" / MAKING).exists()
    assert (tmp_path / "new" / "shard-1").stat().st_mode & 0o777 == 0o750


def test_what_fails_leaves_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    make(tmp_path)
    assert Layout.open(tmp_path).shards == 2


def test_what_an_interrupted_run_left_goes_and_nothing_else(tmp_path: Path) -> None:
    for name in (MAKING, "shard-0", "shard-notes"):
        (tmp_path / name).mkdir()
    assert is_interrupted(tmp_path, MAKING)
    with pytest.raises(FileExistsError, match=r"not empty \(shard-notes\)"):
        make(tmp_path)
    assert (tmp_path / "shard-0").is_dir()
    (tmp_path / "shard-notes").rmdir()
    make(tmp_path)
    assert not is_interrupted(tmp_path, MAKING)
