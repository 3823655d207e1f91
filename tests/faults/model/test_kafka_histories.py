"""A small share of the histories that `make torture` runs over a partition of Kafka, and mutants, each of which it finds.

One more, a reader that begins at any MARK, is in `tests/unit/storage/kafka/test_log_fold.py`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from faults.model.kafka_history import Kinds, run
from faults.model.world import Violation
from headrace.journal.segment import batch_range_at
from headrace.storage.kafka.actions import Delete
from headrace.storage.kafka.entry import Entry, FloorEntry
from headrace.storage.kafka.envelope import BATCH, Envelope, Epoch, Floor, Mark, part_of, unpack
from headrace.storage.kafka.keeping import Keeping, Release
from headrace.storage.kafka.log_fold import LogFold, NewOwner, TakenPart, Verdict, Void
from headrace.storage.kafka.owner import Owner

HISTORIES = 20
MUTANT_HISTORIES = 200


def first_of_this_week() -> int:
    year, week, _ = datetime.now(UTC).isocalendar()
    return (year * 100 + week) * 1000


def test_histories_of_this_week() -> None:
    counts: dict[str, int] = {}
    for seed in range(first_of_this_week(), first_of_this_week() + HISTORIES):
        for name, number in run(seed).counts.items():
            counts[name] = counts.get(name, 0) + number
    assert counts["confirmed"] > 5 * HISTORIES
    assert counts["owned"] > HISTORIES
    assert counts["in_place"] > 0
    assert counts["parts"] > HISTORIES
    assert counts["snapshots"] > HISTORIES
    assert counts["chained"] > 0
    assert counts["held"] > 0
    assert counts["floors"] > 0
    assert counts["lost"] == 0


def test_histories_in_which_kafka_loses_what_it_acknowledged() -> None:
    for seed in range(first_of_this_week(), first_of_this_week() + HISTORIES // 2):
        run(seed, unsafe=True)


def test_histories_in_which_somebody_else_deletes() -> None:
    for seed in range(first_of_this_week(), first_of_this_week() + HISTORIES // 2):
        run(seed, deletions=True)


class RepeatOwns(LogFold):
    """A record that comes a second time counts as an OWNED."""

    def _succeeds(self, previous: Epoch) -> bool:
        return True


class EpochByNextOffset(LogFold):
    def _epoch_of(self, offset: int, bits: bytes) -> Epoch:
        return Epoch(self.next_offset, bits)


class PartIsEnough(LogFold):
    """A part without its end takes effect."""

    def _part(self, found: Envelope) -> Verdict:
        part = part_of(found.content)
        verdict = super()._part(found)
        if isinstance(verdict, TakenPart) and verdict.number == 0 and part is not None:
            self.next_offset = batch_range_at(part.piece, 0)[1]
        return verdict


class VoidMoves(LogFold):
    """A void batch moves the next offset."""

    def take(self, offset: int, value: bytes | None) -> Verdict:
        verdict = super().take(offset, value)
        found = unpack(self.seed, value or b"")
        if isinstance(verdict, Void) and found is not None and found.kind == BATCH:
            self.next_offset = max(self.next_offset, batch_range_at(found.content, 0)[1])
        return verdict


class MemoryStays(Owner):
    """Memory stands although somebody else has owned the shard."""

    def _on_owned(self, found: NewOwner, now: float) -> None:
        if found.epoch.bits == self._bits:
            self._owns(found.epoch, now)


class NoOffsetIsSuccess(Owner):
    def _is_expected(self, offset: int | None) -> bool:
        return offset is None or super()._is_expected(offset)


class LowerOffsetIsSuccess(Owner):
    def _is_lower(self, offset: int) -> bool:
        return False

    def _is_expected(self, offset: int | None) -> bool:
        return offset is not None and offset <= self.fold.tail


class CacheIsBelieved(Owner):
    """The record that a cache knows last is not looked at."""

    def _is_last(self, value: bytes) -> bool:
        return True

    def _knows_last(self) -> bool:
        return True


class FloorAtOnce(Owner):
    """What is below a floor is deleted before the floor is confirmed."""

    def append(self, entry: Entry, now: float) -> None:
        if isinstance(entry, FloorEntry):
            self.actions.append(Delete(entry.mark))
        super().append(entry, now)


class QueuesAreForgotten(Keeping):
    """What queues refer to is deleted once a snapshot is there."""

    def on_full(self, needed: int, first: int, consumed: int | None = None) -> Release | None:
        return super().on_full(self.places[-1][0], first)


class PassedBy(Keeping):
    """What others have written and deleted since the manifest was written is not looked at."""

    def read_from(self, tail: int) -> None: ...

    def on_passed(self, offset: int, found: Mark | Floor) -> None: ...


MUTANTS = {
    "a repeat counts as OWNED": (Kinds(fold=RepeatOwns), ""),
    "memory is kept over a foreign OWNED": (Kinds(owner=MemoryStays), ""),
    "a missing offset is success": (Kinds(owner=NoOffsetIsSuccess), ""),
    "a lower offset is accepted": (Kinds(owner=LowerOffsetIsSuccess), "unsafe"),
    "the cache is not checked": (Kinds(owner=CacheIsBelieved), "unsafe"),
    "a part without its end takes effect": (Kinds(fold=PartIsEnough), ""),
    "the floor comes before its confirmation": (Kinds(owner=FloorAtOnce), ""),
    "the epoch is the next offset": (Kinds(fold=EpochByNextOffset), ""),
    "a floor forgets what queues refer to": (Kinds(keeping=QueuesAreForgotten), ""),
    "a MARK that was read is no place": (Kinds(keeping=PassedBy), ""),
    "the MARK behind a snapshot is not looked at": (Kinds(looks_at_witness=False), "unsafe"),
    "a void batch moves the next offset": (Kinds(fold=VoidMoves), ""),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_notices(name: str) -> None:
    kinds, also = MUTANTS[name]
    for seed in range(1, MUTANT_HISTORIES + 1):
        try:
            run(seed, unsafe=also == "unsafe", deletions=also == "deletions", kinds=kinds)
        except Violation:
            return
    pytest.fail(f"nobody notices in {MUTANT_HISTORIES} histories: {name}")
