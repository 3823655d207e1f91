"""An archive into a table behind a URL: Spark reads the journal's rows and writes the files, Delta commits them.

How far it is stands in the table alone: each batch is committed with the offset behind it as transaction, if the table
still stands where the batch begins (`append_rows`). So a driver needs nothing of the one before it, whatever machine that
was on: Spark's checkpoint is a folder of this process, made anew at every start and gone with it. A lease keeps a second
driver from beginning; if one goes on nevertheless, because the first stood still, the table takes the batches of one
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.archive.position import ends_of
from headrace_spark.archive.settings import JOB, ArchiveSettings, started, stream
from headrace_spark.base.errors import TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.scratch import Scratch
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.delta_commit import Step, append_rows
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lake_of import tending
from headrace_spark.lake.lease import Lease
from headrace_spark.lake.messages import JournalEnd, archive_id
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.ranges import JournalOffset, StreamOffset

SOURCE: Final = "headrace-journal"


class UrlTarget:
    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, journals: Sequence[LogReader], lake: LakeUrl
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._journals = journals
        self._lake = UrlLake(spark, lake)
        self._leases = [self._lake.lease(journal.uuid) for journal in journals]
        self._folder = Scratch("archive")
        self._begun = 0
        self._written: Mapping[str, int] = {}
        self._said: list[JournalEnd] = []
        self.owner = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        self._lake.require_safe()
        with self._folder, ExitStack() as held:
            for lease in sorted(self._leases, key=lambda lease: str(lease.url)):
                held.enter_context(lease.held())
            yield

    def require_held(self) -> None:
        for lease in self._leases:
            lease.require()

    def open(self) -> Mapping[str, int]:
        with said_plainly(self._lake.messages):
            self._lake.table.create(self._spark)
        self.owner = self._lake.owner(JOB, self._lake.messages)
        self._written = self._written_below()
        return self._written

    def upkeep(self) -> Callable[[], None]:
        return tending(self._spark, self._settings.upkeep, self._lake, [self._lake.messages])

    def start(self) -> StreamingQuery:
        """Begin where the table is: what Spark had planned before it failed is of no account."""
        written = self._written if self._begun == 0 else self._written_below()
        self._begun += 1
        checkpoint = Checkpoint(self._folder.path / str(self._begun))
        rows = stream(self._spark, self._settings, self._journals, SOURCE, self.owner, written).load()
        batches = Batches(self._lake, self._leases, checkpoint, self._said)
        return started(rows.writeStream.foreachBatch(batches.add), self._settings, checkpoint.path.as_uri())

    def rows(self, batch: int) -> int | None:
        """Return None: Spark counts rows itself here."""
        return None

    def _written_below(self) -> Mapping[str, int]:
        found = {journal.uuid: ends_of(journal, self._lake.table) for journal in self._journals}
        self._said = [said for _, said in found.values() if said is not None]
        return {uuid: max(end.offset if end else 0 for end in ends) for uuid, ends in found.items()}


class Batches:
    """Adds each batch to the table. `said`: where the table stands. Spark calls `add` on a thread of its own, one batch
    after the other."""

    def __init__(
        self, lake: UrlLake, leases: Sequence[Lease], checkpoint: Checkpoint, said: Sequence[JournalEnd]
    ) -> None:
        self._lake = lake
        self._leases = leases
        self._checkpoint = checkpoint
        self._stands = {archive_id(end.uuid_start, end.epoch): end.offset for end in said}

    def add(self, rows: DataFrame, batch: int) -> None:
        steps = self._steps(StreamOffset.from_dict(self._checkpoint.end(batch)).positions.values())
        if not steps:
            return
        self._lake.table.require_unrestored()
        try:
            append_rows(rows.sparkSession, self._lake.messages, rows, steps)
        except TableMoved:
            for lease in self._leases:
                lease.require_now()  # the usual reason
            raise
        except (Py4JJavaError, PySparkException):
            if not self._has(steps):
                raise
        self._stands |= {step.app_id: step.version for step in steps}

    def _steps(self, ends: Iterable[JournalOffset]) -> list[Step]:
        """Return how far a batch takes each journal of which it has anything."""
        found = [(archive_id(end.uuid, end.epoch), end.offset) for end in ends]
        return [
            Step(app_id, offset, self._stands.get(app_id))
            for app_id, offset in found
            if self._stands.get(app_id) != offset
        ]

    def _has(self, steps: Sequence[Step]) -> bool:
        """Return whether the table has a batch though its commit failed: the answer was lost, or a driver that took over
        was faster with the same one."""
        log = self._lake.tables.open(self._lake.messages)
        return log is not None and all(log.transaction_version(step.app_id) == step.version for step in steps)
