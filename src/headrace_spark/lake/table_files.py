"""Rows into the Parquet files of a Delta table, on the workers; nothing is in the table until its log names a file.

    <table>/tenant=default/date=2026-11-22/part-<uuid>.zstd.parquet

Types, partitions, compression and statistics are those of Spark's own writer, so that files of both lie side by side
(`tests/spark/lake/test_table_files.py` compares them). What an attempt that was cut off leaves behind is no part of the
table and goes with a vacuum.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace_spark.base.errors import BadOption
from headrace_spark.lake.durable import make_within, sync_path

# What a task holds before it writes a row group.
BUFFER_BYTES: Final = 64 << 20
FILES_OPEN_MAX: Final = 64
"""Files that have a row group already and get more; those whose rows all wait in the buffer do not count."""
TEXT_KEPT: Final = 32
"""Characters of a text in the statistics."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
# As Spark and Hive write a value into the name of a folder.
_ESCAPED: Final = {chr(code): f"%{code:02X}" for code in (*range(1, 32), 127, *map(ord, "\"#%'*/:=?\\{[]^"))}
_FOLDER: Final = str.maketrans(_ESCAPED)
_IN_URI: Final = "/=-_.~!$&'()*+,;:@"
# ASCII, and beyond it what Java takes for spaces and control characters.
_QUOTED: Final = re.compile("[\0-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_LAST_ASCII: Final = "\x7f"
_LAST: Final = "\U0010ffff"


@dataclass(frozen=True)
class Codec:
    """Says how pages are compressed, as Arrow names it, and what a file's name says of it."""

    name: str
    suffix: str
    level: int | None = None


CODEC_KEY: Final = "spark.sql.parquet.compression.codec"
"""Spark's own key: its writer and this one compress alike."""
CODEC: Final = "zstd"
ZSTD_LEVEL: Final = 1
"""A fifth of the bytes of snappy for JSON, a tenth more time to write (see benchmarks/results/lake-codecs-500000.json);
higher levels cost more and save next to nothing."""
CODECS: Final = {
    "zstd": Codec("zstd", ".zstd", ZSTD_LEVEL),
    "snappy": Codec("snappy", ".snappy"),
    "gzip": Codec("gzip", ".gz"),
    "brotli": Codec("brotli", ".br"),
    "lz4_raw": Codec("lz4", ".lz4raw"),
    "uncompressed": Codec("none", ""),
    "none": Codec("none", ""),
}
"""By the names of Spark."""


@dataclass(frozen=True)
class FileLayout:
    """Says how the files of a table are laid out."""

    partitioned_by: tuple[str, ...]
    statistics: tuple[str, ...]
    unique: tuple[str, ...]
    """Columns whose every value is another one: a dictionary of them would only be thrown away."""
    codec: Codec = CODECS[CODEC]

    def compressed(self, codec: str) -> FileLayout:
        """Return the layout with the pages compressed so, by a name of CODECS. Raises BadOption."""
        if codec.lower() not in CODECS:
            raise BadOption(CODEC_KEY, codec, f"the archive writes {', '.join(CODECS)}")
        return replace(self, codec=CODECS[codec.lower()])


MESSAGES_LAYOUT: Final = FileLayout(
    partitioned_by=("tenant", "date"),
    # What people filter by, and what tells how far the table goes; nothing for payloads and ids.
    statistics=("topic", "client_id", "publish_timestamp", "journal_uuid", "journal_epoch", "journal_offset"),
    unique=("payload", "message_id", "journal_offset", "publish_timestamp"),
)


class TableFiles:
    """The Parquet files that one task writes below `table`, which is there. `add` rows, then `finish`; `abandon` if
    that cannot be."""

    def __init__(self, table: Path, layout: FileLayout) -> None:
        self._table = table
        self._layout = layout
        self._files: dict[tuple[Any, ...], TableFile] = {}
        self._done: list[str] = []
        self._paths: list[Path] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for values, part in _by_partition(rows, self._layout.partitioned_by):
            if values not in self._files:
                self._files[values] = self._new(values, part.schema)
            self._files[values].add(part)
        if sum(file.held_bytes for file in self._files.values()) > BUFFER_BYTES:
            self._flush(max(self._files.values(), key=lambda file: file.held_bytes))

    def finish(self) -> list[str]:
        """Return the `add` actions of all files, as they stand in a Delta log."""
        for values in list(self._files):
            self._close(values)
        return self._done

    def abandon(self) -> None:
        """Remove what was written."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _flush(self, file: TableFile) -> None:
        """Write the rows of a file that wait. Where too many files are open, the largest one is finished first."""
        open_ones = {values: each for values, each in self._files.items() if each.is_open}
        if not file.is_open and len(open_ones) >= FILES_OPEN_MAX:
            self._close(max(open_ones, key=lambda values: open_ones[values].bytes))
        file.flush()

    def _new(self, values: tuple[Any, ...], schema: pa.Schema) -> TableFile:
        named = zip(self._layout.partitioned_by, map(_partition_value, values), strict=True)
        partition = dict(named)
        folder = "/".join(f"{name}={_folder(value)}" for name, value in partition.items())
        name = f"{folder}/part-{uuid4()}{self._layout.codec.suffix}.parquet"
        path = self._table / name
        make_within(self._table, path.parent, "rows were")
        self._paths.append(path)
        return TableFile(path, name, partition, schema, self._layout)

    def _close(self, values: tuple[Any, ...]) -> None:
        self._done.append(self._files.pop(values).close())


class TableFile:
    """One file of one partition; it is opened with its first row group."""

    def __init__(
        self, path: Path, name: str, partition: dict[str, str | None], schema: pa.Schema, layout: FileLayout
    ) -> None:
        self._path = path
        self._codec = layout.codec
        self._name = name
        self._partition = partition
        self._schema = schema
        self._dictionaries = [column for column in schema.names if column not in layout.unique]
        self._statistics = Statistics([column for column in layout.statistics if column in schema.names])
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self.bytes = 0
        """Of the rows so far, as they are in memory."""

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self.held_bytes += rows.nbytes
        self.bytes += rows.nbytes

    def flush(self) -> None:
        """Write what is held as a row group."""
        if self._held:
            rows = pa.Table.from_batches(self._held)
            self._statistics.add(rows)
            self._writer = self._writer or self._opened()
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._held, self.held_bytes = [], 0

    def _opened(self) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._path,
            self._schema,
            compression=self._codec.name,
            compression_level=self._codec.level,
            use_dictionary=self._dictionaries,
            store_schema=False,
        )

    def close(self) -> str:
        """Close the file and return its `add` action."""
        self.flush()
        assert self._writer is not None  # a file is made for rows
        self._writer.close()
        sync_path(self._path)  # here, where the other tasks work on meanwhile
        add = {
            "path": path_in_log(self._name),
            "partitionValues": self._partition,
            "size": os.path.getsize(self._path),
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": self._statistics.as_json(),
        }
        return json.dumps({"add": add}, ensure_ascii=False, separators=(",", ":"))


@dataclass
class Statistics:
    """Least and greatest value of columns, by which readers skip files, and how many are null."""

    columns: Sequence[str]
    rows: int = 0
    least: dict[str, Any] = field(default_factory=dict)
    greatest: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in self.columns:
            self.nulls[name] = self.nulls.get(name, 0) + rows[name].null_count
            found = pc.min_max(rows[name]).as_py()
            if found["min"] is not None:
                self.least[name] = _lesser(self.least.get(name), found["min"])
                self.greatest[name] = _greater(self.greatest.get(name), found["max"])

    def as_json(self) -> str:
        """Return the statistics as JSON: texts are cut after `TEXT_KEPT` characters, times to whole milliseconds, as
        Delta's protocol says."""
        found = {
            "numRecords": self.rows,
            "minValues": {name: _least(self.least[name]) for name in self.columns if name in self.least},
            "maxValues": {
                name: _greatest(self.greatest[name]) for name in self.columns if name in self.least
            },
            "nullCount": self.nulls,
        }
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def path_in_log(name: str) -> str:
    """Return the path of a file as Spark writes it into the log, letters of any alphabet as they are: Delta's vacuum goes
    by its spelling, and would take the file for one that nobody needs."""
    return _QUOTED.sub(lambda found: quote(found[0], safe=_IN_URI), name)


def rows_in(action: str) -> int:
    """Return how many rows the file of an `add` action has."""
    return int(json.loads(json.loads(action)["add"]["stats"])["numRecords"])


def _by_partition(
    rows: pa.RecordBatch, names: Sequence[str]
) -> Iterable[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield the rows of each partition; its columns come last, as Delta puts them."""
    kept = rows.select([*(name for name in rows.schema.names if name not in names), *names])
    encoded = [rows[name].dictionary_encode(null_encoding="encode") for name in names]
    if all(len(column.dictionary) == 1 for column in encoded):
        yield tuple(column.dictionary[0].as_py() for column in encoded), kept
        return
    keys = pa.table({name: column.indices for name, column in zip(names, encoded, strict=True)})
    for key in keys.group_by(list(names)).aggregate([]).to_pylist():
        mask: Any = None
        for name in names:
            equal = pc.equal(keys[name], key[name])
            mask = equal if mask is None else pc.and_(mask, equal)
        values = tuple(column.dictionary[key[n]].as_py() for n, column in zip(names, encoded, strict=True))
        yield values, kept.filter(mask.combine_chunks())


def _partition_value(value: Any) -> str | None:
    """Return the value as text; an empty one cannot be told from none, in Spark as in Hive."""
    return None if value is None or value == "" else str(value)


def _folder(value: str | None) -> str:
    return _NO_VALUE if value is None else value.translate(_FOLDER)


def _lesser(known: Any, found: Any) -> Any:
    return found if known is None or _order(found) < _order(known) else known


def _greater(known: Any, found: Any) -> Any:
    return found if known is None or _order(found) > _order(known) else known


def _order(value: Any) -> Any:
    """Return what a value is ordered by: texts go by their bytes."""
    return value.encode() if isinstance(value, str) else value


def _least(value: Any) -> Any:
    return value[:TEXT_KEPT] if isinstance(value, str) else _shown(value)


def _greatest(value: Any) -> Any:
    if not isinstance(value, str):
        return _shown(value)
    if len(value) <= TEXT_KEPT:
        return value
    following = value[TEXT_KEPT]
    if following == _LAST:
        return value
    return value[:TEXT_KEPT] + (_LAST_ASCII if following < _LAST_ASCII else _LAST)


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value
