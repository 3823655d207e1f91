"""What a query over a Delta table has planned, kept in the log of a table that it writes: for lakes behind a URL.

A batch is planned by a commit without rows, which sets these versions of transactions, and is taken only if the table
stands at the batch before (compare-and-set):

    <query>/end      number of the position behind the batch (`TablePosition.number`)
    <query>/begin    the same of the batch before; -1: there is none
    <query>/batch    number of the batch
    <query>/first    the version whose rows the query has read at first
    <query>/source   which table it reads: of its id
    <query>/commit   of the newest version that was read: tells it from another one of that number; 0: unknown

So of two drivers one plans a batch, and whoever comes next does that batch again with the same bounds, each write of it a
transaction that a table takes once. Spark's checkpoint is a temporary folder, made from the plan at each start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.delta_commit import Step, append_marks
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.table_log import TableLog, Tables
from headrace_spark.lake.table_position import TablePosition, commit_of, is_cleaned_up
from headrace_spark.lake.url_lake import UrlLake

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_BITS: Final = 60


@dataclass(frozen=True)
class Planned:
    """The newest batch of a query, as the table says."""

    batch: int
    begin: TablePosition | None
    end: TablePosition
    commit: int


class TablePlan:
    """The plan of the query `name`, which reads the table `source`, in the log of the table `kept_in`.

    Both tables are there. One process at a time uses it, as far as a lease can see to that. `lake` is
    held, but for a look.
    """

    def __init__(self, lake: UrlLake, name: str, kept_in: Location, source: Location) -> None:
        self._spark = lake.spark
        self._tables = tables = lake.tables
        self._kept_in = kept_in
        self._source = source
        self._source_id = str(_required(tables, source).metadata().id)
        place = str(_required(tables, kept_in).metadata().id)
        self.query_id: Final = str(uuid5(NAMESPACE_URL, f"headrace:{name}:{place}"))
        """The same wherever the lake is moved to; another one for a table made anew."""
        self._folder = lake.scratch
        self._starts = 0
        self._planned: Planned | None = None
        self.checkpoint = Checkpoint(self._folder / "0")

    @property
    def begin(self) -> TablePosition | None:
        """Return where the newest batch begins; None: with all that the source has."""
        return None if self._planned is None else self._planned.begin

    def restore(self, is_finished: bool) -> Checkpoint:
        """Return a new checkpoint for Spark that stands where the plan does. `is_finished`: everything of the newest
        batch is done. Raises LakeConflict, OSError."""
        self._starts += 1
        self.checkpoint = Checkpoint(self._folder / str(self._starts))
        self._planned = self.newest()
        found = self._planned
        if found is None:
            self.checkpoint.begin(self.query_id)
            return self.checkpoint
        before = {} if found.begin is None else {found.batch - 1: found.begin.as_dict()}
        ends = before | {found.batch: found.end.as_dict()}
        self.checkpoint.move(self.query_id, ends, self._settings(), is_finished)
        return self.checkpoint

    def _settings(self) -> str:
        """Return what Spark keeps with a batch. It compares the partitions of the last two."""
        conf = {_PARTITIONS: self._spark.conf.get(_PARTITIONS)}
        return json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})

    def newest(self) -> Planned | None:
        """Return the newest batch that was planned. Raises LakeConflict if the source is not the one it was planned
        for."""
        log = _required(self._tables, self._kept_in)
        end, first = self._mark(log, "end"), self._mark(log, "first")
        if end is None or first is None:
            return None
        if self._mark(log, "source") != _number_of(self._source_id):
            raise self._conflict("another table lies there now")
        begin = self._mark(log, "begin") or 0
        found = Planned(
            self._mark(log, "batch") or 0,
            None if begin < 0 else self._position(begin, first),
            self._position(end, first),
            self._mark(log, "commit") or 0,
        )
        self._require_read(found)
        return found

    def noted(self, what: str) -> int | None:
        """Return what was noted with the newest batch under a name of one's own."""
        return self._mark(_required(self._tables, self._kept_in), what)

    def add(self, batch: int, notes: Mapping[str, int] | None = None) -> None:
        """Plan a batch that Spark has planned, unless it is the newest one, done again. `notes`: numbers to keep with
        it. Raises TableMoved."""
        end = TablePosition.from_dict(self.checkpoint.end(batch))
        before = self._planned
        if before is not None and before.batch == batch and before.end.number == end.number:
            return
        begin = None if before is None else before.end
        commit = self._commit_of(end)
        marks = {
            "begin": -1 if begin is None else begin.number,
            "batch": batch,
            "first": self._first_look(before, end),
            "source": _number_of(self._source_id),
            "commit": commit,
            **(notes or {}),
        }
        also = {f"{self.query_id}/{name}": value for name, value in marks.items()}
        after = None if begin is None else begin.number
        try:
            append_marks(self._spark, self._kept_in, Step(f"{self.query_id}/end", end.number, after), also)
        except (Py4JJavaError, PySparkException):
            if not self._has(marks, end):  # the answer may have been lost
                raise
        self._planned = Planned(batch, begin, end, commit)

    def _has(self, marks: Mapping[str, int], end: TablePosition) -> bool:
        log = _required(self._tables, self._kept_in)
        return all(self._mark(log, name) == value for name, value in {**marks, "end": end.number}.items())

    def _first_look(self, before: Planned | None, end: TablePosition) -> int:
        """Return the version of the first look: -1 if the query has begun with a version's changes."""
        if end.is_first_look:
            return end.version
        if before is not None:
            log = _required(self._tables, self._kept_in)
            return self._mark(log, "first") or 0
        return end.version - 1  # all of the first look came in one batch

    def _position(self, number: int, first: int) -> TablePosition:
        return TablePosition.from_number(number, self._source_id, first)

    def _require_read(self, found: Planned) -> None:
        """Check that the source has what was read of it. Raises LakeConflict."""
        version = max(0, found.end.read_version)
        if _required(self._tables, self._source).version() < version:
            raise self._conflict(f"it has not the version {version} that was read")
        if found.commit and self._commit_of(found.end) not in (0, found.commit):
            raise self._conflict(f"its version {version} is another one than was read")
        if is_cleaned_up(self._tables, self._source, found.end):
            raise self._conflict(
                f"its log no longer has version {found.end.version}, where more is to be read"
            )

    def _commit_of(self, position: TablePosition) -> int:
        """Return what tells the newest version that was read from another one; 0 where the log no longer has it."""
        found = commit_of(self._tables, self._source, max(0, position.read_version))
        return 0 if found is None else _number_of(found) or 1

    def _mark(self, log: TableLog, name: str) -> int | None:
        return log.transaction_version(f"{self.query_id}/{name}")

    def _conflict(self, problem: str) -> LakeConflict:
        return LakeConflict(
            f"table {self._source} was replaced, or restored from an older copy than table {self._kept_in}, which says "
            f"how far it was read: {problem}. Restore both as they were at one time, or use another lake"
        )


def _required(tables: Tables, table: Location) -> TableLog:
    with said_plainly(table):
        log = tables.open(table)
    if log is None:
        raise LakeConflict(f"table {table} is gone")
    return log


def _number_of(text: str) -> int:
    """Return a number that stands for a text: a transaction's version has 63 bits."""
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> (64 - _BITS)
