"""Rows that cannot be sent, put aside with the reason, so that the others of their batch go on.

A row is put aside if no broker would take it (a wildcard in the topic, QoS 0), or if this one refuses it for good (a
topic that the credentials do not allow, a packet too large). The rows of a batch are added in one transaction (query,
batch), after the last of the others is acknowledged: a batch that is done again puts each aside once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from headrace_spark.base.lake_url import Location
from headrace_spark.devices.outgoing import PRODUCER, SEQUENCE
from headrace_spark.devices.sink import SinkOptions, publish
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_log import Tables
from headrace_spark.lake.tables import DEAD_LETTERS

_MEANT: Final[Mapping[str, Callable[[], Column]]] = {
    "payload": lambda: F.lit(b""),
    "qos": lambda: F.lit(1),
    "retain": lambda: F.lit(False),
    "user_properties": F.array,
}
"""What a message has where its row says nothing; made late, since a column needs a session."""
_FOUND: Final = f"{PRODUCER} string, {SEQUENCE} long, reason string"


@dataclass(frozen=True)
class Sender:
    """What a task does with its rows: publish them, and return those that cannot be."""

    options: SinkOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        aside: list[dict[str, Any]] = []
        publish(
            self.options,
            batches,
            self.options.producer,
            0,
            lambda producer, sequence, reason: aside.append(
                {PRODUCER: producer, SEQUENCE: sequence, "reason": reason}
            ),
        )
        kinds = {PRODUCER: pa.string(), SEQUENCE: pa.int64(), "reason": pa.string()}
        yield pa.RecordBatch.from_pylist(aside, pa.schema(list(kinds.items())))


class DeadLetters:
    """The table `dead_letters` of one lake."""

    def __init__(self, lake: Location, tables: Tables | None = None) -> None:
        self._table = LakeTable(lake, DEAD_LETTERS, tables)

    @property
    def path(self) -> Location:
        return self._table.path

    def publish(self, rows: DataFrame, options: SinkOptions, query: str, batch: int) -> int:
        """Publish the rows of a batch, which have producer and sequence; -> how many of them were put aside.

        Raises BrokerRefused, BrokerUnreachable, LakeConflict.
        """
        aside = rows.mapInArrow(Sender(options), _FOUND).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = aside.count()  # the rows leave now
            if count:
                self._add(rows.join(aside, [PRODUCER, SEQUENCE]), query, batch)
            return count
        finally:
            aside.unpersist()

    def _add(self, rows: DataFrame, query: str, batch: int) -> None:
        self._table.create()
        today = F.current_date().alias("date")
        columns = [_as_meant(field) for field in DEAD_LETTERS.columns if field.name != "date"]
        self._table.append(rows.select(*columns, today), f"dead-letters-{query}", batch)


def _as_meant(field: StructField) -> Column:
    """Return a column of a row as its message would have had it: what a row need not say is null in the outbox."""
    meant = _MEANT.get(field.name)
    given = F.col(field.name)
    return given if meant is None else F.coalesce(given, meant().cast(field.dataType)).alias(field.name)
