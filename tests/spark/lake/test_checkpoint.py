"""What Spark, a power cut or a hand left of a checkpoint is said before Spark meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.checkpoint import Checkpoint


def made(folder: Path, planned: int, done: int) -> Checkpoint:
    """Batches 0, 1, 2, ..., each of ten offsets."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "query-1"}))
    for batch in range(planned):
        offset = json.dumps({"uuid": "u", "epoch": 0, "offset": 10 * (batch + 1)})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
    for batch in range(done):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return Checkpoint(folder)


def test_it_tells_its_query_and_its_batches(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 11, 11)
    for name in (".10.crc", "11.tmp"):
        (tmp_path / "commits" / name).touch()
    assert (checkpoint.query_id, checkpoint.last_planned, checkpoint.last_batch) == ("query-1", 10, 10)
    assert not checkpoint.unfinished
    assert checkpoint.passed() == {"uuid": "u", "epoch": 0, "offset": 110}
    (tmp_path / "commits" / "10").unlink()
    assert Checkpoint(tmp_path).unfinished
    assert checkpoint.passed() == {"uuid": "u", "epoch": 0, "offset": 100}


@pytest.mark.parametrize("planned", [0, 1])
def test_what_has_not_finished_a_batch_begins_anew(tmp_path: Path, planned: int) -> None:
    checkpoint = made(tmp_path, planned, 0)
    checkpoint.require_whole("Remove it")
    assert checkpoint.passed() is None
    nothing = Checkpoint(tmp_path / "none")
    assert (nothing.query_id, nothing.last_batch, nothing.passed()) == (None, None, None)


@pytest.mark.parametrize("planned", [0, 1])
def test_half_a_file_goes_where_nothing_was_begun(tmp_path: Path, planned: int) -> None:
    """Spark begins no first batch beside it. Whoever only looks, while another process may write it, leaves it there."""
    checkpoint = made(tmp_path, planned, 0)
    for folder in ("offsets", "commits", "state/0/0"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / ".0.5f172168.tmp").write_text("v1")
    checkpoint.require_whole("Remove it")
    assert len(list(tmp_path.rglob("*.tmp"))) == 3
    checkpoint.make_ready()
    left = sorted(path.parent.name for path in tmp_path.rglob("*.tmp"))
    assert left == (["0", "commits", "offsets"] if planned else [])
    assert checkpoint.query_id == "query-1"


def test_an_id_that_was_not_written_whole_goes_where_nothing_was_begun(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.make_ready()
    assert checkpoint.query_id is None


def test_what_spark_is_set_to_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, 1, 1)
    planned = tmp_path / "offsets" / "0"
    planned.write_text(planned.read_text().replace("{}", '{"conf":{"a":"b\u2028c"}}'))
    assert checkpoint.settings_of(0) == '{"conf":{"a":"b\u2028c"}}'
    assert checkpoint.end(0)["offset"] == 10


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("hello")
    with pytest.raises(LakeConflict, match="not a Spark checkpoint"):
        _ = Checkpoint(tmp_path).query_id


@pytest.mark.parametrize("file", ["metadata", "offsets/2", "offsets/1", "commits/2"])
@pytest.mark.parametrize("content", [None, "", "v", "v1", "v1\n{}", "v2\n{}\n{}"])
def test_what_is_cut_off_is_named_with_what_to_do(tmp_path: Path, file: str, content: str | None) -> None:
    """All but two are refused: the newest batch may never have been marked as done, or be marked without a word."""
    checkpoint = made(tmp_path, 3, 3)
    checkpoint.require_whole("Remove it")
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    if file == "commits/2" and (content is None or content.startswith("v1")):
        checkpoint.require_whole("Remove it")
        return
    with pytest.raises(LakeConflict, match=f"{file.split('/', maxsplit=1)[0]}.*not whole. Remove it$"):
        checkpoint.require_whole("Remove it")


def test_it_is_moved_forward_and_back_to_where_rows_are_kept(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "old", 3, 3)
    (tmp_path / "old" / "offsets" / ".2.crc").touch()
    for planned in (made(tmp_path / "old2", 1, 1), checkpoint, Checkpoint(tmp_path / "lost")):
        planned.move("query-2", {2: {"at": 21}, 3: {"at": 31}}, "{}")
        planned.require_whole("Remove it")
        assert (planned.query_id, planned.last_planned, planned.last_batch) == ("query-2", 3, 2)
        assert (planned.passed(), planned.end(3)) == ({"at": 21}, {"at": 31})
        assert planned.settings_of(3) == "{}"
        planned.move("query-2", {0: {"at": 1}}, "{}")
        assert (planned.last_planned, planned.last_batch, planned.passed()) == (0, None, None)
    assert not (tmp_path / "old" / "offsets" / ".2.crc").exists()
