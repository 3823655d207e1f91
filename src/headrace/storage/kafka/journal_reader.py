"""Reading the journal of one shard in Kafka that another process writes: nothing is written, no group is joined.

What is void for the owner is void here (`log_fold`): a record is read by folding from a place that a reader may begin
at. Such places are the beginning of the log, the MARKs that the newest manifest of the shard's snapshots names, and every
place that this reader, or the one that has planned for it, has come to before (`Standing`). So a batch that was found
once is found again without reading what lies before it.

The high watermark is the record offset that comes next behind what Kafka shows: that is on all replicas in sync, and
nobody takes it back. Offsets are of one epoch, the journal's first: owners come and go without cutting anything off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol, TypeVar
from uuid import UUID

from headrace.journal.errors import EpochMismatch, JournalError, OffsetOutOfRange
from headrace.journal.finished import FinishedSegment
from headrace.journal.reader import SegmentInfo
from headrace.journal.segment import Batch, seed_of
from headrace.journal.selective import TimeRange
from headrace.storage.kafka.chains import manifest_of
from headrace.storage.kafka.envelope import MANIFEST, unpack
from headrace.storage.kafka.keeping import BEGINNING, Place
from headrace.storage.kafka.log_fold import (
    Beginning,
    Floored,
    LogFold,
    MissingRecords,
    Standing,
    Taken,
)

EPOCH: Final = 0
STEP_BYTES: Final = 1 << 20  # of batches, from one place that is remembered to the next
KNOWN_MAX: Final = 4096  # places that are remembered, beside those of a manifest
FIRST_LOOK: Final = 8  # records of snapshots, from behind, among which a manifest is looked for first
ATTEMPTS: Final = 10  # to read what is deleted meanwhile
_GUESSED_BYTES: Final = 4096  # of a record of Kafka, before one was seen
_ANY_TIME: Final = (0, 1 << 62)

T = TypeVar("T")
Records = Iterator[tuple[int, bytes | None]]


class Partition(Protocol):
    """A partition of Kafka, to read. Every method may raise KafkaUnusable, and `records` MissingRecords."""

    def bounds(self) -> tuple[int, int]:
        """Return the Kafka offset of the oldest record, and the one behind the newest."""

    def records(self, start: int, end: int) -> Records:
        """Yield the records of [start, end) with their Kafka offsets."""


class KafkaHasLost(JournalError):
    """The log ends before what was read of it, or has something else in its place."""


class KafkaJournalReader:
    """The journal of one shard. Every call looks at the partition as it is now; what was read before is remembered.
    Methods may raise JournalErrors and KafkaUnusable."""

    def __init__(self, uuid: bytes, journal: Partition, snapshots: Partition) -> None:
        """Begin to read the journal with these 16 bytes as its name. Asks nothing yet."""
        self._uuid = uuid
        self._journal = journal
        self._snapshots = snapshots
        self._places: list[Place] | None = None  # what the newest manifest has
        self._known: list[Standing] = []  # ascending
        self._segments: dict[int, SegmentInfo] = {}  # what was read, by the record offset that it begins with
        self._fold: LogFold | None = None
        self._pinned = False
        self._is_checked = False  # of one that is pinned, where the journal ended
        self._given_up = (
            0  # a FLOOR says that the partition is deleted up to this Kafka offset, sooner or later
        )
        self._read = (1, _GUESSED_BYTES)  # records of Kafka, and bytes

    # What it is called

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self._uuid))

    @property
    def epoch(self) -> int:
        return EPOCH

    def check(self, uuid: str, epoch: int) -> None:
        """Check that an offset means what it meant under this uuid and epoch. Raises EpochMismatch."""
        if (uuid, epoch) != (self.uuid, EPOCH):
            raise EpochMismatch(f"{uuid} epoch {epoch}", f"{self.uuid} epoch {EPOCH}")

    # What is known of places

    def standings(self, offset: int) -> tuple[Standing, Standing]:
        """Return a place to begin at for a record offset, and where the journal ended when it was read last: another
        reader that is told both (`pin`) reads no more than it needs."""
        end = self._end().standing
        return self._fold_for(offset).standing, end

    def pin(self, begin: Standing, end: Standing) -> None:
        """Read between these places alone, which another reader has found (`standings`)."""
        self._know(begin)
        fold = LogFold(self._uuid)
        fold.begin_behind(end)
        self._fold, self._pinned = fold, True

    def _know(self, standing: Standing) -> None:
        """Remember a place. Of too many every second one is forgotten, but among the newest, where most is read."""
        at = bisect_left(self._known, standing)
        if self._known[at : at + 1] == [standing]:
            return
        self._known.insert(at, standing)
        if len(self._known) > KNOWN_MAX:
            newest = len(self._known) - KNOWN_MAX // 2
            self._know_only(self._known[:newest:2] + self._known[newest:])

    def _know_only(self, known: list[Standing]) -> None:
        """Forget all other places, and what is read from them on."""
        self._known = known
        bases = {one.next_offset for one in known}
        self._segments = {base: one for base, one in self._segments.items() if base in bases}

    def _end(self) -> LogFold:
        """Return a fold that has come to the end of the log. A reading begins with the record that was taken last: if
        that is gone or another one, Kafka has lost what was read. Raises KafkaHasLost."""
        return _while_deleting(self._to_end)

    def _to_end(self) -> LogFold:
        start, end = self._journal.bounds()
        if self._fold is not None and self._fold.tail < start and not self._pinned:
            self._fold = None  # nobody has looked for so long that what comes next is deleted
        if not self._pinned and self._known and self._known[0].tail < start:
            self._know_only([one for one in self._known if one.tail >= start])
        if self._fold is None:
            self._fold = self._begun(self._newest_place(start), start)
            start, end = self._journal.bounds()  # that place may lie behind the end of before
        fold = self._fold
        if end < fold.tail:
            raise KafkaHasLost(
                f"the journal ends at Kafka offset {end}, and was read up to {fold.tail}: Kafka has lost records"
            )
        if not self._pinned:
            for _ in self._walk(fold, end, start):
                pass
        elif not self._is_checked:
            self._check_last(fold, start)
            self._is_checked = True
        return fold

    def _check_last(self, fold: LogFold, start: int) -> None:
        """Check that the record that a fold has taken last is there. Raises KafkaHasLost."""
        last = fold.tail - 1
        if last >= max(start, 0):
            value = next((value or b"" for _, value in self._journal.records(last, last + 1)), b"")
            _require_last(fold, value)

    def _newest_place(self, start: int) -> Place:
        return self._places_from(start)[-1]

    def _places_from(self, start: int) -> list[Place]:
        """Return the places at or behind the Kafka offset `start`, where the partition begins. Its owner deletes up to a
        place, so there is one, though a manifest need not name it: a FLOOR gave it up, and somebody registered then."""
        if self._places is None:
            self._places = self._of_manifest()
        found = [place for place in self._places if place[1] >= start]
        if not found:
            self._places = self._of_manifest()
            found = [place for place in self._places if place[1] >= start]
        if not found or found[0][1] > start:
            found = [*self._unnamed(start, bool(found)), *found]
            self._places = found
        return found

    def _unnamed(self, start: int, is_optional: bool) -> list[Place]:
        """Return the place where the partition begins, which no manifest names. Raises KafkaHasLost if it is none."""
        if start == 0:
            return [BEGINNING]
        try:
            return [self._confirmed(start)]
        except KafkaHasLost:
            if is_optional:
                return []
            raise

    def _of_manifest(self) -> list[Place]:
        """Return the places that the newest manifest names, [] if there is none: it is among the last records."""
        return _while_deleting(self._of_newest_manifest)

    def _of_newest_manifest(self) -> list[Place]:
        start, end = self._snapshots.bounds()
        seed, look = seed_of(self._uuid), FIRST_LOOK
        while end > start:
            first = max(start, end - look)
            newest = None
            for _, value in self._snapshots.records(first, end):
                found = unpack(seed, value or b"")
                if found is not None and found.kind == MANIFEST:
                    newest = manifest_of(found.content) or newest
            if newest is not None:
                return list(newest.index)
            end, look = first, look * 4
        return []

    def _confirmed(self, start: int) -> Place:
        """Return the oldest place that the log itself tells of, where no manifest does. Raises KafkaHasLost."""
        beginning, end = Beginning(self._uuid), self._journal.bounds()[1]
        for offset, value in self._journal.records(start, end):
            mark = beginning.take(offset, value)
            if mark is not None:
                return self._begun((0, mark), start).next_offset, mark
        raise KafkaHasLost(
            f"the oldest records are deleted, up to Kafka offset {start}, and nothing says where to begin"
        )

    def _begun(self, place: Place, start: int) -> LogFold:
        """Return a fold that begins at a place. Raises CorruptFile, MissingRecords."""
        fold = LogFold(self._uuid)
        if place == BEGINNING:
            if start:
                raise MissingRecords(0, start)
            self._know(fold.standing)
            return fold
        for offset, value in self._journal.records(place[1], place[1] + 1):
            fold.begin_at_mark(offset, value or b"")
        self._know(fold.standing)
        return fold

    def _walk(self, fold: LogFold, end: int, start: int) -> Iterator[Taken]:
        """Take what lies up to the Kafka offset `end`, yield the batches of it, and remember places. The partition begins
        at the Kafka offset `start`. Raises KafkaHasLost, MissingRecords."""
        if fold.tail >= end:
            return
        known = max(0, start, fold.tail - 1)
        segment = SegmentInfo(fold.next_offset, fold.next_offset, 0, 0, 0)
        for offset, value in self._journal.records(known, end):
            if offset < fold.tail:
                _require_last(fold, value or b"")
                continue
            self._read = self._read[0] + 1, self._read[1] + len(value or b"")
            verdict = fold.take(offset, value)
            if isinstance(verdict, Floored):
                self._given_up = max(self._given_up, verdict.floor.mark)
            if isinstance(verdict, Taken):
                _add(segment, verdict)
                if segment.bytes >= STEP_BYTES:
                    segment = self._remember(segment, fold)
                yield verdict
        if segment.bytes and not fold.is_within:
            self._remember(segment, fold)

    def _remember(self, segment: SegmentInfo, fold: LogFold) -> SegmentInfo:
        """Remember what was read, and return what is read next."""
        known = self._segments.get(segment.base_offset)
        if known is None or known.end_offset < segment.end_offset:
            self._segments[segment.base_offset] = segment
        self._know(fold.standing)
        return SegmentInfo(fold.next_offset, fold.next_offset, 0, 0, 0)

    # Where it begins and ends

    def high_watermark(self) -> int:
        """Return the offset below which every record is durable and may be read."""
        return self._end().next_offset

    def start_offset(self) -> int:
        """Return the oldest offset that can be read."""
        return _while_deleting(lambda: self._first_from(self._journal.bounds()[0]))

    def complete_offset(self) -> int:
        """Return from where on every record is there: where it begins."""
        return self.start_offset()

    def kept_from(self) -> int:
        """Return from where on nothing is given up as yet: who registers there or later loses nothing."""
        self._end()
        return _while_deleting(lambda: self._first_from(max(self._journal.bounds()[0], self._given_up)))

    def _first_from(self, start: int) -> int:
        """Return the first record offset to begin at that lies at or behind the Kafka offset `start`."""
        known = [one.next_offset for one in self._known if one.tail >= start]
        if self._pinned and known:
            return known[0]
        return min([*known, *(place[0] for place in self._places_from(start))])

    def segments(self) -> list[SegmentInfo]:
        """Return runs of records, each from where the one before ends, up to the high watermark. Of what was not read as
        yet sizes are guessed, and times may be any."""
        end = self.high_watermark()
        at = self.start_offset()
        places = [(one.next_offset, one.tail) for one in self._known]
        places = sorted({*places, *(self._places or ())})
        found: list[SegmentInfo] = []
        while at < end:
            segment = self._segments.get(at) or self._guessed(at, end, places)
            found.append(segment)
            at = segment.end_offset
        return found or [SegmentInfo(at, at, 0, 0, 0)]

    def _guessed(self, at: int, end: int, places: list[Place]) -> SegmentInfo:
        """Return the run from `at` to the next place, whose size is guessed by the number of Kafka's records."""
        assert self._fold is not None, "the end is known"
        behind = next((place for place in places if place[0] > at), (end, self._fold.tail))
        before = [place for place in places if place[0] <= at]
        records = max(1, behind[1] - (before[-1][1] if before else 0))
        count, read = self._read
        return SegmentInfo(at, min(end, behind[0]), records * read // count, *_ANY_TIME)

    # Records

    def scan(
        self,
        start: int,
        end: int | None = None,
        *,
        uuid: str | None = None,
        epoch: int | None = None,
        times: TimeRange | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` up to `end`, at most up to the high watermark. The
        first may begin before `start` and the last end after `end`. With `times` only those that overlap the range.

        Raises OffsetOutOfRange if deletion passed `start`, also midway; EpochMismatch.
        """
        self.check(uuid or self.uuid, EPOCH if epoch is None else epoch)
        fold = self._end()
        stop, tail = fold.next_offset, fold.tail
        first = self.start_offset()
        if not first <= start <= stop:
            raise OffsetOutOfRange(start, first, stop)
        return self._scan(start, stop if end is None else min(end, stop), tail, times)

    def _scan(self, start: int, end: int, tail: int, times: TimeRange | None) -> Iterator[Batch]:
        if start >= end:
            return
        at = start
        try:
            for taken in self._walk(self._fold_for(start), tail, self._journal.bounds()[0]):
                batch = taken.batch
                at = batch.end_offset
                if at <= start:
                    continue
                if times is None or times.overlaps(batch.first_timestamp_us, batch.max_timestamp_us):
                    yield batch
                if at >= end:
                    return
        except MissingRecords:
            raise OffsetOutOfRange(at, self.start_offset(), self.high_watermark()) from None

    def _fold_for(self, offset: int) -> LogFold:
        """Return a fold that stands at the last place from which the record at `offset` is found."""
        start, _ = self._journal.bounds()
        known = [one for one in self._known if one.next_offset <= offset and one.tail >= start]
        places = [] if self._pinned and known else self._places_from(start)
        place = max((one for one in places if one[0] <= offset), default=None)
        if known and (place is None or known[-1].tail >= place[1]):
            fold = LogFold(self._uuid)
            fold.begin_behind(known[-1])
            return fold
        if place is None:
            raise MissingRecords(0, start)
        return self._begun(place, start)

    def finished(self, base_offset: int) -> FinishedSegment:
        """Raise FileNotFoundError: nothing of it is a file that an index could be of."""
        raise FileNotFoundError(f"offset {base_offset} is in Kafka")


def _while_deleting(look: Callable[[], T]) -> T:
    """Return what a look finds; it begins anew where the owner of the shard deletes what it reads."""
    for _ in range(ATTEMPTS):
        with suppress(MissingRecords):
            return look()
    return look()


def _require_last(fold: LogFold, value: bytes) -> None:
    """Check that `value` is the record that was taken last. Raises KafkaHasLost."""
    if not fold.is_last(value):
        raise KafkaHasLost(
            f"Kafka offset {fold.tail - 1} has another record than the one that was read there: Kafka has lost records"
        )


def _add(segment: SegmentInfo, taken: Taken) -> None:
    """Count a batch in."""
    batch = taken.batch
    first, last = batch.first_timestamp_us, batch.max_timestamp_us
    segment.min_ts = min(first, last) if not segment.bytes else min(segment.min_ts, first, last)
    segment.max_ts = max(segment.max_ts, first, last)
    segment.bytes += len(taken.data)
    segment.end_offset = batch.end_offset
