"""What does not fit between a shard that was put back and the others, and the records that make it fit (ADR 0025).

Computed from the states of both, which nobody changes meanwhile. The shard that was put back gets no record: a gap in
its journal sees to it that it numbers nothing as it did before. Each other shard notes from where on streams go on in
both directions, and keeps what it was lent of groups under names that nobody gives again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.core.homes import MEMBER_PREFIX
from headrace.core.records.record import Record
from headrace.core.records.stream_record import (
    ANEW,
    LENT,
    LENT_RECEIVED,
    LENT_SETTLED,
    stream_record_of,
)
from headrace.core.state.away import Key, Loan
from headrace.core.state.groups import GROUP_NUMBER_SHIFT
from headrace.core.state.state import Fold
from headrace.core.state.streams import NO_START, Streams

_QOS: Final = 2  # of loans that a journal knows of


@dataclass(frozen=True, slots=True)
class Side:
    """A shard as its journal says it is, up to its end."""

    shard: int
    fold: Fold
    end: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """What another shard and the accepted one know of each other that is not true any more.

    Of the accepted shard's journal `other` had taken everything below `had`, of which what is from `taken` on is not in
    it. Of the journal of `other` the accepted shard was known to have everything below `known`, and has it below
    `asks`. `loans` are entries of groups at home in the accepted shard, which it may give to somebody under their
    numbers again."""

    shard: int
    other: int
    taken: int
    had: int
    asks: int
    known: int
    loans: list[Loan]


def misfit(accepted: Side, other: Side) -> Misfit | None:
    """Return what does not fit between two shards; None if everything does. What is lent of groups does not show in what
    owners say to each other: they would go on, and take one message for another."""
    ours, theirs = accepted.fold.streams, other.fold.streams
    had = theirs.taken.get(accepted.shard, 0)
    start = theirs.sources.get(accepted.shard, NO_START)
    asks, known = ours.taken.get(other.shard, 0), theirs.followed.get(accepted.shard, 0)
    parted = _parted(ours, start, accepted.end)
    lent = _loans(accepted, other, parted if had > parted else accepted.end)
    streams_fit = ours.has_given(start, had) and asks >= known
    begun = _has_begun(ours, theirs.owners.get(accepted.shard, -1))
    is_known = highest_known(accepted, other) <= accepted.end
    if streams_fit and begun and is_known and all(loan.completed for loan in lent):
        return None
    return Misfit(accepted.shard, other.shard, min(had, parted), had, asks, known, lent)


def highest_known(accepted: Side, other: Side) -> int:
    """Return an offset above all that another shard's journal tells of the one of the accepted shard."""
    streams, shard = other.fold.streams, accepted.shard
    offsets = [streams.sources.get(shard, NO_START)[0], streams.owners.get(shard, -1)]
    offsets += [key[1] >> GROUP_NUMBER_SHIFT for key in _loans_of(other, shard)]
    offsets += [
        _member_incarnation(session.client_id, shard) for session in other.fold.by_incarnation.values()
    ]
    return max([streams.taken.get(shard, 0), *(offset + 1 for offset in offsets)])


def records(found: Misfit, gap: int, now_us: int) -> Iterator[Record]:
    """Yield what the other shard's journal is told, in one batch. `gap`: an offset of the accepted shard's journal that
    nothing is at, which stands for the groups of before."""
    shard, name = found.shard, gap << GROUP_NUMBER_SHIFT
    yield stream_record_of(ANEW, now_us, [shard, found.taken, min(found.asks, found.known), gap])
    open_loans = [loan for loan in found.loans if not loan.completed]
    named = list(enumerate(open_loans, 1))
    rows = {
        LENT: [[shard, name, n, loan.packet_id | _QOS << 16, loan.incarnation, 0] for n, loan in named],
        LENT_RECEIVED: [[shard, name, n, 0] for n, loan in named if loan.received],
        LENT_SETTLED: [[shard, loan.group, loan.serial, 0] for loan in found.loans],
    }
    for subkind, of_kind in rows.items():
        if of_kind:
            yield stream_record_of(subkind, now_us, [number for row in of_kind for number in row])


def _loans_of(side: Side, home: int) -> dict[Key, Loan]:
    """Return what sessions of a shard have in flight of groups at home in another one."""
    return {key: loan for key, loan in side.fold.away.loans.items() if key[0] == home}


def _loans(accepted: Side, other: Side, parted: int) -> list[Loan]:
    """Return the loans whose numbers the accepted shard may give to something else, or has given already."""
    groups, found = accepted.fold.groups.by_id, []
    for (_, incarnation, serial), loan in _loans_of(other, accepted.shard).items():
        group = groups.get(incarnation)
        if incarnation >> GROUP_NUMBER_SHIFT >= parted or (
            group is not None and (serial >= group.next_serial or parted < accepted.end)
        ):
            found.append(loan)
    return found


def _member_incarnation(client_id: str, shard: int) -> int:
    """Return the incarnation of the session that this one stands in for, if that is one of a shard; else -1."""
    prefix = f"{MEMBER_PREFIX}{shard}/"
    return int(client_id.removeprefix(prefix)) if client_id.startswith(prefix) else -1


def _has_begun(streams: Streams, owner: int) -> bool:
    """Return whether an owner of this epoch has begun in this history: that is the offset of the record of its start."""
    if not streams.starts or owner < streams.starts[0][0]:
        return True  # of before starts were remembered
    return any(offset == owner for offset, _ in streams.starts)


def _parted(streams: Streams, start: tuple[int, int], end: int) -> int:
    """Return the offset from which on the journal is another one than that of an owner which began with `start`: the
    first start since then, or the end if nobody has begun since it was put back."""
    if start == NO_START:
        return end
    return min(
        [offset for offset, time_us in streams.starts if offset > start[0] or time_us > start[1]] + [end]
    )
