"""The journal of a shard in slices of what a sink wants: messages that were published to this shard, and no copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.records.message import FrameMessage, Message, decode_message
from headrace.core.records.message_id import JournalName, origin_in
from headrace.core.records.record import CARRIED, CARRIED_AT, KIND_MESSAGE, record_end
from headrace.journal.epochs import published_epochs
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import Batch, void_records
from headrace.journal.selective import TimeRange
from headrace.journal.snapshot import first_entries
from headrace.kafka.position import JournalNow, Position
from headrace.kafka.rendering import Rendered, rendered
from headrace.kafka.settings import SinkSettings
from headrace.mqtt.topics import matches

RECORDS_MAX: Final = 2000  # of one transaction
BYTES_MAX: Final = 4 << 20  # of one transaction, but for the last record
SCANNED_MAX: Final = 100_000  # of the journal at once, whatever matches
_KNOWN_MAX: Final = 16_384
_KIND_AT: Final = 4
_TIME_AT: Final = 8


@dataclass(slots=True)
class Slice:
    """What a sink wants of the journal up to the offset `end`."""

    end: int
    records: list[Rendered] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= RECORDS_MAX or self.bytes >= BYTES_MAX


class JournalSlices:
    """The journal in a data directory as it is now: of another uuid or epoch it is opened anew. Raises JournalError,
    OSError."""

    def __init__(self, data_dir: Path, settings: SinkSettings) -> None:
        self._reader = JournalReader(data_dir)
        self._settings = settings
        self._known: dict[bytes, bool] = {}
        reader = self._reader
        self.uuid, self.epoch = reader.uuid, reader.epoch
        epochs = published_epochs(reader)
        self._name = JournalName(self.uuid, epochs, origin_in(first_entries(data_dir / DIRECTORY)))
        complete, end = reader.complete_offset(), reader.high_watermark()
        self.now = JournalNow(self.uuid, self.epoch, epochs, complete, end)

    def end(self) -> int:
        """Return the offset below which every record is durable."""
        return self._reader.high_watermark()

    def is_complete_from(self, offset: int) -> bool:
        """Return whether the journal still has every record from an offset on."""
        return self._reader.complete_offset() <= offset

    def time_before(self, offset: int) -> int | None:
        """Return the time of the record before an offset, microseconds; None where it is gone: retention, compaction or a
        repair has taken it. Raises JournalError, OSError."""
        if offset <= self._reader.complete_offset():
            return None
        for batch in self._reader.scan(offset - 1, offset, uuid=self.uuid, epoch=self.epoch):
            pos = 0
            for _ in range(batch.base_offset, offset - 1):
                pos = record_end(batch.body, pos)
            time_us = _time_at(batch.body, pos)
            return None if batch.body.startswith(void_records(1, time_us), pos) else time_us
        return None

    def first_later(self, time_us: int) -> int:
        """Return the offset of the first record that was written later than this; the end of before if there is none.
        Raises JournalError, OSError."""
        start, end, times = self.now.complete, self.now.end, TimeRange(time_us + 1, 1 << 63)
        for batch in self._reader.scan(start, end, uuid=self.uuid, epoch=self.epoch, times=times):
            pos = 0
            for offset in range(batch.base_offset, batch.end_offset):
                if offset >= start and _time_at(batch.body, pos) > time_us:
                    return offset
                pos = record_end(batch.body, pos)
        return end

    def position(self, offset: int) -> Position:
        """Return how it is written down that everything below an offset is sent. Raises JournalError, OSError."""
        return Position(self.uuid, self.epoch, offset, self.time_before(offset))

    def take(self, start: int, end: int) -> Slice:
        """Return what is wanted of the offsets from `start` on, up to `end` at most. Raises JournalError, OSError; what
        retention has taken is OffsetOutOfRange."""
        found = Slice(start)
        end = min(end, start + SCANNED_MAX)
        for batch in self._reader.scan(start, end, uuid=self.uuid, epoch=self.epoch):
            for offset, message in _messages(batch, found.end, end):
                if self._is_wanted(message):
                    message.offset = offset
                    one = rendered(message, self._name.id_of(message), self._settings.record_bytes_max)
                    found.records.append(one)
                    found.bytes += one.size
                if found.is_full:
                    found.end = offset + 1
                    return found
            found.end = min(batch.end_offset, end)
        return found

    def _is_wanted(self, message: Message) -> bool:
        tenant = self._settings.tenant
        if tenant and message.tenant != tenant:
            return False
        known = self._known.get(message.topic)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = matches(self._settings.topic_filter, message.topic.decode("utf-8", "replace"))
            self._known[message.topic] = known
        return known


def _time_at(body: bytes, pos: int) -> int:
    return int.from_bytes(body[pos + _TIME_AT : pos + _TIME_AT + 8], "little")


def _messages(batch: Batch, start: int, end: int) -> Iterator[tuple[int, Message]]:
    """Yield what was published to this very journal, with its offset: no copies, and nothing that it began with."""
    body, offset, pos = batch.body, batch.base_offset, 0
    while pos < len(body) and offset < end:
        behind = record_end(body, pos)
        if offset >= start and body[pos + _KIND_AT] == KIND_MESSAGE:
            message = decode_message(body, pos, behind)
            if isinstance(message, FrameMessage) or not body[pos + CARRIED_AT] & CARRIED:
                yield offset, message
        pos, offset = behind, offset + 1
