"""`headrace-mqtt`: a DataFrame to devices as MQTT 5 messages, a Python Data Source writer for batches and streams.

    frame.write.format("headrace-mqtt").option("url", "tcp://broker:1883").mode("append").save()
    frame.writeStream.format("headrace-mqtt").option("url", ...).option("checkpointLocation", ...).start()

Columns: `outgoing`. Each row is stored by the broker once, however often a task, a batch or the whole query runs again,
as long as it is the same row under the same number. The number is (batch, row in its partition), the producer is (query,
partition), unless the columns `producer` and `sequence` give both. A stream whose source or plan may cut a repeated
batch into other partitions is not exactly once here: `outbox` keeps the rows first. Options:

url              tcp://host:port or tls://host:port
username         and `password`
caFile           PEM of who signed the broker's certificate, on every worker; default: the system's
producer         batches: a name for this data; the same data under the same name is published once. Default: a new one
patience         seconds without an acknowledgement after which a task fails; default 60
rate             messages a second that a task sends at most; default: no limit
"""

# ruff: noqa: N802  (the names of methods are Spark's)

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.base.errors import BadOption, BadRow
from headrace_spark.devices.outgoing import PRODUCER, SEQUENCE, check_columns, message_of, rows_of
from headrace_spark.devices.publisher import Outgoing, Publisher

FORMAT: Final = "headrace-mqtt"
ROW_BITS: Final = 32
"""A sequence is `batch << ROW_BITS | row`."""
PutAside = Callable[[str, int, str], None]
"""Is told of a row that cannot be sent: its producer, its sequence, and why."""
_NAMES: Final = ("url", "username", "password", "caFile", "producer", "patience", "rate")
_PRODUCER_MAX: Final = 40  # a partition is added, and the broker takes 128 bytes
_SPARKS_OWN: Final = ("checkpointlocation", "path", "queryname")
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class SinkOptions:
    address: BrokerAddress
    producer: str
    patience_s: float
    rate: float

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read the options of the sink. Raises BadOption."""
        values = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in _NAMES}
        for name in values:
            if name not in known and name not in _SPARKS_OWN:
                raise BadOption(name, values[name], f"no such option; there are {', '.join(_NAMES)}")
        address = BrokerAddress(
            values.get("url", ""),
            values.get("username"),
            values["password"].encode() if "password" in values else None,
            values.get("cafile"),
        )
        address.check()
        if len(values.get("producer", "")) > _PRODUCER_MAX:
            raise BadOption("producer", values["producer"], f"{_PRODUCER_MAX} characters at most")
        return cls(
            address,
            values.get("producer") or uuid4().hex,
            _above_0("patience", values.get("patience", "60")),
            _above_0("rate", values["rate"]) if "rate" in values else 0.0,
        )


class MqttDataSource(DataSource):
    """The sink, which is registered with a session as `headrace-mqtt`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise BadOption("mode", "overwrite", "messages cannot be taken back: use append")
        check_columns(schema)
        return BatchWriter(SinkOptions.parse(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        check_columns(schema)
        return StreamWriter(SinkOptions.parse(self.options))


@dataclass
class Published(WriterCommitMessage):
    """What a task has done: rows, and how many PUBLISH packets it took."""

    rows: int
    sent: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch to devices; made on the driver, used on workers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        partition = _context().partitionId()
        return publish(self._options, iterator, f"{self._options.producer}/{partition}", 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every micro-batch of a query to devices, under the query's id and the number of the batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        return publish(self._options, iterator, f"{query}/{context.partitionId()}", int(str(batch)))


def publish(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    producer: str,
    batch: int,
    put_aside: PutAside | None = None,
) -> Published:
    """Publish the rows of one task; `producer` and `batch` are for rows that do not say theirs.

    Without `put_aside` the first row that cannot be sent ends it. Raises BadRow, BrokerRefused, BrokerUnreachable,
    Superseded.
    """
    done = Published(0, 0)
    rows = _numbered(batches, producer, batch, put_aside)
    for producer_id, messages in groupby(rows, key=lambda pair: pair[0]):
        refused = None if put_aside is None else _of_producer(put_aside, producer_id)
        publisher = Publisher(options.address, producer_id, options.patience_s, options.rate, refused)
        try:
            publisher.publish(message for _, message in messages)
        finally:
            publisher.close()
        done.rows += publisher.acknowledged
        done.sent += publisher.sent
    return done


def _of_producer(put_aside: PutAside, producer: str) -> Callable[[Outgoing, str], None]:
    return lambda message, why: put_aside(producer, message.sequence, why)


def _numbered(
    batches: Iterator[pa.RecordBatch], producer: str, batch: int, put_aside: PutAside | None
) -> Iterator[tuple[str, Outgoing]]:
    """Yield each row as a message, with the producer that sends it. Raises BadRow."""
    first = batch << ROW_BITS
    rows = (row for part in batches for row in rows_of(part))
    for number, row in enumerate(rows, first):
        own: Any = row.get(SEQUENCE)
        producer_id, sequence = row.get(PRODUCER, producer), number if own is None else own
        try:
            message = message_of(row, sequence)
        except BadRow as error:
            if put_aside is None:
                raise
            put_aside(producer_id, sequence, error.problem)
            continue
        yield producer_id, message


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _above_0(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if number <= 0:
        raise BadOption(option, value, "a number above 0")
    return number
