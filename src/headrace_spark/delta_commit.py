"""Files that workers wrote become part of a Delta table, once, by Delta's own transaction.

Delta has no public call for that in Python, and another library beside it in one process would not know of its locks
(decision in `docs/adr/0009-files-by-workers.md`). So this module, and no other, calls Delta's Scala classes through
py4j; `jars/pom.xml` pins the version that they are of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import SparkSession

from headrace_spark.errors import LakeConflict

_DELTA: Final = "org.apache.spark.sql.delta"


def has_batch(spark: SparkSession, table: Path, query_id: str, batch: int) -> bool:
    """Whether the table has the transaction (query, batch), or a later one of that query."""
    return bool(_begun(spark, table).txnVersion(query_id) >= batch)


def append_files(spark: SparkSession, table: Path, actions: Sequence[str], query_id: str, batch: int) -> None:
    """Add files under the transaction (query, batch), which the table must not have. Raises LakeConflict.

    `actions`: `add` actions of Delta's log, whose files lie in `table`; none at all is a transaction, too.
    """
    require(table, actions)
    jvm: Any = spark._jvm
    mark = {"txn": {"appId": query_id, "version": batch, "lastUpdated": time_ns() // 1_000_000}}
    listed = jvm.java.util.ArrayList()
    for action in (json.dumps(mark), *actions):
        listed.add(jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action))
    as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    update = getattr(jvm, f"{_DELTA}.DeltaOperations$StreamingUpdate")
    transaction = _begun(spark, table)
    if transaction.txnVersion(query_id) >= batch:
        raise LakeConflict(
            f"{table} has batch {batch} of query {query_id} by now: another process is archiving"
        )
    transaction.commit(as_scala, update(append, query_id, batch, jvm.scala.Option.empty()))


def _begun(spark: SparkSession, table: Path) -> Any:
    """A transaction. Delta refuses its commit if another one with the same query has been faster."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, str(table)
    ).startTransaction()


def require(table: Path, actions: Sequence[str]) -> None:
    """A worker on another machine may have written to a disk of its own. Raises LakeConflict."""
    for action in actions:
        add = json.loads(action)["add"]
        path = table / unquote(add["path"])
        if not path.is_file() or path.stat().st_size != add["size"]:
            raise LakeConflict(
                f"a worker wrote {path}, which is not there for the driver: the lake must lie under the same path on "
                "every machine. Nothing was added to the table"
            )
