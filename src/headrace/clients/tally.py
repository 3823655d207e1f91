"""What the clients of one `headrace bench` run count together. Compiled with the core: it is asked per message."""

from __future__ import annotations

from typing import Final

_SUB_BUCKETS: Final = 16  # of each power of two: a percentile is off by at most 6 %


class Histogram:
    """Latencies in microseconds, in logarithmic buckets; `longest` is exact."""

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (64 * _SUB_BUCKETS)
        self.total = 0
        self.longest = 0

    def add(self, microseconds: int) -> None:
        if microseconds < _SUB_BUCKETS:
            index = max(0, microseconds)
        else:
            shift = microseconds.bit_length() - 5
            index = (shift + 1) * _SUB_BUCKETS + (microseconds >> shift) - _SUB_BUCKETS
        self.counts[index] += 1
        self.total += 1
        if microseconds > self.longest:
            self.longest = microseconds

    def percentile(self, share: float) -> int:
        """The value, in microseconds, below which `share` of the samples lie; 0 without samples."""
        wanted = share * self.total
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return _value_of(index)
        return 0

    def buckets(self) -> list[tuple[int, int]]:
        """(lower edge in microseconds, samples) of every bucket that has some."""
        return [(_value_of(index), count) for index, count in enumerate(self.counts) if count]


def _value_of(index: int) -> int:
    """The lower edge of a bucket."""
    if index < 2 * _SUB_BUCKETS:
        return index
    shift = index // _SUB_BUCKETS - 1
    return (index % _SUB_BUCKETS + _SUB_BUCKETS) << shift


class Tally:
    """What all clients of one run count together. Latencies only while `measuring`."""

    def __init__(self, publishers: int) -> None:
        self.ready = 0
        self.sent = 0
        self.acked = 0
        self.received = 0
        self.repeats = 0
        self.reordered = 0
        self.refused = 0
        self.closed = 0
        self.left = 0  # connections that we ended
        self.measuring = False
        self.stopping = False
        self.delivery = Histogram()
        self.acknowledgement = Histogram()
        self.connecting = Histogram()  # CONNECT to CONNACK
        self.sequences: list[int] = [0] * publishers  # the next number of each publisher
