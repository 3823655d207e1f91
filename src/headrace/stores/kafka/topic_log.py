"""What is known of a client's topic: which streams are in it, and at which offsets.

A sparse index of each stream says where a serial number was first seen; a record that comes twice changes nothing. All of
it is found out by reading the topic, and goes on with every put. No I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from headrace.stores.kafka.record import StreamKey

INDEX_STEP: Final = 64  # records between two entries of an index


class StreamLog:
    """One stream: its first and last serial number, what lacks between them, and where it lies. The numbers only grow."""

    def __init__(self) -> None:
        self.first = 0  # 0: nothing is left
        self.last = 0
        self.last_offset = -1
        self._gaps: list[tuple[int, int]] = []  # first and last serial number that lack
        self._serials: list[int] = []
        self._offsets: list[int] = []
        self._since = 0

    def note(self, serial: int, offset: int) -> bool:
        """Note a record. Returns False for one that comes again."""
        if serial <= self.last:
            return False
        if not self.last or self._since >= INDEX_STEP:
            self._serials.append(serial)
            self._offsets.append(offset)
            self._since = 0
        self._since += 1
        if not self.first:
            self.first = serial
        elif serial > self.last + 1:
            self._gaps.append((self.last + 1, serial - 1))
        self.last, self.last_offset = serial, offset
        return True

    def trim(self, floor: int) -> None:
        """Forget what is below a serial number."""
        if not self.first or floor <= self.first:
            return
        if floor > self.last:
            self.first = 0
            self._gaps = []
            return
        self.first = floor
        self._gaps = [(max(low, floor), high) for low, high in self._gaps if high >= floor]
        if self._gaps and self._gaps[0][0] == floor:
            self.first = self._gaps.pop(0)[1] + 1
        at = max(0, bisect_right(self._serials, self.first) - 1)
        del self._serials[:at], self._offsets[:at]

    def count(self) -> int:
        """Return how many records there are, each once."""
        if not self.first:
            return 0
        return self.last - self.first + 1 - sum(high - low + 1 for low, high in self._gaps)

    def offset_for(self, serial: int) -> int:
        """Return an offset from which on the record of a serial number, and all behind it, are found."""
        at = max(0, bisect_right(self._serials, serial) - 1)
        return self._offsets[at]

    def needed_from(self) -> int | None:
        """Return the offset below which nothing of it is needed, None if nothing is."""
        return self.offset_for(self.first) if self.first else None


class TopicLog:
    """The streams of one topic with the id `topic_id`, between the offsets `start` and `end`."""

    def __init__(self, topic_id: str, start: int) -> None:
        self.topic_id = topic_id
        self.start = start
        self.end = start
        self.deleted_to = start  # below it we have deleted
        self.streams: dict[StreamKey, StreamLog] = {}
        self.is_foreign = False  # it has records that are not ours
        self._dead: set[StreamKey] = set()

    def note(self, key: StreamKey | None, serial: int, offset: int) -> None:
        """Note the record at an offset, behind all before it; `key` is None for one that is not ours."""
        self.end = max(self.end, offset + 1)
        if key is None:
            self.is_foreign = True
        elif key not in self._dead:
            self.streams.setdefault(key, StreamLog()).note(serial, offset)

    def delete(self, key: StreamKey) -> None:
        """Forget a stream; what comes late of it too."""
        self.streams.pop(key, None)
        self._dead.add(key)

    def is_dead(self, key: StreamKey) -> bool:
        """Return whether a stream was deleted here."""
        return key in self._dead

    def needless_below(self) -> int:
        """Return the offset below which nothing is needed."""
        needed = [stream.needed_from() for stream in self.streams.values()]
        return min((offset for offset in needed if offset is not None), default=self.end)
