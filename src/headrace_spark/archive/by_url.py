"""An archive into a table behind a URL: Spark reads the journal's rows and writes the files, Delta commits them.

How far it is stands in the table alone: each batch is committed with the offset behind it as transaction, if the table
still stands where the batch begins (`append_rows`). So a driver needs nothing of the one before it, whatever machine that
was on: Spark's checkpoint is a folder of this process, made anew at every start and gone with it. A lease keeps a second
driver from beginning; if one goes on nevertheless, because the first stood still, the table takes the batches of one
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.archive.position import ends_of
from headrace_spark.archive.settings import JOB, ArchiveSettings, started, stream
from headrace_spark.base.errors import LakeUnreachable, TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.logs import LOG
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.delta_commit import append_rows
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lease import Lease
from headrace_spark.lake.messages import JournalEnd, archive_id
from headrace_spark.lake.upkeep import Upkeep
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.ranges import JournalOffset

SOURCE: Final = "headrace-journal"


class UrlTarget:
    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, journal: LogReader, lake: LakeUrl
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._journal = journal
        self._lake = UrlLake(spark, lake)
        self._lease = self._lake.lease(journal.uuid)
        self._folder = TemporaryDirectory(prefix="headrace-archive-")
        self._begun = self._written = 0
        self._said: JournalEnd | None = None
        self.owner = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        self._lake.require_safe()
        with self._folder, self._lease.held():
            yield

    def require_held(self) -> None:
        self._lease.require()

    def open(self) -> int:
        with said_plainly(self._lake.messages):
            self._lake.table.create(self._spark)
        self.owner = self._lake.owner(JOB, self._lake.messages)
        self._written = self._written_below()
        return self._written

    def upkeep(self) -> Callable[[], None]:
        lake = self._lake
        settings, marks = self._settings.upkeep, lake.marks()
        with said_plainly(lake.messages):
            upkeep = Upkeep(self._spark, settings, marks, [lake.messages], opened=lake.tables)

        def tend() -> None:
            """Tend the table; upkeep that another commit or the store has foiled is done the next time."""
            try:
                with said_plainly(lake.messages):
                    upkeep.tend()
            except LakeUnreachable as error:
                marks.touch_here(lake.messages.name)
                LOG.warning("upkeep: %s", error)

        return tend

    def start(self) -> StreamingQuery:
        """Begin where the table is: what Spark had planned before it failed is of no account."""
        written = self._written if self._begun == 0 else self._written_below()
        self._begun += 1
        checkpoint = Checkpoint(Path(self._folder.name) / str(self._begun))
        rows = stream(self._spark, self._settings, self._journal, SOURCE, self.owner, written).load()
        batches = Batches(self._lake, self._lease, checkpoint, self._said)
        return started(rows.writeStream.foreachBatch(batches.add), self._settings, checkpoint.path.as_uri())

    def rows(self, batch: int) -> int | None:
        """Return None: Spark counts rows itself here."""
        return None

    def _written_below(self) -> int:
        last, self._said = ends_of(self._journal, self._lake.table)
        return max(end.offset if end else 0 for end in (last, self._said))


class Batches:
    """Adds each batch to the table. `said`: where the table stands. Spark calls `add` on a thread of its own, one batch
    after the other."""

    def __init__(self, lake: UrlLake, lease: Lease, checkpoint: Checkpoint, said: JournalEnd | None) -> None:
        self._lake = lake
        self._lease = lease
        self._checkpoint = checkpoint
        self._stands = {} if said is None else {archive_id(said.uuid_start, said.epoch): said.offset}

    def add(self, rows: DataFrame, batch: int) -> None:
        end = JournalOffset.from_dict(self._checkpoint.end(batch))
        app_id = archive_id(end.uuid, end.epoch)
        try:
            after = self._stands.get(app_id)
            append_rows(rows.sparkSession, self._lake.messages, rows, app_id, end.offset, after)
        except TableMoved:
            self._lease.require_now()  # the usual reason
            raise
        except (Py4JJavaError, PySparkException):
            if not self._has(app_id, end.offset):
                raise
        self._stands[app_id] = end.offset

    def _has(self, app_id: str, version: int) -> bool:
        """Return whether the table has a batch though its commit failed: the answer was lost, or a driver that took over
        was faster with the same one."""
        log = self._lake.tables.open(self._lake.messages)
        return log is not None and log.transaction_version(app_id) == version
