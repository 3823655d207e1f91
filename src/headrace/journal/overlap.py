"""Segments that lie over others: what a merge has made, before those it was made of are gone (`merging`).

Whoever opens, reads or checks a journal asks it, so it needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptFile
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, file_name, seed_of
from headrace.journal.walk import read_footer


def taken_in(disk: Disk, directory: Path, seed: int, base: int, behind: Sequence[int]) -> list[int]:
    """Return which of the segments that begin at `behind`, ascending, the one at `base` was made of: decided by
    headers and its footer alone. Empty for all others. Raises OSError, FileNotFoundError."""
    path = directory / file_name(base)
    fd = disk.open(path)
    try:
        header = SegmentHeader.unpack(disk.read_fully(fd, SEGMENT_HEADER_SIZE, 0), str(path))
        footer = read_footer(disk, fd, seed)
    except CorruptFile:
        return []
    finally:
        disk.close(fd)
    if footer is None or seed_of(header.uuid) != seed or footer.end_offset not in behind:
        return []
    found = [other for other in behind if other < footer.end_offset]
    for other in found:
        with suppress(FileNotFoundError):  # removed meanwhile
            if not _is_earlier(disk, directory / file_name(other), other, header):
                return []
    return found


def _is_earlier(disk: Disk, path: Path, base: int, than: SegmentHeader) -> bool:
    try:
        header = header_of(disk, path)
    except CorruptFile:
        return False
    return (header.uuid, header.base_offset) == (than.uuid, base) and header.created_us < than.created_us


def header_of(disk: Disk, path: Path) -> SegmentHeader:
    """Return the header of a segment. Raises CorruptFile, UnsupportedFormat, OSError."""
    fd = disk.open(path)
    try:
        return SegmentHeader.unpack(disk.read_fully(fd, SEGMENT_HEADER_SIZE, 0), str(path))
    finally:
        disk.close(fd)
