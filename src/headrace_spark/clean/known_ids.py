"""The message ids that the tables of the job `clean` have already: each file is read once, not again with every batch.

Held are 12 bytes for an id, a hash and the number of its file. A batch reads only the files that came since the one
before, which are that one's and those of a compaction, and those that have one of its ids by their hash: none, when
nothing is repeated. Files never change, so what is held is true as long as the log of the table names them.

Files that do not fit into `IDS_MAX` are read with every batch, the oldest ones first of all. Runs on the driver; the
hashes are made by Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace_spark.base.lake_url import Location
from headrace_spark.clean.cleaning import CHOSEN_ID, PLACE
from headrace_spark.lake.table_log import TableLog
from headrace_spark.records.chunk import Integers, Mask
from headrace_spark.records.schema import MESSAGES

IDS_MAX: Final = 20_000_000
"""What the driver holds at most: 240 MB, and as much again while a batch adds to it."""
_READ_TOGETHER: Final = 1_000_000
_AFTER_CHOSEN: Final = "client;"
_PLAIN_WRITER_MAX: Final = (
    4  # from 5 on a file may name its columns otherwise, from 7 on have rows that are deleted
)
_READ: Final = ("path", "num_records", "partition.date", "min.message_id")
_KNOWN: Final = StructType([MESSAGES[name] for name in ("message_id", *PLACE)])


class Table(Protocol):
    """A Delta table, as far as its ids are looked for."""

    @property
    def path(self) -> Location: ...

    def log(self) -> TableLog | None: ...

    def read(self, spark: SparkSession) -> DataFrame: ...


@dataclass(frozen=True)
class File:
    """A file of a table: its name, which no other file has, where it lies, its day and how many rows it has."""

    name: str
    path: str
    day: date
    rows: int


class KnownIds:
    """Knows the ids that publishers chose, of all rows of some tables."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._numbers: dict[str, int] = {}
        """By name of a file that is held; no number is used twice."""
        self._next = 0
        self._hashes: Integers = np.empty(0, np.int64)
        """In order; `_of` has the file of each."""
        self._of = np.empty(0, np.int32)
        self.files_read = 0
        """So far, by this process."""

    def among(self, messages: DataFrame, since: date) -> DataFrame:
        """Return `message_id` and PLACE of rows of that day and later: of all that have an id of these messages, and
        maybe of others."""
        spark = messages.sparkSession
        files: dict[str, File] = {}
        others: list[DataFrame] = []
        for table in self._tables:
            log = table.log()
            if log is not None and log.protocol().min_writer_version <= _PLAIN_WRITER_MAX:
                files |= {file.name: file for file in _files(table, log, since)}
            elif log is not None:
                recent = table.read(spark).where(F.col("date") >= F.lit(since))
                others.append(recent.select("message_id", *PLACE))
        self._forget(files)
        too_many = self._learn(spark, files)
        wanted = self._with_any(_hashes(messages), files)
        paths = [files[name].path for name in {*wanted, *too_many}]
        self.files_read += len(paths)
        read = spark.read.parquet(*paths) if paths else spark.createDataFrame([], _KNOWN)
        found = read.select("message_id", *PLACE)
        for other in others:
            found = found.unionByName(other)
        return found.where(F.col("message_id").startswith(CHOSEN_ID))

    def _forget(self, files: Mapping[str, File]) -> None:
        """Forget the files that are no part of the tables any more, or too old."""
        gone = [number for name, number in self._numbers.items() if name not in files]
        if gone:
            self._keep(~np.isin(self._of, gone))
            self._numbers = {name: number for name, number in self._numbers.items() if name in files}

    def _keep(self, which: Mask) -> None:
        self._hashes, self._of = self._hashes[which], self._of[which]

    def _learn(self, spark: SparkSession, files: Mapping[str, File]) -> list[str]:
        """Read the files that are not held, the newest first; return those that do not fit."""
        room, new, too_many = IDS_MAX - len(self._hashes), [], []
        for file in sorted(files.values(), key=lambda file: (file.day, file.name), reverse=True):
            if file.name in self._numbers:
                continue
            if file.rows <= room:
                room -= file.rows
                new.append(file)
            else:
                too_many.append(file.name)
        for some in _together(new):
            self._add(spark, some)
        return too_many

    def _add(self, spark: SparkSession, files: Sequence[File]) -> None:
        self.files_read += len(files)
        rows = spark.read.parquet(*(file.path for file in files))
        rows = rows.where(F.col("message_id").startswith(CHOSEN_ID))
        found = rows.select(
            F.xxhash64("message_id").alias("hash"), F.col("_metadata.file_name").alias("name")
        )
        held = found.toArrow()
        for file in files:
            self._numbers[file.name] = self._next
            self._next += 1
        names = held["name"].combine_chunks().dictionary_encode()
        names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        numbers = np.array([self._numbers[unquote(name)] for name in names.dictionary.to_pylist()], np.int32)
        hashes = np.concatenate([self._hashes, held["hash"].to_numpy()])
        of = np.concatenate([self._of, numbers[names.indices.to_numpy()]])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._of = hashes[order], of[order]

    def _with_any(self, hashes: Integers, files: Mapping[str, File]) -> list[str]:
        """Return the files that are held and have any of these hashes."""
        begins, ends = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        changes = np.zeros(len(self._hashes) + 1, np.int32)
        np.add.at(changes, begins, 1)
        np.add.at(changes, ends, -1)
        numbers = set(np.unique(self._of[np.cumsum(changes)[:-1] > 0]).tolist())
        return [name for name in files if self._numbers.get(name) in numbers]


def _files(table: Table, log: TableLog, since: date) -> Iterator[File]:
    """Yield the files that may have ids that publishers chose, by the log and its statistics."""
    files = pa.table(log.get_add_actions(flatten=True))
    for row in files.select([name for name in _READ if name in files.column_names]).to_pylist():
        day, least = row["partition.date"], row.get("min.message_id")
        if _date(day) >= since and (least is None or least < _AFTER_CHOSEN):
            path = unquote(row["path"])
            yield File(path.rpartition("/")[2], f"{table.path}/{path}", _date(day), row["num_records"] or 0)


def _date(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _together(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield the files in parts that are read at once."""
    some: list[File] = []
    for file in files:
        if some and sum(each.rows for each in some) + file.rows > _READ_TOGETHER:
            yield some
            some = []
        some.append(file)
    if some:
        yield some


def _hashes(messages: DataFrame) -> Integers:
    """Return the hashes of the ids that publishers chose."""
    chosen = messages.where(F.col("message_id").startswith(CHOSEN_ID))
    found = chosen.select(F.xxhash64("message_id").alias("hash")).toArrow()
    hashes: Integers = found["hash"].to_numpy()
    return hashes
