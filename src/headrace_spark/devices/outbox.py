"""The outbox: rows that are to become messages, kept in a Delta table before the first one leaves.

A repeated micro-batch may come out differently: cut into other partitions, in another order, even with other rows. What
was sent of the first attempt could then not be told from what was not. So each batch is written to the outbox first, in
one transaction (query id, batch id), with a producer and a sequence for every row; what is published is what lies there.
After kill -9 anywhere the batch is found in the outbox and published again from its beginning, and the broker keeps out
what it has. Rows of one topic have one producer, so they keep their order: that of the commits which brought them, within
a commit that of its files, within a file that of its rows. The producers of a batch are those of the run
that kept it: where the whole lake is put back from an older copy, checkpoint, tables and all, nothing in it tells which
numbers are used up, and other rows under them would be taken for repeats.

A row that no broker would take, or that this one refuses for good, is put aside, with the reason; the others go on.

    <lake>/outbox        columns of `outgoing` + producer, sequence, query, batch; partitioned by query and batch
    <lake>/dead_letters  what was put aside (`headrace_spark.lake.tables`)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.devices.dead_letters import DeadLetters
from headrace_spark.devices.outgoing import COLUMNS, PRODUCER, SEQUENCE, check_columns
from headrace_spark.devices.plans import AnyPlans
from headrace_spark.devices.sink import FORMAT, ROW_BITS, SinkOptions
from headrace_spark.lake.messages import KEPT_LOG
from headrace_spark.lake.own_columns import require_own_columns
from headrace_spark.lake.restored import WRITTEN, Restores
from headrace_spark.lake.table_log import Folders, Tables

KEPT_BATCHES: Final = 100
"""So many finished batches of a query stay readable; older ones are deleted now and then."""
_RUN_BYTES: Final = 6
_PAIRS: Final = ArrayType(StructType([StructField("name", StringType()), StructField("value", StringType())]))
_MESSAGE: Final = {
    "topic": StringType(),
    "payload": BinaryType(),
    "qos": ByteType(),
    "retain": BooleanType(),
    "message_expiry_s": LongType(),
    "payload_format_indicator": ByteType(),
    "content_type": StringType(),
    "response_topic": StringType(),
    "correlation_data": BinaryType(),
    "user_properties": _PAIRS,
}
_OWN: Final = {PRODUCER: StringType(), SEQUENCE: LongType(), "query": StringType(), "batch": LongType()}
OUTBOX: Final = StructType(
    [StructField(name, kind) for name, kind in (_MESSAGE | _OWN | {"slot": IntegerType()}).items()]
)

_PLACE: Final = ("file_at", "block_at", "row_at")


@dataclass(frozen=True)
class Outbox:
    """The outbox of one lake: says where the rows are kept and where they go. `connections` tasks publish at a time."""

    table: Location
    address: BrokerAddress
    connections: int = 2
    patience_s: float = 60.0
    tables: Tables = field(default_factory=Folders)
    """How logs are read."""
    run: str = field(default_factory=lambda: token_hex(_RUN_BYTES))
    """A name of this run, no other one's, for the producers of what it keeps."""

    def create(self, spark: SparkSession) -> None:
        """Make the table if it is missing. Raises LakeConflict if it lacks a column of ours."""
        builder = DeltaTable.createIfNotExists(spark).location(str(self.table)).addColumns(OUTBOX)
        for key, value in KEPT_LOG.items():
            builder = builder.property(key, value)
        builder.partitionedBy("query", "batch").execute()
        log = self.tables.open(self.table)
        assert log is not None  # it was made now
        require_own_columns(self.tables, self.table, log, OUTBOX)

    def stage(self, frame: DataFrame, query: str, batch: int, files: Sequence[str] = ()) -> None:
        """Keep a batch; nothing happens if it was kept before. `files`: as `numbered` takes them."""
        rows = numbered(frame, query, batch, self.connections, self.run, files)
        writer = rows.write.format("delta").mode("append")
        writer.option("txnAppId", query).option("txnVersion", batch).save(str(self.table))

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.table.parent, self.tables)

    def publish(self, spark: SparkSession, query: str, batch: int) -> int:
        """Send a kept batch to the broker; returns when it has all but those that are put aside: how many these are.

        Raises BrokerRefused, BrokerUnreachable.
        """
        kept = spark.read.format("delta").load(str(self.table))
        rows = kept.where((F.col("query") == query) & (F.col("batch") == batch)).select(*OUTBOX.names)
        options = SinkOptions(self.address, query, self.patience_s, 0.0)
        return self.dead_letters.publish(in_order(rows, self.connections), options, query, batch)

    def forget(self, spark: SparkSession, query: str, before: int) -> None:
        """Delete the batches of a query below `before`: whole partitions, so no file is rewritten."""
        done = (F.col("query") == query) & (F.col("batch") < before)
        DeltaTable.forPath(spark, str(self.table)).delete(done)

    def last_batch(self, query: str) -> int | None:
        """Return the last batch of a query that was kept; None too where there is no outbox yet. Raises
        LakeConflict."""
        log = self.tables.open(self.table)
        return None if log is None else log.transaction_version(query)

    def restores(self) -> Restores:
        """Return what misses rows that Delta's RESTORE takes out of the table."""
        return Restores(self.tables, self.table, WRITTEN)

    def require_unrestored(self, restores: Restores) -> None:
        """Raise LakeConflict if Delta's RESTORE has taken rows out of the table that are still missing: it says
        nevertheless that they are kept, so they would never leave."""
        before = restores.lost()
        if before is not None:
            raise LakeConflict(
                f"Delta's RESTORE has taken rows out of table {self.table}, which would never leave. To have them back: "
                f"RESTORE TABLE delta.`{self.table}` TO VERSION AS OF {before}. Or use another lake, and every row is "
                "published again"
            )

    def batches(self, plans: AnyPlans | None = None) -> Callable[[DataFrame, int], None]:
        """Return what `foreachBatch` is given: keep the batch, publish it. `plans`: of a query over a Delta table."""
        restores = self.restores()

        def each(frame: DataFrame, batch: int) -> None:
            self.require_unrestored(restores)
            spark = frame.sparkSession
            query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
            if plans is not None:
                plans.add(batch)
            self.stage(frame, query, batch, () if plans is None else plans.files(batch))
            if plans is not None:
                plans.kept(batch)
            aside = self.publish(spark, query, batch)
            if aside:
                print(f"{aside} rows were put aside in {self.dead_letters.path}", file=sys.stderr, flush=True)
            if batch and batch % KEPT_BATCHES == 0:
                self.forget(spark, query, batch)
            if plans is not None:
                plans.done(batch)

        return each


