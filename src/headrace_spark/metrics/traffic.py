"""What was published, by window, tenant, topic prefix, publisher and protocol, and the last message of each client on
each topic.

Parts are counted chunk by chunk where the journal is read, and summed where all parts of a window come together. Runs on
Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_spark.records.chunk import Mask
from headrace_spark.records.message_columns import Messages
from headrace_spark.records.schema import PROTOCOL_NAMES

LAST_READ: Final = (
    "tenant",
    "client_id",
    "topic",
    "publish_timestamp",
    "payload",
    "journal_uuid",
    "journal_epoch",
    "journal_offset",
)
"""The columns of table `devices`."""
NEWER: Final = (
    "case when new.journal_uuid = old.journal_uuid "
    "then (new.journal_epoch, new.journal_offset) > (old.journal_epoch, old.journal_offset) "
    "else new.publish_timestamp > old.publish_timestamp end"
)
"""When a row of `devices` takes the place of the old one: by offset, so that doing it twice changes nothing."""
SECOND_US: Final = 1_000_000
_KEYS: Final = ["window_us", "tenant", "topic_prefix", "client_id", "protocol"]
_SUMS: Final = ["messages", "payload_bytes"]


def counted(messages: Messages, window_s: int, topic_levels: int) -> pa.Table:
    """Return window_us, tenant, topic_prefix, client_id, protocol, messages, payload_bytes of one chunk, ordered by
    window."""
    pairs, where = messages.topic_pairs
    numbers: dict[tuple[str, str], int] = {}
    known = [
        numbers.setdefault((tenant, "/".join(topic.split("/")[:topic_levels])), len(numbers))
        for tenant, topic in pairs
    ]
    prefixes, clients = np.array(known, np.int64)[where], messages.client_ids.indices.to_numpy()
    windows = messages.timestamps_us // (window_s * SECOND_US)
    first, count = windows.min(), len(messages.client_ids.dictionary)
    keys = (((windows - first) * len(numbers) + prefixes) * count + clients) * 2 + messages.frames
    found, groups = np.unique(keys, return_inverse=True)
    protocols, found = found % 2, found // 2
    prefixes = pa.array(found // count % len(numbers))
    names = list(numbers)
    return pa.table(
        {
            "window_us": (found // count // len(numbers) + first) * (window_s * SECOND_US),
            "tenant": pa.array([tenant for tenant, _ in names]).take(prefixes),
            "topic_prefix": pa.array([prefix for _, prefix in names]).take(prefixes),
            "client_id": messages.client_ids.dictionary.take(pa.array(found % count)),
            "protocol": pa.array(PROTOCOL_NAMES).take(pa.array(protocols)),
            "messages": np.bincount(groups),
            "payload_bytes": np.bincount(groups, messages.payload_lengths).astype(np.int64),
        }
    )


def summed(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the sums of parts of `counted` that have whole windows."""
    if len(parts) == 1:
        return parts[0]
    groups = pa.concat_tables(parts).group_by(_KEYS, use_threads=False)
    return groups.aggregate([(name, "sum") for name in _SUMS]).rename_columns([*_KEYS, *_SUMS])


def last_of(messages: Messages) -> Mask:
    """Return which messages of a chunk are the last of their client on their topic."""
    _, topics = messages.topic_pairs
    keys = topics * len(messages.client_ids.dictionary) + messages.client_ids.indices.to_numpy()
    _, from_end = np.unique(keys[::-1], return_index=True)
    mask = np.zeros(len(keys), np.bool_)
    mask[len(keys) - 1 - from_end] = True
    return mask


def last_rows(rows: pa.Table) -> pa.Table:
    """Return, of rows of `devices` out of one journal, the last for each client and topic."""
    last = rows.group_by(["tenant", "client_id", "topic"], use_threads=False).aggregate(
        [("journal_offset", "max")]
    )
    return rows.filter(pc.is_in(rows["journal_offset"], last["journal_offset_max"].combine_chunks()))
