"""From which offset on each epoch of a journal holds: what the message id of a record is made of (decision 3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from headrace.journal.errors import CorruptBatch, OffsetOutOfRange
from headrace.journal.reader import JournalReader


def beginnings(start: int, end: int, newest: int, epoch_at: Callable[[int], int]) -> list[tuple[int, int]]:
    """Return (offset from which on, epoch) of the records from `start` up to `end`, ascending; what comes at `end` has
    the epoch `newest`. `epoch_at` gives that of a record; it is asked once, and a few times more for each change."""
    found: list[tuple[int, int]] = []
    at = start
    while at < end and (not found or found[-1][1] < newest):
        epoch = epoch_at(at)
        found.append((at, epoch))
        at = bisect_left(range(end), True, at + 1, key=lambda offset: epoch_at(offset) > epoch)
    if not found or found[-1][1] != newest:
        found.append((end, newest))
    return found


def joined(known: list[tuple[int, int]], found: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Return the epochs of all records that a journal ever had: those that are `known` of the records below `start`,
    which may be gone, then those that were `found` of the others."""
    epochs = [one for one in known if one[0] < start]
    for one in found:
        if not epochs or epochs[-1][1] != one[1]:
            epochs.append(one)
    return epochs


def published_epochs(reader: JournalReader) -> list[tuple[int, int]]:
    """Return the epochs of a journal that somebody else writes, below its high watermark. Raises JournalError,
    OSError."""
    newest = reader.epoch

    def epoch_at(offset: int) -> int:
        try:
            return next(reader.scan(offset, offset + 1)).epoch
        except (CorruptBatch, OffsetOutOfRange):
            return newest

    return beginnings(reader.start_offset(), reader.high_watermark(), newest, epoch_at)
