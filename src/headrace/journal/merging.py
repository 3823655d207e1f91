"""Merging: adjacent small segments become one, byte for byte the same batches one behind the other.

Compaction leaves segments that are nearly empty, and a log that lives for long has thousands of them. Only what
compaction has rewritten is merged, so whoever reads the journal front to back within the limits of retention meets none
of it. No batch is drawn together with another one and no record is dropped: who has a batch in memory has the same one
afterwards.

    group = log.mergeable()[0]              on the loop
    new = log.merge(group)                  on any thread: `.tmp`, synced
    log.adopt_merged(new, group)            on the loop: the new one takes the name of the first of them
    log.remove_leftovers()                  on any thread: the directory is synced, then the others go, oldest first

Between the last two steps the new segment lies over those it was made of, and a crash may leave any of them there. Then
**the one that reaches further wins**: a segment whose footer ends where another one begins has taken in all that begin
before that, if each of them says in its header that it was begun earlier (`overlap`). It holds what they hold, so a
reader that still looks into one of those reads the same. A start reads the winner through before it removes them.
What is removed oldest first leaves no gap, also when retention takes the winner meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.compaction import later_than, temporary_of
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, seed_of
from headrace.journal.walk import Walk

MERGED_MIN = 8  # segments: so many small ones beside each other may stay, for each doubling of the size
SMALL_SHARE = 4  # of the largest segment: above it nothing is small
OFFSETS_MAX = 4_000_000  # of a merged segment: compaction looks at it with a byte for each
_CHUNK_BYTES = 1 << 20


def mergeable(segments: Sequence[Segment], segment_bytes_max: int) -> list[list[Segment]]:
    """Return groups of neighbours among `segments`, which ascend. The bytes of a record are written anew as often as
    the segment it is in doubles, so none is merged into one that is larger than all the others of the group
    together."""
    small = segment_bytes_max // SMALL_SHARE
    groups: list[list[Segment]] = []
    run: list[Segment] = []
    size = 0
    for segment in segments:
        if segment.size > small or not 0 <= segment.kept_records < segment.end_offset - segment.base_offset:
            continue
        if run and not _fits(run, segment, size, 2 * small):
            groups += _repaid(run)
            run, size = [], 0
        run.append(segment)
        size += segment.size
    return groups + _repaid(run)


def _fits(run: Sequence[Segment], segment: Segment, size: int, bytes_max: int) -> bool:
    is_next = segment.base_offset == run[-1].end_offset
    is_short = segment.end_offset - run[0].base_offset <= OFFSETS_MAX
    return is_next and is_short and size + segment.size <= bytes_max


def _repaid(run: list[Segment]) -> list[list[Segment]]:
    if len(run) < MERGED_MIN:
        return []
    largest = max(range(len(run)), key=lambda at: run[at].size)
    if 2 * run[largest].size <= sum(segment.size for segment in run):
        return [run]
    return _repaid(run[:largest]) + _repaid(run[largest + 1 :])


def merge(
    disk: Disk, group: Sequence[Segment], uuid: bytes, epoch: int, index_interval_bytes: int
) -> Segment:
    """Return the new segment under its temporary name, synced; its checksums are those of the old ones, which are all
    checked. Raises CorruptBatch, and OSError on a full disk."""
    new = Segment(group[0].path.parent, group[0].base_offset)
    seed = seed_of(uuid)
    created_us = max(later_than(disk, old.path) for old in group)
    fd = disk.create(temporary_of(new))
    try:
        file = SegmentFile(disk, new, fd, 0, 0)
        disk.write_fully(fd, [SegmentHeader(uuid, epoch, new.base_offset, created_us).pack()], 0)
        for old in group:
            _append(disk, file, old, seed)
        new.min_timestamp_us = min(old.min_timestamp_us for old in group)
        new.max_timestamp_us = max(old.max_timestamp_us for old in group)
        file.seal(seed)
    except BaseException:
        disk.unlink(temporary_of(new))
        raise
    finally:
        disk.close(fd)
    new.kept_records = sum(old.kept_records for old in group)
    new.index = new.index.thinned(index_interval_bytes)
    return new


def _append(disk: Disk, file: SegmentFile, old: Segment, seed: int) -> None:
    new = file.segment
    source = disk.open(old.path)
    try:
        further = new.size - SEGMENT_HEADER_SIZE
        walk = Walk(disk, source, seed, new.end_offset, limit=old.size)
        for batch in walk:
            new.index.add(batch.base_offset, walk.position - batch.size + further)
            new.note(batch.first_timestamp_us, batch.max_timestamp_us)
        if walk.next_offset != old.end_offset or walk.position != old.size:
            raise CorruptBatch(str(old.path), walk.position, walk.next_offset, walk.stop)
        for position in range(SEGMENT_HEADER_SIZE, old.size, _CHUNK_BYTES):
            wanted = min(_CHUNK_BYTES, old.size - position)
            data = disk.read_fully(source, wanted, position)
            new.size = file.append([data], new.size)
    finally:
        disk.close(source)
    new.end_offset = old.end_offset


def are_adjacent(segments: Sequence[Segment], group: Sequence[Segment]) -> bool:
    """Return whether the group is still there, as it is, among `segments`."""
    bases = {segment.base_offset: segment for segment in segments}
    is_there = all(bases.get(one.base_offset) is one for one in group)
    return is_there and all(one.end_offset == other.base_offset for one, other in pairwise(group))
