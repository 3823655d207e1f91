"""How far a sink is in a journal, and where it goes on.

The truth is in Kafka: a record of the positions' topic, written in the transaction of the messages below it, under the
transactional id. The value is JSON, which may get more fields::

    {"journal": UUID, "epoch": EPOCH, "offset": every record below it is sent}

The registered consumer beside the journal says the same, a moment later: it holds the records that are not sent, and is
what a sink goes on from whose Kafka has nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """Every record below `offset` of the journal, as it was in this epoch, is sent."""

    journal: str
    epoch: int
    offset: int

    def pack(self) -> bytes:
        fields = {"journal": self.journal, "epoch": self.epoch, "offset": self.offset}
        return json.dumps(fields).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """Return what `pack` has written. Raises ValueError for something else."""
        try:
            found = json.loads(data)
            return cls(str(found["journal"]), int(found["epoch"]), int(found["offset"]))
        except (KeyError, TypeError, ValueError) as error:
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


def resume(kafka: Position | None, local: Position, now: JournalNow) -> Resumed:
    """Return where a sink goes on. `kafka`: what Kafka has of it, `local` the registered consumer."""
    position, why = local, ""
    if kafka is not None and kafka.journal == now.uuid:
        position = kafka
    if position.journal != now.uuid:
        return Resumed(now.complete, 0, "nothing is known of this journal: it is sent from its beginning")
    offset = position.offset
    if (
        position.epoch < now.epoch
    ):  # records at and behind where it was cut are others than those that were sent
        cut = min((start for start, epoch in now.epochs if epoch > position.epoch), default=now.end)
        offset = min(offset, cut)
    if offset > now.end:
        why = f"the journal ends at {now.end}, and was sent up to {offset}: it lost its end, or is an older copy"
        offset = now.end
    if offset < now.complete:
        lost = now.complete - offset
        return Resumed(now.complete, lost, f"{lost} offsets of the journal went before they were sent")
    return Resumed(offset, 0, why)
