"""The messages of queues in the journal: a reference names the offset."""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.journal import GONE, NOT_NOW, Absent, JournalPort
from headrace.core.ports.queue_reader import NO_REFERENCE, UNREADABLE_NOW, QueueReader
from headrace.core.ports.waiting import QueueOwner, Waiting
from headrace.core.records.message import Message
from headrace.core.state.backlog import REF_OFFSET_SHIFT
from headrace.core.state.queue import REF_RETAIN


class JournalQueues(QueueReader):
    """Reads from the journal what its owner does not have in memory."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal

    def attach(self, waiting: Waiting) -> None:
        """Have the journal say when reads succeed again."""
        self.waiting = waiting
        self._journal.waiting = waiting

    def fetch(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        if ref == UNREADABLE_NOW:
            return NOT_NOW
        if ref == NO_REFERENCE:
            return GONE
        offset = ref >> REF_OFFSET_SHIFT
        if ref & REF_RETAIN:
            message = owner.at_hand(offset)
            if message is not None:
                return message
        return self._journal.fetch(offset)
