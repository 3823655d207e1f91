"""Epochs of a journal: from which offset on each holds, which message ids are made of (decision 3), and how one rises.

An epoch rises by a random step. Two copies of one journal that go on apart, as two restores of one backup do, have other
epochs so: what a reader of the one remembers is not taken for a place in the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from secrets import randbelow
from typing import Final

from headrace.journal.errors import CorruptBatch, JournalError, OffsetOutOfRange
from headrace.journal.reader import JournalReader

EPOCH_MAX: Final = (1 << 31) - 1  # a u32 on disk, which readers may take for an int of 32 bits with a sign
# Two steps are the same once in so many times; there is room for 4000 of them on average.
STEP_MAX: Final = 1 << 20


def raised(epoch: int) -> int:
    """Return a higher epoch, which nobody who raises the same one returns too. Raises JournalError where there is no
    higher one."""
    room = EPOCH_MAX - epoch
    if room < 1:
        raise JournalError(
            f"the epoch of the journal is {epoch} and can rise no more: it was restored or cut too often. Go on with a "
            "new data directory"
        )
    return epoch + 1 + randbelow(min(STEP_MAX, room))


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
