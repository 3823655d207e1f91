"""Journal batches to Arrow record batches of one of the schemas. Runs on Spark's Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from headrace.journal.segment import Batch
from headrace_spark.records import event_rows, message_columns, progress_rows
from headrace_spark.records.chunk import Chunk, chunks
from headrace_spark.source.selection import EVER, Selection

_DECODERS: Final[dict[str, Callable[[Chunk, pa.Schema], Iterator[pa.RecordBatch]]]] = {
    "messages": message_columns.record_batches,
    "events": event_rows.record_batches,
    "progress": progress_rows.record_batches,
}
ALL: Final = Selection()


def decode(
    batches: Iterable[Batch],
    uuid: str,
    start: int,
    end: int,
    schema: pa.Schema,
    of: str = "messages",
    selection: Selection = ALL,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with start <= offset < end, as record batches of `schema`: columns of the schema `of`, any order.

    Raises CorruptRecord where a record does not add up.
    """
    for chunk in chunks(batches, uuid, start, end):
        yield from decode_chunk(chunk, schema, of, selection)


def decode_chunk(chunk: Chunk, schema: pa.Schema, of: str, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one chunk that `selection` lets through."""
    if selection.times != EVER:
        chunk = chunk.between(selection.times)
    if selection.is_by_topic:
        chunk = message_columns.only_topics(chunk, selection)
    if len(chunk.at):
        yield from _DECODERS[of](chunk, schema)
