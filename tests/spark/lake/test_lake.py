"""What a table holds is read from its log alone; checkpoints and locks are files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace_spark.archive.position import ends_of
from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.messages import JournalEnd, archive_id
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from spark.conftest import Writer
from spark.journals import Made, mixed

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
STATISTICS = {"delta.dataSkippingStatsColumns": "topic,journal_uuid,journal_epoch,journal_offset"}


def append(
    lake: Lake,
    made: Made,
    base_offset: int,
    epoch: int,
    batch: int = 0,
    uuid: str = UUID,
    archived: int | None = None,
) -> int:
    """Write messages as another Delta writer would; returns how many. `archived`: the offset that the batch says."""
    schema = arrow_schema(MESSAGES)
    batches = made.batches([], epoch, base_offset)
    table: Any = pa.Table.from_batches(decode(batches, uuid, 0, 1 << 40, schema), schema)
    said = [] if archived is None else [Transaction(archive_id(uuid, epoch), archived)]
    properties = CommitProperties(app_transactions=[Transaction("query-1", batch), *said])
    write_deltalake(
        lake.messages, table, mode="append", partition_by=["tenant", "date"], configuration=STATISTICS,
        commit_properties=properties,
    )  # fmt: skip
    return int(table.num_rows)


def test_what_lies_in_the_place_of_a_table_is_named(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.messages.write_text("no folder")
    with pytest.raises(
        LakeConflict, match=f"{lake.messages} is no Delta table that can be read .*move it away"
    ):
        lake.table.state()
    lake.messages.unlink()
    append(lake, mixed(10), 0, 0)
    (lake.messages / "_delta_log" / "00000000000000000000.json").write_text("{ torn")
    with pytest.raises(LakeConflict, match=f"{lake.messages} is no Delta table that can be read"):
        lake.table.state()


def test_a_lake_that_cannot_be_written_is_named() -> None:
    with (
        pytest.raises(
            LakeConflict, match=r"/proc/lake.* cannot be written: .*Give a lake that this user may write"
        ),
        Lake(Path("/proc/lake")).holding("clean"),
    ):
        raise AssertionError("it was held")


def test_a_lake_without_a_table(tmp_path: Path) -> None:
    assert Lake(tmp_path).table.state() is None
    assert Lake(tmp_path).table.last_batch("query-1") is None


def test_rows_and_ends_of_the_journal(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), mixed(200)
    rows = append(lake, made, 1000, 1) + append(lake, made, 1200, 1) + append(lake, made, 1300, 2, batch=4)
    last = made.rows(UUID)[-1]["journal_offset"]
    state = lake.table.state()
    assert state is not None
    assert (state.rows, state.version) == (rows, 2)
    assert state.ends == (
        JournalEnd(UUID[:32], 1, 1200 + last + 1),
        JournalEnd(UUID[:32], 2, 1300 + last + 1),
    )
    assert state.end(UUID) == state.ends[1]
    assert state.end("00000000-8b86-d011-b42d-00c04fc964ff") is None
    assert lake.table.last_batch("query-1") == 4
    assert lake.table.last_batch("query-2") is None


class LetGo(LocalJournal):
    """A journal of which retention has taken all: nobody can tell from its records what a table has of it."""

    def complete_offset(self) -> int:
        return 1 << 40


@pytest.mark.parametrize("archived", [10, None])
@pytest.mark.parametrize("kind", [LocalJournal, LetGo])
def test_what_another_copy_of_the_journal_was_archived_is_not_gone_on_from(
    journal: Writer, tmp_path: Path, archived: int | None, kind: type[LocalJournal]
) -> None:
    """Two restores of one backup went on apart: the table may be of the one with the higher epoch."""
    journal.write(mixed(300))
    lake, here = Lake(tmp_path / "lake"), kind(journal.data_dir)
    append(lake, mixed(10), 0, here.epoch, uuid=here.uuid, archived=10)
    assert ends_of(here, lake.table)[1] == JournalEnd(here.uuid, here.epoch, 10)
    append(lake, mixed(10), 0, here.epoch + 777, batch=1, uuid=here.uuid, archived=archived)
    said = f"epoch {here.epoch + 777}, of another copy of journal {here.uuid}, .* epoch {here.epoch} here.*another lake"
    with pytest.raises(LakeConflict, match=said):
        ends_of(here, lake.table)


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    write_deltalake(Lake(tmp_path).messages, pa.table({"topic": [1]}))
    with pytest.raises(LakeConflict, match=r"another schema .*Use another lake, or move"):
        Lake(tmp_path).table.state()


def test_files_with_rows_of_several_journals_are_read(tmp_path: Path) -> None:
    """As `OPTIMIZE` leaves them: statistics say the least uuid of one and the greatest offset of another."""
    lake, other, first, second = Lake(tmp_path), "a" + UUID[1:], mixed(80), mixed(200)
    append(lake, first, 1000, 1)
    append(lake, second, 5000, 1, batch=1, uuid=other)
    append(lake, first, 200, 3, batch=2, uuid=UUID)
    before = lake.table.state()
    DeltaTable(lake.messages).optimize.compact()
    state = lake.table.state()
    assert before is not None
    assert state is not None
    assert (state.rows, state.ends) == (before.rows, before.ends)
    assert DeltaTable(lake.messages).version() == state.version == 3


def test_one_archive_of_a_journal_at_a_time(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.archiving("u1"):
        with lake.archiving("u2"):
            pass
        with (
            pytest.raises(LakeConflict, match="another process is archiving journal u1"),
            lake.archiving("u1"),
        ):
            pass
    with lake.archiving("u1"):
        pass


def test_a_lock_whose_file_was_removed_is_taken_again_unless_another_process_has_it(tmp_path: Path) -> None:
    lake, other = Lake(tmp_path), Lake(tmp_path)
    with lake.holding("clean"):
        lake.require_held()
        (lake.checkpoints / "clean.lock").unlink()
        lake.require_held()
        with (
            pytest.raises(LakeConflict, match="another process is running job clean"),
            other.holding("clean"),
        ):
            pass
        (lake.checkpoints / "clean.lock").rename(lake.checkpoints / "moved")
        with other.holding("clean"):
            other.require_held()
            with pytest.raises(LakeConflict, match="another process is running job clean"):
                lake.require_held()
    with lake.holding("clean"):
        shutil.rmtree(lake.checkpoints)
        with pytest.raises(
            LakeConflict, match=r"clean\.lock was removed .*Restore the lake, then run the job again"
        ):
            lake.require_held()
