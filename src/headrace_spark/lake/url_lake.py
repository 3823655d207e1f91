"""A lake behind a URL: Delta tables that Spark reads and writes, and a few small files that it keeps beside them.

    <lake>/messages                              Delta table (`headrace_spark.lake.messages`)
    <lake>/_checkpoints/<journal uuid>.lease     who archives that journal into this lake
    <lake>/_checkpoints/<job>.lease              who runs that job on this lake
    <lake>/_checkpoints/upkeep-<table>           when it was last compacted and vacuumed: the file's time

There is no checkpoint of Spark's: how far a job is stands in the table itself, as the version of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeUnreachable
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.base.object_store import LOG_STORE, LOG_STORE_KEY
from headrace_spark.base.scratch import Scratch
from headrace_spark.lake.hadoop_files import HadoopFiles
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.lease import BEAT_S, LEASE_S, Lease
from headrace_spark.lake.messages import MessagesTable
from headrace_spark.lake.notes import UrlNotes
from headrace_spark.lake.spark_log import SparkTables
from headrace_spark.lake.tables import TableDefinition


class UrlLake:
    def __init__(self, spark: SparkSession, root: LakeUrl) -> None:
        self.root = root
        self.messages = root / "messages"
        self.tables = SparkTables(spark)
        self.table = MessagesTable(self.messages, self.tables)
        self.files = HadoopFiles(spark)
        self.notes = UrlNotes(self.files, root / "_checkpoints")
        self.spark = spark
        self._checkpoints = root / "_checkpoints"
        self._lease: Lease | None = None
        self.scratch = Path()
        """A folder of this process, while the lake is held."""

    def table_of(self, definition: TableDefinition) -> LakeTable:
        return LakeTable(self.root, definition, self.tables, self.scratch)

    @contextmanager
    def holding(self, job: str) -> Iterator[None]:
        """Hold the tables of one job, of which only one process may run. Raises LakeConflict, LakeUnreachable."""
        self.require_safe()
        doing = f"running job {job} on {self.root}"
        lease = Lease(self.files, self._checkpoints / f"{job}.lease", doing, LEASE_S, BEAT_S)
        with Scratch(job) as scratch, lease.held():
            self._lease, self.scratch = lease, scratch
            yield

    def require_held(self) -> None:
        """Check that this process still holds the lake. Raises LakeConflict if somebody else does by now."""
        if self._lease is not None:
            self._lease.require()

    def require_safe(self) -> None:
        """Raise LakeUnreachable unless two drivers can never write the same version of a table.

        Delta's log stores see to that elsewhere than in S3, where ours needs a server that knows `If-None-Match`.
        """
        if self.root.scheme != "s3a" or self.spark.conf.get(LOG_STORE_KEY, "") != LOG_STORE:
            return
        if not self.files.keeps_the_first(self._checkpoints / f"trial-{uuid4()}"):
            raise LakeUnreachable(
                f"{self.root}: this S3 server overwrites an object although it is told not to (If-None-Match), so two "
                "drivers could lose each other's rows. Use a server that knows conditional writes, or another log store "
                f"of Delta's by {LOG_STORE_KEY}"
            )

    def lease(self, uuid: str) -> Lease:
        """Return the lease of whoever archives that journal into this lake."""
        doing = f"archiving journal {uuid} into {self.root}"
        return Lease(self.files, self._checkpoints / f"{uuid}.lease", doing, LEASE_S, BEAT_S)

    def owner(self, job: str, table: Location) -> str:
        """Return the owner of a consumer's position, which is that of a table: the same wherever the lake is moved
        to."""
        log = self.tables.open(table)
        return f"{job}:{'' if log is None else log.metadata().id} in {table}"

    def marks(self) -> UrlMarks:
        return UrlMarks(self.files, self._checkpoints)


class UrlMarks:
    """Remembers times as those of small files behind a URL. Each file is looked at once: one driver at a time tends a
    lake."""

    def __init__(self, files: HadoopFiles, folder: LakeUrl) -> None:
        self._files = files
        self._folder = folder
        self._since: dict[str, float | None] = {}
        """On the monotonic clock."""

    def age_s(self, name: str) -> float | None:
        if name not in self._since:
            found = self._files.age_s(self._folder / f"upkeep-{name}")
            self._since[name] = None if found is None else monotonic() - found
        since = self._since[name]
        return None if since is None else monotonic() - since

    def touch(self, name: str) -> None:
        self._files.write(self._folder / f"upkeep-{name}", _TENDED)
        self.touch_here(name)

    def touch_here(self, name: str) -> None:
        """Do `touch` for this process alone."""
        self._since[name] = monotonic()


_TENDED: Final = "The time of this file is when the table was tended last.\n"
