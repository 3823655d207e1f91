"""A partition of Kafka as its clients see it, with all that may go wrong in it: replicas that have not what the leader
has, leaders that change, records that are refused, deletions, producers that are given up with records under way.

The high watermark is the offset below which every replica in sync has all. A report with an offset comes when that has
passed the record; what is above it may be forgotten by a change of leaders, what is below it by an unclean one alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass
class Request:
    """A record that a producer has under way. `copies` are the offsets where it came to stand."""

    producer: int
    token: int
    value: bytes
    copies: list[int] = field(default_factory=list)
    term: int = 0  # of the leader that appended it
    is_reported: bool = False


class Partition:
    """The log, and the requests that are on their way to it."""

    def __init__(self, random: Random, bytes_max: int) -> None:
        self.random = random
        self.bytes_max = bytes_max
        self.values: dict[int, bytes] = {}
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.shown = 0  # of the high watermark, which a new leader learns by and by
        self.term = 0
        self.is_away = False
        self.requests: list[Request] = []

    @property
    def state(self) -> tuple[int, int, int]:
        """What readers see: where it begins and ends for them, and of which leader."""
        return self.start, self.high_watermark, self.term

    # What clients ask for

    def read(self, offset: int, most: int) -> list[tuple[int, bytes]]:
        """The records from an offset on, below the high watermark that is known."""
        until = min(self.shown, offset + most)
        return [(at, self.values[at]) for at in range(max(offset, self.start), until)]

    def last_offset(self) -> int | None:
        """What Kafka answers who asks for the end; None where the leader does not know yet."""
        return None if self.is_away or self.shown < self.high_watermark else self.high_watermark

    def delete(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.high_watermark))
        self.shown = max(self.shown, self.start)

    # What happens to what is under way

    def arrive(self, request: Request, again: bool) -> str:
        """Append what is under way; returns the error if it is refused. `again`: it is still under way behind that, as
        the answer was lost."""
        if not again:
            self.requests.remove(request)
        if len(request.value) > self.bytes_max:
            return "too large"
        self.values[self.end] = request.value
        request.copies.append(self.end)
        request.term = self.term
        self.end += 1
        return ""

    def replicate(self) -> None:
        self.high_watermark = self.random.randint(self.high_watermark, self.end)
        self.shown = self.random.randint(self.shown, self.high_watermark)

    def catch_up(self) -> None:
        self.high_watermark = self.shown = self.end

    # What happens to the log

    def elect(self) -> None:
        """A new leader, which has everything below the high watermark and may lack what is above it."""
        self._cut(self.random.randint(self.high_watermark, self.end))
        self.shown = self.random.randint(max(self.start, self.shown - 3), self.shown)

    def elect_unclean(self) -> None:
        """A new leader that was not in sync: it lacks what was acknowledged."""
        self._cut(self.random.randint(max(self.start, self.high_watermark - 8), self.high_watermark))
        self.high_watermark = self.shown = self.end

    def _cut(self, end: int) -> None:
        for offset in range(end, self.end):
            del self.values[offset]
        self.end = end
        self.term += 1

    def go_back(self) -> None:
        """A leader that has not deleted yet what the one before had."""
        self.start = self.random.randint(0, self.start)
