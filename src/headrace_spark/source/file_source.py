"""`headrace-journal-files`: the journal as a stream of Parquet files, written by the workers that read it.

Takes the options of `headrace-journal` for a stream of `messages`, and three of its own: `table`, the folder of the Delta
table that the files are for, under the same path on driver and workers; `writtenBelow`, JSON of journal uuids and the
offsets below which that table has them already, whatever the checkpoint says; and `codec`, as Spark names it.

Its rows are Delta's `add` actions, one for each file (`headrace_spark.lake.table_files`); whoever runs the query commits
them (`headrace_spark.lake.delta_commit`). So the messages themselves never pass through the JVM. Offsets, and the
checkpoint, are those of `headrace-journal`.
"""

# ruff: noqa: N802  (the names of methods are Spark's)

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StringType, StructField, StructType

from headrace_spark.base.errors import BadOption
from headrace_spark.lake.known_tables import KnownTables
from headrace_spark.lake.table_files import CODEC, MESSAGES_LAYOUT, TableFiles
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.stream import Offset, StreamReader

FORMAT: Final = "headrace-journal-files"
ACTIONS: Final = StructType([StructField("action", StringType())])
_ACTIONS: Final = pa.schema([("action", pa.string())])
_TABLE: Final = "table"
_WRITTEN: Final = "writtenbelow"
_CODEC: Final = "codec"


class JournalFiles(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return ACTIONS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FileReader({name.lower(): value for name, value in self.options.items()})


class FileReader(StreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        source = {name: value for name, value in options.items() if name not in (_TABLE, _WRITTEN, _CODEC)}
        super().__init__(SourceOptions.parse(source), MESSAGES)
        if not options.get(_TABLE):
            raise BadOption(_TABLE, "", "the folder of a Delta table is needed")
        self.table = Path(options[_TABLE])
        self.written_below = json.loads(options.get(_WRITTEN, "{}"))
        self._known = KnownTables()
        self.layout = MESSAGES_LAYOUT.compressed(options.get(_CODEC, CODEC))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Do what a stream of messages does, as long as the table is the one that the query began with: Spark writes what
        it plans into the lake that lies there. Raises LakeConflict."""
        self._known.look(self.table)
        return super().latestOffset(start, limit)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, which are made only when every file is whole. Runs on a worker."""
        files = TableFiles(self.table, self.layout)
        try:
            for rows in super().read(partition):
                files.add(rows)
            actions = files.finish()
        except BaseException:
            files.abandon()
            raise
        if actions:
            yield pa.RecordBatch.from_arrays([pa.array(actions, pa.string())], schema=_ACTIONS)
