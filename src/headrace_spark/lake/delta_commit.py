"""Rows become part of a Delta table, once, by Delta's own transaction: as files that workers wrote, or written by Delta.

Delta has no public call for that in Python, and another library beside it in one process would not know of its locks
(decision in `docs/adr/0009-files-by-workers.md`). So this module, and no other, calls Delta's Scala classes through
py4j; `jars/pom.xml` pins the version that they are of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_spark.base.errors import LakeConflict, TableMoved
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.durable import SyncedTable, sync_path
from headrace_spark.lake.spark_log import delta_log
from headrace_spark.lake.table_log import Folders, TableLog, Tables, commit_name

_DELTA: Final = "org.apache.spark.sql.delta"
_NONE: Final = -1


def has_version(table: TableLog, app_id: str, version: int) -> bool:
    """Return whether the table has the transaction (application, version), or a later one of that application."""
    done = table.transaction_version(app_id)
    return done is not None and done >= version


def append_files(
    spark: SparkSession,
    table: Location,
    actions: Sequence[str],
    app_id: str,
    version: int,
    instead_of: Mapping[str, str] | None = None,
    also: Mapping[str, int] | None = None,
    tables: Tables | None = None,
) -> None:
    """Add files under the transaction (application, version), which the table must not have. Raises LakeConflict.

    `actions`: `add` actions of Delta's log, whose files lie in `table`; none at all is a transaction, too.
    `instead_of`: the partition whose files go in the same commit. `also`: versions of further applications, as they are.
    `tables`: how logs are read.
    """
    if isinstance(table, Path):
        require(table, actions)
    jvm: Any = spark._jvm
    transaction = _begun(spark, table)
    # What `transaction.txnVersion` would answer, for which it rebuilds the table's state in three jobs of Spark; and that
    # it was asked: Delta refuses the commit if another one of the same application is faster.
    begun = (tables or Folders()).open(table, int(transaction.snapshot().version()))
    assert begun is not None  # the transaction has begun on it
    transaction.readTxn().addOne(app_id)
    if has_version(begun, app_id, version):
        raise LakeConflict(f"{table} has version {version} of {app_id} by now: another process writes it")
    marks = [_mark(*transaction_of) for transaction_of in {**(also or {}), app_id: version}.items()]
    removed = [] if instead_of is None else _removed(begun, instead_of)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Append() if instead_of is None else modes.Update()
    _commit(jvm, transaction, _listed(jvm, (*marks, *removed, *actions)), mode, app_id, version)


@dataclass(frozen=True)
class Step:
    """Takes one application of Delta's transactions from version `after`, None being none, to `version`."""

    app_id: str
    version: int
    after: int | None


def append_rows(spark: SparkSession, table: Location, rows: DataFrame, steps: Sequence[Step]) -> None:
    """Add rows, written by Delta, in one commit that takes each application a step, if the table stands where all of them
    begin. Raises TableMoved.

    Of two drivers that go on from the same place one commits; the other finds the table elsewhere, before it writes or,
    by Delta's own check, when it commits. So no lock has to hold.
    """
    jvm: Any = spark._jvm
    transaction = _begun_at(spark, table, steps)
    actions = _listed(jvm, [_mark(step.app_id, step.version) for step in steps])
    converters = jvm.scala.jdk.javaapi.CollectionConverters
    actions.addAll(converters.asJava(transaction.writeFiles(rows._jdf)))
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    _commit(jvm, transaction, actions, mode, steps[0].app_id, steps[0].version)


def append_marks(spark: SparkSession, table: Location, step: Step, also: Mapping[str, int]) -> None:
    """Go a step without any rows, and set the versions of further applications. Raises TableMoved.

    A compare-and-set as `append_rows` is one.
    """
    jvm: Any = spark._jvm
    transaction = _begun_at(spark, table, [step])
    marks = _listed(jvm, [_mark(*each) for each in {**also, step.app_id: step.version}.items()])
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    _commit(jvm, transaction, marks, mode, step.app_id, step.version)


