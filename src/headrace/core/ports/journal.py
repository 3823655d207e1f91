"""The journal as the core needs it: append, and read again what was appended.

Embedded: `storage.embedded.local` stands behind `JournalPort`; the fake for tests is in `storage.memory`. Base classes
rather than protocols, because compiled code calls them per message (decision 27: hot ports).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from headrace.core.ports.waiting import Waiting
    from headrace.core.records.message import Message


class Absent:
    """Why a journal has no record to give, compared by identity: one of the constants below, no other is ever made.

    NOT_NOW says nothing about the record: the read failed (no descriptor or memory left, an error of the disk), the
    next one may succeed. Whoever gets it waits and asks again, and writes nothing down. The others are facts and
    stay true: the record may be dropped, and the drop be journaled.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


NOT_NOW: Final = Absent("it cannot be read now")
GONE: Final = Absent("retention has taken it, or it was never written")
OTHER_RECORD: Final = Absent("compaction has taken it, or the record there is of another kind")
DAMAGED: Final = Absent("its batch does not pass its checks")
FORGOTTEN: Final = Absent("only its store had it, and has it no more")


@mypyc_attr(allow_interpreted_subclasses=True)
class PageReader:
    """Reads the pages of long backlogs back; they are records of the journal (`backlog`)."""

    def fetch_page(self, offset: int) -> bytes | Absent:
        """Return the values of the PROGRESS record at `offset`, or why there are none."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class JournalPort(PageReader):
    """The log behind group commit. Offsets: a high watermark H says that every record below H is durable.

    `waiting` is told when a read succeeds behind one that was answered with NOT_NOW. `is_contested`: another process may
    own the journal by now without this one knowing; what is appended becomes durable for the owner alone.
    """

    waiting: Waiting | None = None
    is_contested: bool = False

    def next_offset(self) -> int:
        """Return the offset the next appended record gets."""
        raise NotImplementedError

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        """Write a batch; the high watermark comes back through `GroupCommit.on_high_watermark`.

        `records` are those of `body`, None where it is no message, offered to whoever keeps the recent ones in memory.
        Once they have taken effect, those that nobody waits for become None too.
        """
        raise NotImplementedError

    def room(self) -> i64:
        """Return how many bytes there is room for while the disk is full, beside the progress of sessions, which is what
        frees it."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return whether there is so much space on the disk that one that was full would not count as that any more."""
        raise NotImplementedError

    def fetch(self, offset: int) -> Message | Absent:
        """Return the message at `offset`; why there is none; or NOT_NOW, and then it is to be asked for again later."""
        raise NotImplementedError
