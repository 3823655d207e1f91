"""Journals of several shards, written record by record, as a broker would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from librt.strings import BytesWriter

from headrace.core.records.message import NO_EXPIRY, Message, copy_of
from headrace.core.records.record import Record
from headrace.core.records.stream_record import FOLLOWED, OWNED, TAKEN, stream_record
from headrace.data.layout import Layout
from headrace.journal.log import LogSettings, SegmentedLog

START_US = 1_760_000_000_000_000


def message(text: str) -> Message:
    """A message at QoS 1 of tenant t and client c."""
    return Message(START_US, 1, 7, 3, "t", b"tc", 1, b"topic", b"", NO_EXPIRY, text.encode())


def copy(source: int, offset: int) -> Record:
    """The copy of what another shard has at this offset."""
    return copy_of(message(f"{source}:{offset}"), source, offset)


def taken(source: int, offset: int) -> Record:
    return stream_record(TAKEN, START_US, [(source, offset)])


def followed(follower: int, offset: int) -> Record:
    return stream_record(FOLLOWED, START_US, [(follower, offset)])


def owned(shard: int, epoch: int) -> Record:
    return stream_record(OWNED, START_US, [(shard, epoch)])


def append(directory: Path, records: Sequence[Record]) -> int:
    """Append the records, a batch each; returns the offset behind them."""
    with closing(
        SegmentedLog.open(directory, LogSettings(segment_bytes_max=4096), lambda _line: None)
    ) as log:
        for record in records:
            out = BytesWriter()
            record.encode_into(out)
            log.append(bytes(out.getvalue()), 1, record.timestamp_us, record.timestamp_us)
        return log.next_offset


def made(path: Path, shards: Sequence[Sequence[Record]]) -> Layout:
    """A data directory whose shards hold these records."""
    layout = Layout.make(path, len(shards))
    for directory, records in zip(layout.directories(), shards, strict=True):
        append(directory, records)
    return layout
