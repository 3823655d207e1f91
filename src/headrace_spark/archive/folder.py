"""An archive into a folder that driver and workers see: the workers that read the journal write the files, and the
driver adds them to the table (ADR 0009).

Where somebody has switched on more of Delta than this job knows, Spark writes the rows of these files anew; that is
noticed from one batch to the next. Start-up refuses a checkpoint that is ahead of the table (the table was replaced or
restored), and two archives of one journal into one lake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deltalake import DeltaTable as DeltaLog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.archive.position import ends_of
from headrace_spark.archive.settings import JOB, ArchiveSettings, started, stream
from headrace_spark.base.errors import LakeConflict, TableMoved
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.delta_commit import Step, append_files, append_rows, has_version, remove_files
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import rows_of_files
from headrace_spark.lake.messages import archive_id
from headrace_spark.lake.table_files import CODEC, CODEC_KEY, rows_in
from headrace_spark.lake.upkeep import FileMarks, Upkeep
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.file_source import FORMAT
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.ranges import JournalOffset, StreamOffset


class FolderTarget:
    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, journals: Sequence[LogReader], lake: Path
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._journals = journals
        self._lake = Lake(lake)
        self._checkpoint = self._lake.checkpoint(JOB, checkpoint_name(settings.consumer, journals))
        self._written: Mapping[str, int] = {}
        self._is_begun = False
        self._added = Added(self._lake, self._checkpoint)

    @property
    def owner(self) -> str:
        return self._lake.owner(JOB, self._lake.messages)

    @contextmanager
    def held(self) -> Iterator[None]:
        with ExitStack() as held:
            for uuid in sorted(journal.uuid for journal in self._journals):
                held.enter_context(self._lake.archiving(uuid))
            yield

    def require_held(self) -> None:
        self._lake.require_held()

    def open(self) -> Mapping[str, int]:
        self._written = {
            journal.uuid: written_below(journal, self._lake, self._checkpoint) for journal in self._journals
        }
        self._lake.table.create(self._spark)
        return self._written

    def upkeep(self) -> Callable[[], None]:
        marks = FileMarks(self._lake.checkpoints)
        return Upkeep(self._spark, self._settings.upkeep, marks, [self._lake.messages]).tend

    def start(self) -> StreamingQuery:
        """Begin, or begin again: where the table is by then may be due to somebody else."""
        if self._is_begun:
            self._lake.require_held()
            self.open()
        self._checkpoint.make_ready()
        self._is_begun = True
        self._added.begin(self._stands())
        files = (
            stream(self._spark, self._settings, self._journals, FORMAT, self.owner, self._written)
            .option("table", str(self._lake.messages))
            .option("writtenBelow", json.dumps(self._written))
            .option("codec", self._spark.conf.get(CODEC_KEY) or CODEC)
            .load()
        )
        writer = files.writeStream.foreachBatch(self._added.batch)
        return started(writer, self._settings, str(self._checkpoint.path))

    def _stands(self) -> Mapping[str, int]:
        """Return how far batches have said that the table has the journals, by Delta's applications."""
        ends = (self._lake.table.archived(journal.uuid, journal.epoch) for journal in self._journals)
        return {archive_id(end.uuid_start, end.epoch): end.offset for end in ends if end is not None}

    def rows(self, batch: int) -> int | None:
        return self._added.rows.pop(batch, None)


def checkpoint_name(consumer: str, journals: Sequence[LogReader]) -> str:
    """Return the name of the checkpoint: of several shards their own, for what was one journal before may be divided into
    them, and the table says all that the old checkpoint does."""
    return consumer if len(journals) == 1 else f"{consumer}-{journals[0].uuid}"


def written_below(journal: LogReader, lake: Lake, checkpoint: Checkpoint) -> int:
    """Return the offset below which the table has every message of the journal, 0 if it has none.

    Raises LakeConflict, ForeignOffset.
    """
    checkpoint.require_whole("Remove it, and the archive goes on from the table")
    last, said = ends_of(journal, lake.table)
    written = max(end.offset if end else 0 for end in (last, said))
    require_together(lake, checkpoint, journal.uuid, None if said is None else written)
    return written