def rename_files(spark: SparkSession, table: Path, names: Mapping[str, str]) -> None:
    """Give files other names, in one commit that changes no row: from the path in their action to the one that is to be
    there. The old names go with a vacuum."""
    transaction = _begun(spark, table)
    files = DataFrame(transaction.snapshot().allFiles().toDF(), spark)
    columns = ("path", "partitionValues", "size", "modificationTime", "stats")
    actions = list[str]()
    for file in files.where(F.col("path").isin(list(names))).select(*columns).toArrow().to_pylist():
        old, values = file["path"], {"partitionValues": dict(file["partitionValues"]), "dataChange": False}
        add = file | values | {"path": names[old]}
        gone = {"path": old, "deletionTimestamp": time_ns() // 1_000_000, "extendedFileMetadata": True}
        actions += json.dumps({"remove": gone | values | {"size": file["size"]}}), json.dumps({"add": add})
        copy = table / unquote(names[old])
        shutil.copy2(table / unquote(old), copy)
        sync_path(copy)  # before the log names it in the place of the other one
    jvm: Any = spark._jvm
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Update()
    _commit(jvm, transaction, _listed(jvm, actions), mode, "headrace-rename", 0)
    SyncedTable(table).sync()


def _begun_at(spark: SparkSession, table: Location, steps: Sequence[Step]) -> Any:
    """Return a transaction of Delta's on a table that stands where the steps begin. Raises TableMoved."""
    transaction = _begun(spark, table)
    for step in steps:
        # And asked, so that Delta refuses the commit if it changes.
        found = int(transaction.txnVersion(step.app_id))
        if found != (_NONE if step.after is None else step.after):
            raise TableMoved(
                f"{table} is at version {found} of {step.app_id}, not at {step.after}: another process writes it"
            )
    return transaction


def _begun(spark: SparkSession, table: Location) -> Any:
    """Return a transaction of Delta's on the newest version of a table.

    Delta lists the whole log first, which in a folder takes it seconds after 100 000 commits, unless it is told which
    version it begins on. So where the version that it knows is still the last one in the folder, it is told that one.
    Should another process commit in this moment, Delta finds out when it commits.
    """
    jvm: Any = spark._jvm
    log = delta_log(spark, table)
    known = log.unsafeVolatileSnapshot()
    if isinstance(table, Path) and _is_last(table, known):
        return log.startTransaction(jvm.scala.Option.empty(), jvm.scala.Option.apply(known))
    return log.startTransaction()


def _is_last(table: Path, known: Any) -> bool:
    """Return whether the last commit of a folder's log is that of a version of Delta's: made when that was, and none
    behind it."""
    version = int(known.version())
    try:
        made = (table / commit_name(version)).stat()
    except FileNotFoundError:
        return False
    same = made.st_mtime_ns // 1_000_000 == int(known.logSegment().lastCommitFileModificationTimestamp())
    return same and not (table / commit_name(version + 1)).exists()


def _listed(jvm: Any, actions: Iterable[str]) -> Any:
    """Return Delta's own objects for actions, in a list of Java's."""
    listed = jvm.java.util.ArrayList()
    for action in actions:
        listed.add(jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action))
    return listed


def _commit(jvm: Any, transaction: Any, actions: Any, mode: Any, app_id: str, version: int) -> None:
    as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
    update = getattr(jvm, f"{_DELTA}.DeltaOperations$StreamingUpdate")
    transaction.commit(as_scala, update(mode, app_id, version, jvm.scala.Option.empty()))


def _mark(app_id: str, version: int) -> str:
    return json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": time_ns() // 1_000_000}})


def _removed(table: TableLog, partition: Mapping[str, str]) -> Iterator[str]:
    """Yield the actions that take out the files of a partition."""
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if all(row[f"partition.{name}"] == value for name, value in partition.items()):
            remove = {
                "path": row["path"],
                "deletionTimestamp": time_ns() // 1_000_000,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": dict(partition),
                "size": row["size_bytes"],
            }
            yield json.dumps({"remove": remove})


def require(table: Path, actions: Sequence[str]) -> None:
    """Check that the files of the actions are here: a worker on another machine may have written to a disk of its own.
    Raises LakeConflict."""
    for path, action in zip(paths_of(table, actions), actions, strict=True):
        if not path.is_file() or path.stat().st_size != json.loads(action)["add"]["size"]:
            raise LakeConflict(
                f"a worker wrote {path}, which is not there for the driver: the lake must lie under the same path on "
                "every machine. Nothing was added to the table"
            )


def paths_in(actions: Sequence[str]) -> list[str]:
    """Return the paths of `add` actions, as they are there."""
    return [json.loads(action)["add"]["path"] for action in actions]


def paths_of(table: Path, actions: Sequence[str]) -> list[Path]:
    """Return the files of `add` actions."""
    return [table / unquote(json.loads(action)["add"]["path"]) for action in actions]


def remove_files(table: Path, actions: Sequence[str]) -> None:
    """Remove the files of actions that no commit has: otherwise they go with a vacuum."""
    for path in paths_of(table, actions):
        path.unlink(missing_ok=True)
