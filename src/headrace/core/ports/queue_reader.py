"""The messages of queues, wherever they lie: in memory, in the journal, or in a store behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from headrace.core.ports.journal import Absent
    from headrace.core.ports.waiting import QueueOwner, Waiting
    from headrace.core.records.message import Message

# What stands for the reference of an entry whose place in the line cannot be read now, or is lost. No reference is one of
# them: those of messages have a QoS of 1 or 2.
UNREADABLE_NOW: Final = 0
NO_REFERENCE: Final = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueReader:
    """Reads the entries of queues. `waiting` is told when what was answered with NOT_NOW is worth asking for again:
    of one owner where its answer has come, of all where reads succeed again."""

    waiting: Waiting | None = None

    def attach(self, waiting: Waiting) -> None:
        """Tell `waiting` from now on."""
        self.waiting = waiting

    def fetch(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        """Return the message of the entry `serial` of a queue, whose reference is `ref`; why there is none, which stays
        true; or NOT_NOW: then the owner waits, and asks again when it is woken."""
        raise NotImplementedError

    def peek(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        """Return what the journal has of an entry, for somebody who only looks: nothing is asked of a store for it, and
        nobody waits."""
        return self.fetch(owner, serial, ref)