def send(
    rows: DataFrame, address: BrokerAddress, connections: int, patience_s: float, rate: float = 0.0
) -> None:
    """Publish rows that have producer, sequence and slot: one connection a slot, rows in the order of sequence.

    `rate`: messages a second at most, by all connections together; 0: no limit.
    """
    writer = (
        in_order(rows, connections)
        .drop("slot")
        .write.format(FORMAT)
        .option("url", address.url)
        .option("patience", patience_s)
        .mode("append")
    )
    if address.username is not None:
        writer = writer.option("username", address.username)
    if address.password is not None:
        writer = writer.option("password", address.password.decode())
    if address.ca_file is not None:
        writer = writer.option("caFile", address.ca_file)
    if rate:
        writer = writer.option("rate", rate / connections)
    writer.save()


def in_order(rows: DataFrame, connections: int) -> DataFrame:
    """Return rows that have producer, sequence and slot, as tasks publish them."""
    spread = rows.repartitionById(connections, F.col("slot") % connections)
    return spread.sortWithinPartitions(PRODUCER, SEQUENCE)


def numbered(
    frame: DataFrame, query: str, batch: int, connections: int, run: str, files: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of a batch with all columns of OUTBOX: the slot by topic, the sequence by place in the slot, the
    producer by query, run and slot.

    Rows are in the order of the frame. `files`: the names of those that it is read from, in the order that their rows
    are to have.
    """
    check_columns(frame.schema)
    slot = F.spark_partition_id()
    row = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
    return (
        _placed(frame, files)
        .repartition(connections, "topic")
        .sortWithinPartitions(*_PLACE)
        .select(*COLUMNS, slot.alias("slot"), row.alias("row"))
        .select(
            *COLUMNS,
            F.concat(F.lit(f"{query}/{run}/"), F.col("slot")).alias(PRODUCER),
            (F.lit(batch << ROW_BITS) + F.col("row")).alias(SEQUENCE),
            F.lit(query).alias("query"),
            F.lit(batch).cast("long").alias("batch"),
            F.col("slot"),
        )
    )


def _placed(frame: DataFrame, files: Sequence[str]) -> DataFrame:
    """Return the rows with COLUMNS and with _PLACE, which says in what order they are to leave."""
    columns = [_kept(frame, name).alias(name) for name in COLUMNS]
    row = F.monotonically_increasing_id().alias("row_at")
    unplaced = frame.select(*columns, F.lit(0).alias("file_at"), F.lit(0).alias("block_at"), row)
    if not files:
        return unplaced
    name, block = F.input_file_name().alias("file"), F.expr("input_file_block_start()").alias("block_at")
    try:
        read = frame.select(*columns, name, block, row)
    except AnalysisException:  # deletion vectors: Delta reads each version by itself, one after the other
        return unplaced
    places = pa.table({"name": list(files), "file_at": range(len(files))})
    known = F.broadcast(frame.sparkSession.createDataFrame(places))
    # A name is in it as in a URL, in which "+" stands for itself.
    base = F.url_decode(F.replace(F.substring_index("file", "/", -1), F.lit("+"), F.lit("%2B")))
    placed = read.withColumn("name", base).join(known, "name", "left")
    return placed.select(*COLUMNS, *_PLACE)


def _kept(frame: DataFrame, name: str) -> Column:
    """Return a column of the outbox. A number that is too large for it is kept as -1, which is no message, either."""
    given, kind = F.col(name) if name in frame.columns else F.lit(None), _MESSAGE[name]
    if not isinstance(kind, ByteType):
        return given.cast(kind)
    return F.when(given.between(-128, 127), given.cast(kind)).when(given.isNotNull(), F.lit(-1).cast(kind))
