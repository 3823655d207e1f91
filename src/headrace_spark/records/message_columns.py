"""Columns of `messages`, for all MESSAGE records of a chunk at once.

The fixed headers are gathered from the chunk as one NumPy array; and since a record is five byte strings back
to back (layout: `headrace.core.records.record`), one Arrow binary array over its bytes, whose values are header gaps
and fields in turn, gives each text and binary column by taking every sixth value. MQTT 5 properties are
decoded one by one, where a message has any. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.records.record import (
    CARRIED,
    CARRIED_AT,
    FLAG_DUP,
    FLAG_FRAME,
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_V5,
    FLAG_WILL,
    KIND_COPY,
    KIND_MESSAGE,
    MESSAGE_HEADER_SIZE,
    NO_EXPIRY_U32,
)
from headrace.errors import CorruptRecord
from headrace_spark.records.chunk import Chunk, Integers, Mask
from headrace_spark.records.publish_properties import PropertyColumns
from headrace_spark.records.schema import PROTOCOL_NAMES
from headrace_spark.source.selection import Selection

DAY_US: Final = 86_400_000_000
_FLAGS_AT: Final = 5

_HEADER: Final = np.dtype(
    [
        ("length", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("packet_id", "<u2"),
        ("timestamp_us", "<i8"),
        ("incarnation", "<i8"),
        ("message_expiry_s", "<u4"),
        ("tenant_len", "u1"),
        ("longest", "u1"),
        ("client_id_len", "<u2"),
        ("topic_len", "<u2"),
        ("properties_len", "<u4"),
        ("reserved_2", "<u2"),
    ]
)
# Values of the binary array over a body: five fields of a message, then the gap up to the next message's
# tenant.
_TENANT, _CLIENT_ID, _TOPIC, _PROPERTIES, _PAYLOAD, _GAP = range(6)
_STRIDE: Final = 6


def own(chunk: Chunk) -> Mask:
    """Return which records of a chunk are messages that were published to its journal: not those that a fresh broker
    began with, which the journal of before has."""
    found: Mask = chunk.kinds == KIND_MESSAGE
    marks = chunk.bytes.take(chunk.at + CARRIED_AT, mode="clip")  # one that is cut short is refused later
    marked = np.flatnonzero(found & ((marks & CARRIED) != 0))
    flags = chunk.bytes[chunk.at[marked] + _FLAGS_AT]
    found[marked[(flags & FLAG_FRAME) == 0]] = False
    return found


class Messages:
    """The MESSAGE records of a chunk as columns. What columns share is worked out when the first of them asks."""

    def __init__(self, chunk: Chunk, with_copies: bool = False) -> None:
        """Take the messages of a chunk; those that another shard published, too, where what is delivered is asked."""
        wanted = own(chunk)
        chunk = chunk.only(wanted | (chunk.kinds == KIND_COPY) if with_copies else wanted)
        self.with_copies = with_copies
        self.uuid = chunk.uuid
        self._body = chunk.body
        self._chunk = chunk
        self._at = chunk.at
        self.offsets = chunk.offsets
        self.epochs = chunk.epochs
        self.count = len(self.offsets)

    def only(self, wanted: Mask) -> Messages:
        """Return the messages that the mask names."""
        return Messages(self._chunk.only(wanted), self.with_copies)

    def rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of at least one message."""
        return pa.RecordBatch.from_arrays([_COLUMNS[name](self) for name in schema.names], schema=schema)

    @cached_property
    def headers(self) -> npt.NDArray[Any]:
        """Return the fixed headers, a structured row for each message."""
        if self._at[-1] + MESSAGE_HEADER_SIZE > len(self._body):
            raise CorruptRecord(f"the message at offset {self.offsets[-1]} is shorter than its header")
        return self._chunk.windows(f"V{MESSAGE_HEADER_SIZE}", 0).view(_HEADER)

    @cached_property
    def timestamps_us(self) -> Integers:
        return np.ascontiguousarray(self.headers["timestamp_us"])

    @cached_property
    def _bounds(self) -> Integers:
        """Return where each field of each message begins, and the gap behind it."""
        bounds = np.empty((self.count, _STRIDE), np.int64)
        bounds[:, _TENANT] = self._at + MESSAGE_HEADER_SIZE
        for field, length in enumerate(
            ("tenant_len", "client_id_len", "topic_len", "properties_len"), start=1
        ):
            np.add(bounds[:, field - 1], self.headers[length], out=bounds[:, field])
        bounds[:, _GAP] = self._at + 4 + self.headers["length"]
        if (bounds[:, _PAYLOAD] > bounds[:, _GAP]).any():
            raise CorruptRecord(
                f"after offset {self.offsets[0]}: the fields of a message run past its record"
            )
        return bounds

    @cached_property
    def _fields(self) -> pa.BinaryArray:
        return pa.Array.from_buffers(
            pa.binary(),
            self.count * _STRIDE - 1,
            [None, pa.py_buffer(self._bounds.astype(np.int32)), pa.py_buffer(self._body)],
        )

    def binary(self, field: int) -> pa.BinaryArray:
        """Return one field of every message."""
        return self._fields.take(pa.array(np.arange(field, self.count * _STRIDE - 1, _STRIDE)))

    def text(self, field: int) -> pa.StringArray:
        return self.binary(field).cast(pa.string())

    def _encoded(self, field: int) -> pa.DictionaryArray:
        """Return a text of every message, each different one once."""
        encoded = self.binary(field).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))

    @cached_property
    def client_ids(self) -> pa.DictionaryArray:
        return self._encoded(_CLIENT_ID)

    @cached_property
    def topic_pairs(self) -> tuple[list[tuple[str, str]], Integers]:
        """Return tenants and topics: each pair once, and for each message which one."""
        tenants, topics = self._encoded(_TENANT), self._encoded(_TOPIC)
        tenant_names, topic_names = tenants.dictionary.to_pylist(), topics.dictionary.to_pylist()
        count = len(topic_names)
        pairs = tenants.indices.to_numpy().astype(np.int64) * count + topics.indices.to_numpy()
        if len(tenant_names) == 1:
            return [(tenant_names[0], topic) for topic in topic_names], pairs
        found, where = np.unique(pairs, return_inverse=True)
        return [(tenant_names[pair // count], topic_names[pair % count]) for pair in found.tolist()], where

    @property
    def qos(self) -> npt.NDArray[np.uint8]:
        flags: npt.NDArray[np.uint8] = self.headers["flags"]
        return flags & np.uint8(FLAG_QOS)

    @cached_property
    def payload_lengths(self) -> Integers:
        """Return the length of each payload in bytes."""
        bounds = self._bounds
        lengths: Integers = bounds[:, _GAP] - bounds[:, _PAYLOAD]
        return lengths

    @cached_property
    def frames(self) -> Mask:
        """Return which messages came as frames of devices."""
        came: Mask = (self.headers["flags"] & np.uint8(FLAG_FRAME)) != 0
        return came

    def protocols(self) -> pa.StringArray:
        """Return how each message came: `PROTOCOL_NAMES`."""
        return pa.array(PROTOCOL_NAMES, pa.string()).take(pa.array(self.frames.astype(np.int8)))

    def flag(self, mask: int) -> pa.BooleanArray:
        return pa.array((self.headers["flags"] & mask) != 0)

    @cached_property
    def properties(self) -> PropertyColumns:
        rows = np.flatnonzero(self.headers["properties_len"])
        areas = self.binary(_PROPERTIES).take(pa.array(rows)).to_pylist() if len(rows) else []
        return PropertyColumns(self.count, rows, areas)

    def message_ids(self) -> pa.StringArray:
        """Return both forms of `headrace_spark.records.schema`: most messages get the second, all at once."""
        offsets, epochs = (pa.array(numbers).cast(pa.string()) for numbers in (self.offsets, self.epochs))
        by_offset = pc.binary_join_element_wise(f"journal:{self.uuid}", epochs, offsets, ":")
        rows, ids = self.properties.message_ids
        if not ids:
            return by_offset
        where = pa.array(np.array(rows))
        tenants, clients = (self.text(field).take(where).to_pylist() for field in (_TENANT, _CLIENT_ID))
        mask = np.zeros(self.count, np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(by_offset, mask, pa.array(map(client_message_id, tenants, clients, ids)))


def client_message_id(tenant: str, client_id: str, message_id: str) -> str:
    """Return the message id of a publisher that sends its own; one text cannot come from two publishers."""
    return f"client:{tenant}/{client_id.replace('%', '%25').replace('/', '%2F')}/{message_id}"


def only_topics(chunk: Chunk, selection: Selection) -> Chunk:
    """Return the messages on topics that are wanted. Each pair of tenant and topic is looked at once."""
    chunk = chunk.only(own(chunk))
    if not len(chunk.at):
        return chunk
    names, where = Messages(chunk).topic_pairs
    wanted = [selection.wants(tenant, topic) for tenant, topic in names]
    return chunk.only(np.array(wanted, np.bool_)[where])


def record_batches(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk: one record batch, or none."""
    messages = Messages(chunk)
    if messages.count:
        yield messages.rows(schema)


def _expiry(messages: Messages) -> pa.Array:
    seconds = messages.headers["message_expiry_s"].astype(np.int64)
    return pa.array(seconds, mask=(seconds == NO_EXPIRY_U32) & (messages.headers["longest"] == 0))


_COLUMNS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "tenant": lambda m: m.text(_TENANT),
    "topic": lambda m: m.text(_TOPIC),
    "client_id": lambda m: m.text(_CLIENT_ID),
    "qos": lambda m: pa.array(m.qos.astype(np.int8)),
    "retain": lambda m: m.flag(FLAG_RETAIN),
    "dup": lambda m: m.flag(FLAG_DUP),
    "will": lambda m: m.flag(FLAG_WILL),
    "mqtt5": lambda m: m.flag(FLAG_V5),
    "protocol": Messages.protocols,
    "payload_format_indicator": lambda m: m.properties.column("payload_format_indicator", pa.int8()),
    "content_type": lambda m: m.properties.column("content_type", pa.string()),
    "response_topic": lambda m: m.properties.column("response_topic", pa.string()),
    "correlation_data": lambda m: m.properties.column("correlation_data", pa.binary()),
    "message_expiry_s": _expiry,
    "user_properties": lambda m: m.properties.user_properties(),
    "publish_timestamp": lambda m: pa.array(m.timestamps_us).cast(pa.timestamp("us", "UTC")),
    "incarnation": lambda m: pa.array(np.ascontiguousarray(m.headers["incarnation"])),
    "journal_uuid": lambda m: pa.repeat(m.uuid, m.count),
    "journal_epoch": lambda m: pa.array(m.epochs),
    "journal_offset": lambda m: pa.array(m.offsets),
    "message_id": Messages.message_ids,
    "payload": lambda m: m.binary(_PAYLOAD),
    "date": lambda m: pa.array((m.timestamps_us // DAY_US).astype(np.int32)).cast(pa.date32()),
}
