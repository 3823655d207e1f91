"""One Delta table of a lake, made from its definition and checked against it."""

from __future__ import annotations

import json
from pathlib import Path

from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLog
from deltalake import Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from headrace_spark.errors import LakeConflict
from headrace_spark.lake import unreadable
from headrace_spark.tables import TableDefinition


class LakeTable:
    """`<lake>/<name>`. What is asked about it is read from the Delta log, without Spark."""

    def __init__(self, lake: Path, definition: TableDefinition) -> None:
        self.definition = definition
        self.path = lake.absolute() / definition.name

    def log(self) -> DeltaLog | None:
        """None where there is no such table. Raises LakeConflict if it has another schema than its definition."""
        try:
            log = DeltaLog(self.path)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise unreadable(self.path, error) from None
        found = _types(StructType.fromJson(json.loads(log.schema().to_json())))
        expected = _types(self.definition.columns)
        different = {name for name, kind in expected.items() if found.get(name) != kind}
        if not self.definition.grows:
            different |= found.keys() - expected.keys()
        if different:
            raise LakeConflict(
                f"table {self.path} has another schema than this headrace writes: {', '.join(sorted(different))}. "
                "Use another lake, or move the table away"
            )
        return log

    def columns(self) -> dict[str, str]:
        """Column -> type, as Spark writes types; empty where there is no table."""
        log = self.log()
        return {} if log is None else _types(StructType.fromJson(json.loads(log.schema().to_json())))

    def last_version(self, app_id: str) -> int | None:
        """The last transaction of that application in the table."""
        log = self.log()
        return None if log is None else log.transaction_version(app_id)

    def rows_added(self) -> int:
        """Rows that the last commit added."""
        log = self.log()
        metrics = log.history(1)[0]["operationMetrics"] if log is not None else {}
        return int(metrics["numOutputRows"])

    def create(self) -> None:
        """Create the table if it is missing, without Spark. Raises LakeConflict."""
        if self.log() is not None:
            return
        what = self.definition
        DeltaLog.create(
            self.path,
            Schema.from_json(what.columns.json()),
            mode="ignore",
            partition_by=list(what.partitioned_by),
            description=what.about,
            configuration={"delta.dataSkippingStatsColumns": ",".join(what.statistics)},
        )

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(self.path))

    def delta(self, spark: SparkSession) -> DeltaTable:
        return DeltaTable.forPath(spark, str(self.path))

    def append(self, rows: DataFrame, app_id: str, version: int) -> None:
        """Add rows once: a transaction that the table has already is skipped by Delta."""
        writer = rows.write.format("delta").mode("append")
        if self.definition.grows:
            writer = writer.option("mergeSchema", "true")
        self._once(writer, app_id, version)

    def replace(self, rows: DataFrame, where: str, app_id: str, version: int) -> None:
        """Put rows in the place of those that `where` is true for, once."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        self._once(writer, app_id, version)

    def _once(self, writer: DataFrameWriter, app_id: str, version: int) -> None:
        writer.option("txnAppId", app_id).option("txnVersion", version).save(str(self.path))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}
