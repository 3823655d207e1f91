"""How far a sink is in a journal, and where it goes on.

The truth is in Kafka: a record of the positions' topic, written in the transaction of the messages below it, under the
transactional id. The value is JSON, which may get more fields::

    {"journal": UUID, "epoch": EPOCH, "offset": every record below it is sent,
     "time_us": of the record before it, microseconds since 1970}

`time_us` tells a journal from an older copy of it that was put back and has grown past the offset: its epoch is the same,
and its records are others. It is left out where the record is not known, and an older headrace did not write it.

The registered consumer beside the journal says the same, a moment later: it holds the records that are not sent, and is
what a sink goes on from whose Kafka has nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.kafka.errors import OtherJournal


@dataclass(frozen=True, slots=True)
class Position:
    """Every record below `offset` of the journal, as it was in this epoch, is sent. `time_us`: of the last of them."""

    journal: str
    epoch: int
    offset: int
    time_us: int | None = None

    def pack(self) -> bytes:
        fields: dict[str, str | int] = {"journal": self.journal, "epoch": self.epoch, "offset": self.offset}
        if self.time_us is not None:
            fields["time_us"] = self.time_us
        return json.dumps(fields).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """Return what `pack` has written. Raises ValueError for something else."""
        try:
            found = json.loads(data)
            time_us = found.get("time_us")
            return cls(
                str(found["journal"]),
                int(found["epoch"]),
                int(found["offset"]),
                None if time_us is None else int(time_us),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{data[:200]!r} is no position of a sink") from error


@dataclass(frozen=True, slots=True)
class JournalNow:
    """What a journal has: records from `complete` up to `end`, all of them. `epochs`: (offset from which on, epoch)."""

    uuid: str
    epoch: int
    epochs: Sequence[tuple[int, int]]
    complete: int
    end: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The offset at which a sink goes on; `lost` offsets before it are gone from the journal, and were never sent. `why`
    says what is odd about it, "" where nothing is."""

    offset: int
    lost: int = 0
    why: str = ""


def resume(
    kafka: Position | None,
    local: Position,
    now: JournalNow,
    time_before: Callable[[int], int | None],
    first_later: Callable[[int], int] | None = None,
) -> Resumed:
    """Return where a sink goes on. `kafka`: what Kafka has of it, `local` the registered consumer; `time_before`: of the
    record before an offset, None where that is not known; `first_later`: the offset of the first record that is later
    than a time, or the end. Raises OtherJournal."""
    position, why = local, ""
    if kafka is not None and kafka.journal == now.uuid:
        position = kafka
    if position.journal != now.uuid:
        return Resumed(now.complete, 0, "nothing is known of this journal: it is sent from its beginning")
    offset = _known_up_to(position, now)
    if offset > now.end:
        why = f"the journal ends at {now.end}, and was sent up to {offset}: it lost its end, or is an older copy"
        offset = now.end
        if position.time_us is not None and first_later is not None:  # what came since was never sent
            offset = min(offset, first_later(position.time_us))
    if offset == position.offset and position.time_us is not None:
        time_us = time_before(offset)
        if time_us not in (None, position.time_us):
            raise OtherJournal(f"record {offset - 1} is another one than that which was sent")
    if offset < now.complete:
        lost = now.complete - offset
        return Resumed(now.complete, lost, f"{lost} offsets of the journal went before they were sent")
    return Resumed(offset, 0, why)


def _known_up_to(position: Position, now: JournalNow) -> int:
    """Return the offset up to which the records are those that were sent: at and behind where the journal was cut since
    they are others. Raises OtherJournal."""
    offset = position.offset
    if position.epoch > now.epoch:
        raise OtherJournal(f"it was in epoch {position.epoch} up to offset {offset}, and is in {now.epoch}")
    if position.epoch == now.epoch:
        return offset
    cut = min((start for start, epoch in now.epochs if epoch > position.epoch), default=now.end)
    return min(offset, cut)