def require_together(lake: Lake, checkpoint: Checkpoint, uuid: str, written: int | None) -> None:
    """Check that what the checkpoint has passed is in the table. `written`: None if only batches of an older headrace
    are in it.

    Raises LakeConflict, ForeignOffset.
    """
    passed, done = checkpoint.passed(), checkpoint.last_batch
    if passed is None:
        return
    positions = StreamOffset.from_dict(passed).positions
    position = positions.get(uuid, JournalOffset(uuid, 0, 0))
    if written is None and len(positions) == 1:
        position = next(iter(positions.values()))
        batch = lake.table.last_batch(str(checkpoint.query_id))
        is_ahead = done is not None and (batch is None or batch < done)
    else:
        is_ahead = position.offset > (written or 0)
    if is_ahead:
        raise LakeConflict(
            f"checkpoint {checkpoint.path} has read up to offset {position.offset}, but table {lake.messages} does not "
            f"hold that: it has the journal up to offset {written or 0}. The table was removed, replaced or restored "
            "from an older copy. Remove the checkpoint too, and the archive goes on from the table"
        )


class Added:
    """Puts the files of each batch into the table. Spark calls `batch` on a thread of its own, one batch after the
    other."""

    def __init__(self, lake: Lake, checkpoint: Checkpoint) -> None:
        self._lake = lake
        self._checkpoint = checkpoint
        self._synced = SyncedTable(lake.messages)
        self._stands: dict[str, int] = {}
        self.rows: dict[int, int] = {}
        """By batch; Spark sees files in the place of rows."""

    def begin(self, stands: Mapping[str, int]) -> None:
        """Begin a query. `stands`: how far the table has the journals, by Delta's applications."""
        self._stands = dict(stands)
        self._synced = SyncedTable(self._lake.messages)

    def batch(self, files: DataFrame, batch: int) -> None:
        self._lake.table.require_unrestored()
        steps = self._steps(StreamOffset.from_dict(self._checkpoint.end(batch)).positions.values())
        if steps:
            actions = [row.action for row in files.collect()]  # the workers write them now
            self._append(files.sparkSession, actions, steps, batch)
            self.rows[batch] = sum(rows_in(action) for action in actions)
            self._stands |= {step.app_id: step.version for step in steps}
        self._synced.sync()  # before Spark calls the batch finished, and the consumer's position moves

    def _steps(self, ends: Iterable[JournalOffset]) -> list[Step]:
        """Return how far a batch takes each journal of which the table lacks anything. Raises TableMoved where it is not
        where this process left it: rows of batches that are done may be missing, or there already."""
        table = DeltaLog(self._lake.messages)
        steps = []
        for end in ends:
            app_id = archive_id(end.uuid, end.epoch)
            if has_version(table, app_id, end.offset):
                continue
            found, known = table.transaction_version(app_id), self._stands.get(app_id)
            if found != known:
                raise TableMoved(
                    f"{self._lake.messages} is at offset {found} of {app_id}, not at {known}: it was restored from an "
                    "older copy, or another process writes it"
                )
            steps.append(Step(app_id, end.offset, found))
        return steps

    def _append(self, spark: SparkSession, actions: list[str], steps: list[Step], batch: int) -> None:
        """Add all journals' rows of a batch in one commit: a batch is in the table or it is not."""
        table: Path = self._lake.messages
        first = steps[0]
        if self._lake.table.is_plain():
            also = {step.app_id: step.version for step in steps[1:]}
            also[str(self._checkpoint.query_id)] = batch  # by which an older headrace goes on
            append_files(spark, table, actions, first.app_id, first.version, also=also)
            return
        rows = rows_of_files(spark, table, actions, MESSAGES)
        if len(steps) > 1:
            append_rows(spark, table, rows, steps)
        else:
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", first.app_id).option("txnVersion", first.version).save(str(table))
        remove_files(table, actions)
