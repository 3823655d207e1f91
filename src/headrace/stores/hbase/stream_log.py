"""What is known of a stream in HBase: which serial numbers its rows have, and where the rows begin. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.core.ports.queue_store import Found

BLOCK_SHIFT: Final = 6  # 64 messages a row


class StreamLog:
    """The serial numbers of a stream as runs without a gap, in order. `last` is the highest that was ever put, `block`
    the first row that may be there, `floor` what was trimmed to: a row may hold cells below it, which nobody is given."""

    __slots__ = ("block", "floor", "last", "runs")

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.last = 0
        self.block = 0
        self.floor = 0

    def note(self, serials: Iterable[int]) -> None:
        """Note that some are there, each above all before it."""
        runs = self.runs
        for serial in serials:
            if not self.last:
                self.block = serial >> BLOCK_SHIFT
            self.last = max(self.last, serial)
            if serial < self.floor:
                continue
            if runs and runs[-1][1] == serial - 1:
                runs[-1][1] = serial
            else:
                runs.append([serial, serial])

    def reopen(self) -> int:
        """Forget what the last row has, to be read again; returns the row."""
        if not self.runs:
            return self.last >> BLOCK_SHIFT
        block = self.runs[-1][1] >> BLOCK_SHIFT
        first = block << BLOCK_SHIFT
        while self.runs and self.runs[-1][0] >= first:
            self.runs.pop()
        if self.runs and self.runs[-1][1] >= first:
            self.runs[-1][1] = first - 1
        return block

    def trim(self, floor: int) -> None:
        """Note that what is below a serial number is not needed."""
        self.floor = max(self.floor, floor)
        while self.runs and self.runs[0][1] < self.floor:
            del self.runs[0]
        if self.runs and self.runs[0][0] < self.floor:
            self.runs[0][0] = self.floor

    def needless_rows(self) -> range:
        """Return the rows that nobody needs."""
        end = self.last + 1 if self.floor > self.last else self.floor
        upper = (end + 63 if end > self.last else end) >> BLOCK_SHIFT
        return range(self.block, max(self.block, upper))

    def first_row(self) -> int | None:
        """Return the row of the first entry, None if there is none."""
        return self.runs[0][0] >> BLOCK_SHIFT if self.runs else None

    def found(self, entry: bytes | None) -> Found:
        """Return what a look finds."""
        count = sum(last - first + 1 for first, last in self.runs)
        return Found(self.runs[0][0] if self.runs else 0, self.last, count, entry)
