"""Where the messages of each topic are in a finished segment: an index that batch reads keep for themselves.

The journal's own index finds offsets. Messages of one topic lie anywhere, so the first read of a segment by
topic notes where each message is, and later ones read those bytes alone. The broker knows nothing of it. It is
never trusted: the entries of a topic must pass a checksum, and every record that is read by them the one that was
taken when the segment was scanned, with the checksums of its batches. An index of which a power cut has left a part
passes none; if something does not, the index is dropped and the segment is scanned.

`<cache>/<journal uuid>/<base offset>-<creation time>-<digest>.topics`, little endian; the name
(`headrace.journal.finished`) ties it to one content, since records that an index does not name are not looked for:

     0   4  magic "HRTI"
     4   4  crc32 of bytes 8-19 and the directory
     8   2  version, 2; a file of another version is made again
    10   2  zero
    12   4  length of the directory
    16   4  count of entries
    20      directory, JSON: {"topics": [[tenant, topic, count, crc32 of its entries], ...],
            "epochs": [[first offset, epoch], ...]}
            then the entries, 16 bytes each: topic by topic in the order of the directory, ascending offsets

            0  4  offset - base offset      4  4  position in the segment      8  4  length
           12  4  crc32 of the record, seeded with crc32(uuid of the journal)
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headrace.journal.finished import FinishedSegment
from headrace.journal.segment import BATCH_HEADER_SIZE, SEGMENT_HEADER_SIZE
from headrace_spark.records.chunk import CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, Chunk, grouped
from headrace_spark.records.message_columns import Messages, own
from headrace_spark.source.selection import Selection

VERSION: Final = 2
SUFFIX: Final = ".topics"
_NAME_DASHES: Final = 2
# Reading a little more than is wanted is cheaper than another call.
GAP_BYTES_MAX: Final = 2048
# Above this share of a segment's messages a scan is cheaper than reading them one by one.
SHARE_MAX: Final = 0.2
_MAGIC: Final = b"HRTI"
_HEADER: Final = Struct("<4sI12s")
_REST: Final = Struct("<HHII")
_ENTRY: Final = np.dtype([("offset", "<u4"), ("position", "<u4"), ("length", "<u4"), ("crc", "<u4")])

Entries = npt.NDArray[Any]


@dataclass(frozen=True)
class TopicIndex:
    """The topic index of one segment: its directory in memory, its entries in the file."""

    path: Path
    entries_at: int
    count: int
    topics: list[tuple[str, str, int, int]]
    epochs: list[tuple[int, int]]

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the index, None if there is none that can be used, or a part of one."""
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                if len(head) < _HEADER.size:
                    return None
                magic, crc, rest = _HEADER.unpack(head)
                version, _, length, count = _REST.unpack(rest)
                directory = file.read(length)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None
        if magic != _MAGIC or version != VERSION or crc32(directory, crc32(rest)) != crc:
            return None
        content = json.loads(directory)
        topics = [(tenant, topic, number, check) for tenant, topic, number, check in content["topics"]]
        if size != _HEADER.size + length + count * _ENTRY.itemsize or sum(row[2] for row in topics) != count:
            return None
        epochs = [(first, epoch) for first, epoch in content["epochs"]]
        return cls(path, _HEADER.size + length, count, topics, epochs)

    def wanted(self, selection: Selection) -> Entries | None:
        """Return the entries of the topics that are wanted, by position; None if a scan is cheaper. Raises StaleIndex if
        they are not what was written."""
        bounds = np.cumsum([0] + [number for _, _, number, _ in self.topics]).tolist()
        chosen = [
            (first, last, check)
            for (tenant, topic, _, check), (first, last) in zip(self.topics, pairwise(bounds), strict=True)
            if selection.wants(tenant, topic)
        ]
        if sum(last - first for first, last, _ in chosen) > SHARE_MAX * self.count:
            return None
        with self.path.open("rb") as file:
            parts = [self._entries(file.fileno(), *one) for one in chosen]
        found = np.concatenate(parts) if parts else np.empty(0, _ENTRY)
        return np.sort(found, order="position")

    def _entries(self, fd: int, first: int, last: int, check: int) -> Entries:
        size = _ENTRY.itemsize
        data = os.pread(fd, (last - first) * size, self.entries_at + first * size)
        if len(data) != (last - first) * size or crc32(data) != check:
            raise StaleIndex(self.path)
        return np.frombuffer(data, _ENTRY)

    def chunks(self, segment: FinishedSegment, uuid: str, entries: Entries) -> Iterator[Chunk]:
        """Yield the records that these entries name. Raises StaleIndex if one is not what it was."""
        for part in _parts(entries):
            records = [record for stretch in _stretches(part) for record in self._records(segment, stretch)]
            lengths = part["length"].astype(np.int64)
            offsets = part["offset"].astype(np.int64) + segment.base_offset
            at = np.cumsum(lengths) - lengths
            yield Chunk(uuid, b"".join(records), at, offsets, self._epochs_of(offsets))

    def _records(self, segment: FinishedSegment, stretch: Entries) -> Iterator[bytes]:
        begin = int(stretch["position"][0])
        body = segment.read(begin, int(stretch["position"][-1]) + int(stretch["length"][-1]) - begin)
        for position, length, crc in stretch[["position", "length", "crc"]].tolist():
            record = body[position - begin : position - begin + length]
            if crc32(record, segment.seed) != crc:
                raise StaleIndex(self.path)
            yield record

    def _epochs_of(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        firsts, epochs = (np.array(column, np.int64) for column in zip(*self.epochs, strict=True))
        found: npt.NDArray[np.int64] = epochs[np.searchsorted(firsts, offsets, "right") - 1]
        return found


class StaleIndex(Exception):
    """The index does not fit its segment."""


def _parts(entries: Entries) -> Iterator[Entries]:
    """Return as many parts as make a chunk, by records and by bytes."""
    for first in range(0, len(entries), CHUNK_RECORDS_MAX):
        part = entries[first : first + CHUNK_RECORDS_MAX]
        shares = np.cumsum(part["length"].astype(np.int64)) // CHUNK_BYTES_MAX
        yield from np.split(part, np.flatnonzero(np.diff(shares)) + 1)


def _stretches(entries: Entries) -> Iterator[Entries]:
    """Yield entries that lie so close together that one call reads them."""
    if not len(entries):
        return
    ends = entries["position"][:-1].astype(np.int64) + entries["length"][:-1]
    cuts = np.flatnonzero(entries["position"][1:] - ends > GAP_BYTES_MAX) + 1
    yield from np.split(entries, cuts)


def build(segment: FinishedSegment, path: Path) -> TopicIndex | None:
    """Scan the segment, write its index. None for one that is damaged, or that compaction has been over, and
    where the index cannot be written."""
    numbers: dict[tuple[str, str], int] = {}
    parts: list[Entries] = []
    topics: list[npt.NDArray[np.int64]] = []
    epochs: list[tuple[int, int]] = []
    position, following = SEGMENT_HEADER_SIZE, segment.base_offset
    for group in grouped(segment.batches()):
        if any(batch.stored_bytes != len(batch.body) for batch in group):
            return None
        epochs += [(batch.base_offset, batch.epoch) for batch in group]
        chunk = Chunk.of(group, "", following, group[-1].end_offset)
        headers = np.repeat(
            np.arange(1, len(group) + 1) * BATCH_HEADER_SIZE, [batch.count for batch in group]
        )
        wanted = own(chunk)
        messages = chunk.only(wanted)
        if len(messages.at):
            parts.append(_entries_of(messages, messages.at + headers[wanted] + position, segment))
            topics.append(_numbered(messages, numbers))
        position += sum(batch.size for batch in group)
        following = group[-1].end_offset
    if segment.footer is None or following != segment.footer.end_offset:
        return None
    changes = [epochs[i] for i in range(len(epochs)) if i == 0 or epochs[i][1] != epochs[i - 1][1]]
    return _write(path, parts, topics, numbers, changes)


def prune(folder: Path, base_offsets: Collection[int]) -> None:
    """Remove the indexes of segments that retention has taken, and those of an older headrace, whose names do not tell
    of what content they are."""
    for path in folder.glob(f"*{SUFFIX}"):
        if int(path.name[:20]) not in base_offsets or path.name.count("-") < _NAME_DASHES:
            path.unlink(missing_ok=True)


def _entries_of(chunk: Chunk, positions: npt.NDArray[np.int64], segment: FinishedSegment) -> Entries:
    lengths = chunk.lengths
    made = np.empty(len(chunk.at), _ENTRY)
    made["offset"] = chunk.offsets - segment.base_offset
    made["position"] = positions
    made["length"] = lengths
    bounds = zip(chunk.at.tolist(), (chunk.at + lengths).tolist(), strict=True)
    made["crc"] = [crc32(chunk.body[start:end], segment.seed) for start, end in bounds]
    return made


def _numbered(chunk: Chunk, numbers: dict[tuple[str, str], int]) -> npt.NDArray[np.int64]:
    """Return the number of each message's topic; new topics get the next one."""
    names, where = Messages(chunk).topic_pairs
    known = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    found: npt.NDArray[np.int64] = known[where]
    return found


def _write(
    path: Path,
    parts: list[Entries],
    topics: list[npt.NDArray[np.int64]],
    numbers: dict[tuple[str, str], int],
    epochs: list[tuple[int, int]],
) -> TopicIndex | None:
    """Write the file; None where it cannot be written, as on a full disk: an index is no more than a short cut."""
    entries = np.concatenate(parts) if parts else np.empty(0, _ENTRY)
    numbered = np.concatenate(topics) if topics else np.empty(0, np.int64)
    entries = entries[np.argsort(numbered, kind="stable")]
    counts = np.bincount(numbered, minlength=len(numbers))
    checks = [crc32(part.tobytes()) for part in np.split(entries, np.cumsum(counts)[:-1])]
    rows = zip(numbers, counts.tolist(), checks, strict=False)
    listed = [(tenant, topic, count, check) for (tenant, topic), count, check in rows]
    directory = json.dumps({"topics": listed, "epochs": epochs}, separators=(",", ":")).encode()
    rest = _REST.pack(VERSION, 0, len(directory), len(entries))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, crc32(directory, crc32(rest)), rest))
            file.write(directory)
            file.write(entries.tobytes())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        return None
    return TopicIndex(path, _HEADER.size + len(directory), len(entries), listed, epochs)
