"""Ranges of a journal: the tables of a job end where its last one does, or at the end of one range that was cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace_spark.base.errors import LakeConflict
from headrace_spark.jobs.metrics import has_ended
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import DELIVERIES, DEVICES, METRICS_STATE, TRAFFIC
from headrace_spark.source.journal_range import Ranges
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.log_reader import DividedFrom
from spark.conftest import Writer
from spark.journals import mixed


class Bench:
    def __init__(self, journal: Writer, lake: Path) -> None:
        journal.write(mixed(300))
        self.journal = LocalJournal(journal.data_dir)
        self.state, self.traffic, self.deliveries = (
            LakeTable(lake, definition) for definition in (METRICS_STATE, TRAFFIC, DELIVERIES)
        )
        self.devices = LakeTable(lake, DEVICES)
        self.tables = (self.state, self.traffic, self.deliveries, self.devices)
        for table in self.tables:
            table.create()

    def ranges(self) -> Ranges:
        return Ranges("metrics", self.journal, self.state, (self.traffic, self.deliveries), (self.devices,))

    def done(self, table: LakeTable, end: int, epoch: int | None = None) -> None:
        """An append of nothing, as of a range up to `end`."""
        log = DeltaTable(table.folder)
        marks = [Transaction(self.ranges().app_id(self.journal.epoch if epoch is None else epoch), end)]
        if table is self.state:
            marks += [Transaction(*note) for note in self.ranges().notes().items()]
        write_deltalake(
            log,
            log.to_pyarrow_table().slice(0, 0),
            mode="append",
            commit_properties=CommitProperties(app_transactions=marks),
        )

    def range_done(self, end: int) -> None:
        for table in reversed(self.tables):
            self.done(table, end)

    def next(self) -> tuple[int, int] | None:
        found = self.ranges().next(100, 1 << 30, True)
        return None if found is None else (found.start, found.end)


@pytest.fixture
def bench(journal: Writer, tmp_path: Path) -> Bench:
    return Bench(journal, tmp_path / "lake")


def test_ranges_follow_one_another_and_one_that_was_cut_off_has_the_same_bounds(bench: Bench) -> None:
    assert bench.next() == (0, 100)
    bench.done(bench.traffic, 80)
    assert bench.next() == (0, 80)
    bench.done(bench.deliveries, 80)
    assert bench.next() == (0, 80)
    bench.done(bench.state, 80)
    assert bench.next() == (80, 180)


@pytest.mark.parametrize(
    ("state", "traffic", "deliveries"),
    [
        (100, 50, 100),  # rows of traffic would be missing for ever
        (100, 0, 100),
        (100, 200, 50),
        (100, 200, 300),  # deliveries up to 300 would be counted with traffic's range, or traffic's again
        (0, 100, 200),
    ],
)
def test_tables_of_different_times_are_refused_with_all_named(
    bench: Bench, state: int, traffic: int, deliveries: int
) -> None:
    for table, end in ((bench.state, state), (bench.traffic, traffic), (bench.deliveries, deliveries)):
        if end:
            bench.done(table, end)
    with pytest.raises(
        LakeConflict, match=f"metrics_state counts up to offset {state}.*traffic up to offset {traffic}.*"
    ):
        bench.next()


def test_a_state_that_is_older_is_made_again_where_all_others_have_the_range(bench: Bench) -> None:
    bench.done(bench.state, 100)
    for table in (bench.traffic, bench.deliveries):
        bench.done(table, 300)
    assert bench.next() == (100, 300)


@pytest.mark.parametrize("harm", ["older", "removed"])
def test_a_table_without_an_end_of_its_own_is_recognised_by_its_log(
    bench: Bench, tmp_path: Path, harm: str
) -> None:
    bench.range_done(100)
    shutil.copytree(bench.devices.folder, tmp_path / "older")
    bench.range_done(200)
    bench.ranges().require_together(200)
    bench.done(bench.devices, 300)  # a range that was cut off
    bench.ranges().require_together(200)
    shutil.rmtree(bench.devices.folder)
    if harm == "older":
        shutil.copytree(tmp_path / "older", bench.devices.folder)
    bench.devices.create()
    with pytest.raises(LakeConflict, match=r"devices is not the one that .*metrics_state was written with"):
        bench.ranges().require_together(200)


@pytest.mark.parametrize("end", [100, 150])
@pytest.mark.parametrize("name", ["state", "traffic"])
def test_what_another_copy_of_the_journal_has_counted_is_not_counted_on(
    bench: Bench, name: str, end: int
) -> None:
    """Two restores of one backup went on apart: the epoch of either may be the greater one. A range of the other may
    have been cut off before its last table."""
    bench.range_done(100)
    bench.ranges().require_together(100)
    here, there = bench.journal.epoch, bench.journal.epoch + 12_345
    bench.done(getattr(bench, name), end, there)
    said = (
        f"{name}.* offset {end}, epoch {there}, of another copy of journal .* epoch {here} here.*another lake"
    )
    with pytest.raises(LakeConflict, match=said):
        bench.ranges().require_together(100)


def test_a_journal_that_was_divided_has_been_counted_to_its_end_in_whatever_epoch(bench: Bench) -> None:
    uuid, epoch = bench.journal.uuid, bench.journal.epoch
    assert not has_ended(bench.state, DividedFrom(uuid, epoch, 200))
    bench.range_done(200)
    assert has_ended(bench.state, DividedFrom(uuid, epoch, 200))
    assert has_ended(bench.state, DividedFrom(uuid, -1, 200))
    assert not has_ended(bench.state, DividedFrom(uuid, epoch, 199))
    assert not has_ended(bench.state, DividedFrom(uuid, epoch + 1, 200)), "its last record was not there yet"
    bench.done(bench.state, 300, epoch + 777)  # as it was restored: the record is of before
    assert has_ended(bench.state, DividedFrom(uuid, epoch, 300))
    assert not has_ended(bench.state, DividedFrom(uuid, epoch, 200)), "it went on"


def test_what_is_put_back_between_two_ranges_is_noticed_before_the_next(bench: Bench, tmp_path: Path) -> None:
    """That one would take it to the end of all others."""
    bench.range_done(100)
    for table in (bench.traffic, bench.devices):
        shutil.copytree(table.folder, tmp_path / "older" / table.definition.name)
    bench.range_done(200)
    ranges = bench.ranges()
    ranges.require_together(200)
    assert ranges.next(50, 1 << 30, True) is not None
    for table in (bench.traffic, bench.devices):
        name = table.definition.name
        table.folder.rename(tmp_path / name)
        shutil.copytree(tmp_path / "older" / name, table.folder)
        with pytest.raises(LakeConflict, match=f"{name}.*restored from an older copy"):
            ranges.next(50, 1 << 30, True)
        shutil.rmtree(table.folder)
        (tmp_path / name).rename(table.folder)
    assert ranges.next(50, 1 << 30, True) is not None


def test_a_state_that_is_gone_is_made_again_only_from_a_journal_that_is_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.range_done(200)
    shutil.rmtree(bench.state.folder)
    bench.state.create()
    bench.ranges().require_together(200)
    assert bench.next() == (0, 200)
    monkeypatch.setattr(bench.journal, "complete_offset", lambda: 50)
    bench.ranges().require_together(50)  # the first range, which was cut off
    for consumed in (None, 200):
        with pytest.raises(LakeConflict, match="metrics_state has nothing of this journal"):
            bench.ranges().require_together(consumed)
