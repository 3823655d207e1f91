"""What the clients of one `headrace bench` run count together. Compiled with the core: it is asked per message."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

_SUB_BUCKETS: Final = 16  # of each power of two: a percentile is off by at most 6 %
_BUCKETS: Final = 64 * _SUB_BUCKETS


class Histogram:
    """Latencies in microseconds, in logarithmic buckets; `longest` is exact."""

    def __init__(self) -> None:
        self._counts: vec[i64] = vec[i64]([0] * _BUCKETS)
        self.total = 0
        self.longest = 0

    def add(self, microseconds: i64) -> None:
        index: i64 = microseconds if microseconds > 0 else 0
        rows: i64 = 0
        while index >= 2 * _SUB_BUCKETS:
            index >>= 1
            rows += _SUB_BUCKETS
        self._counts[rows + index] += 1
        self.total += 1
        if microseconds > self.longest:
            self.longest = int(microseconds)

    def percentile(self, share: float) -> int:
        """Return the value, in microseconds, below which `share` of the samples lie; 0 without samples."""
        wanted = share * self.total
        seen = 0
        for edge, count in self.buckets():
            seen += count
            if seen >= wanted:
                return edge
        return 0

    def buckets(self) -> list[tuple[int, int]]:
        """Return (lower edge in microseconds, samples) of every bucket that has some."""
        counts = [int(self._counts[index]) for index in range(_BUCKETS)]
        return [(_value_of(index), count) for index, count in enumerate(counts) if count]


def _value_of(index: int) -> int:
    """Return the lower edge of a bucket."""
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
