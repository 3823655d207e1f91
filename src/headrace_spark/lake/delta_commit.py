"""Files that workers wrote become part of a Delta table, once, by Delta's own transaction.

Delta has no public call for that in Python, and another library beside it in one process would not know of its locks
(decision in `docs/adr/0009-files-by-workers.md`). So this module, and no other, calls Delta's Scala classes through
py4j; `jars/pom.xml` pins the version that they are of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable as DeltaLog
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeConflict

_DELTA: Final = "org.apache.spark.sql.delta"


def has_version(table: DeltaLog, app_id: str, version: int) -> bool:
    """Return whether the table has the transaction (application, version), or a later one of that application."""
    done = table.transaction_version(app_id)
    return done is not None and done >= version


def append_files(
    spark: SparkSession,
    table: Path,
    actions: Sequence[str],
    app_id: str,
    version: int,
    instead_of: Mapping[str, str] | None = None,
    also: Mapping[str, int] | None = None,
) -> None:
    """Add files under the transaction (application, version), which the table must not have. Raises LakeConflict.

    `actions`: `add` actions of Delta's log, whose files lie in `table`; none at all is a transaction, too.
    `instead_of`: the partition whose files go in the same commit. `also`: versions of further applications, as they are.
    """
    require(table, actions)
    jvm: Any = spark._jvm
    transaction = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, str(table)
    ).startTransaction()
    # What `transaction.txnVersion` would answer, for which it rebuilds the table's state in three jobs of Spark; and that
    # it was asked: Delta refuses the commit if another one of the same application is faster.
    begun = DeltaLog(table, version=transaction.snapshot().version())
    transaction.readTxn().addOne(app_id)
    if has_version(begun, app_id, version):
        raise LakeConflict(f"{table} has version {version} of {app_id} by now: another process writes it")
    marks = [_mark(*transaction_of) for transaction_of in {**(also or {}), app_id: version}.items()]
    removed = [] if instead_of is None else _removed(begun, instead_of)
    listed = jvm.java.util.ArrayList()
    for action in (*marks, *removed, *actions):
        listed.add(jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action))
    as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    update = getattr(jvm, f"{_DELTA}.DeltaOperations$StreamingUpdate")
    mode = modes.Append() if instead_of is None else modes.Update()
    transaction.commit(as_scala, update(mode, app_id, version, jvm.scala.Option.empty()))


def _mark(app_id: str, version: int) -> str:
    return json.dumps({"txn": {"appId": app_id, "version": version, "lastUpdated": time_ns() // 1_000_000}})


def _removed(table: DeltaLog, partition: Mapping[str, str]) -> Iterator[str]:
    """Actions that take out the files of a partition."""
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
    """A worker on another machine may have written to a disk of its own. Raises LakeConflict."""
    for path, action in zip(paths_of(table, actions), actions, strict=True):
        if not path.is_file() or path.stat().st_size != json.loads(action)["add"]["size"]:
            raise LakeConflict(
                f"a worker wrote {path}, which is not there for the driver: the lake must lie under the same path on "
                "every machine. Nothing was added to the table"
            )


def paths_of(table: Path, actions: Sequence[str]) -> list[Path]:
    """The files of `add` actions."""
    return [table / unquote(json.loads(action)["add"]["path"]) for action in actions]


def remove_files(table: Path, actions: Sequence[str]) -> None:
    """Remove the files of actions that no commit has: otherwise they go with a vacuum."""
    for path in paths_of(table, actions):
        path.unlink(missing_ok=True)
