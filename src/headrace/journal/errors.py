"""What can go wrong with a journal, one class for each thing somebody does differently about.

The read side runs in Spark workers, where only the standard library is at hand; so this tree stands by
itself. Arguments go to `Exception` unchanged, so that every error survives pickling between processes.
"""

from __future__ import annotations

import errno
import os


class JournalError(Exception):
    """Says that something about the journal is not as it should be; the message says what and where."""

    retry_helps = False
    exit_status = 1
    is_ordinary = False  # it belongs to what happens every day, and nobody need look into it


class NoJournal(JournalError):
    """No broker ever opened a journal in this data directory."""


class JournalLocked(JournalError):
    """Another process has this data directory open for writing."""


class NotOurs(JournalError):
    """A file in the data directory belongs to another user."""


class CorruptJournal(JournalError):
    """Records known durable are damaged: the broker refuses to start rather than drop them silently."""

    def __init__(self, path: str, position: int, first_offset: int, end_offset: int, reason: str) -> None:
        super().__init__(path, position, first_offset, end_offset, reason)
        self.path = path
        self.position = position
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}, byte {self.position}: {self.reason}; "
            f"offsets {self.first_offset} up to {self.end_offset} were durable and cannot be read"
        )


class CorruptBatch(JournalError):
    """A batch that was asked for does not pass its checks."""

    def __init__(self, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(path, position, offset, reason)
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}, byte {self.position}: {self.reason} (offset {self.offset} was wanted)"


class CorruptFile(JournalError):
    """A small file (header, high watermark, consumer position, snapshot) does not pass its checks."""


class UnsupportedFormat(JournalError):
    """The file was written by a newer headrace, which can read it."""

    retry_helps = True


class ShardedDirectory(JournalError):
    """The data directory holds several shards, each with a journal of its own in a directory below it."""


class OffsetOutOfRange(JournalError):
    """The offset lies before the start (retention passed it) or at or after the end."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(offset, start_offset, end_offset)
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset

    def __str__(self) -> str:
        held = f"{self.start_offset} up to {self.end_offset}"
        return f"offset {self.offset} is not in the journal, which holds {held}"


class EpochMismatch(JournalError):
    """The offset belongs to another history: another journal, or one that was cut back since."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(wanted, found)
        self.wanted = wanted
        self.found = found

    def __str__(self) -> str:
        return (
            f"the offset was taken from journal {self.wanted}, but this is {self.found}, "
            "whose offsets mean other records"
        )


class UnknownConsumer(JournalError):
    """No consumer of that name is registered."""


class ConsumerTaken(JournalError):
    """A consumer of that name belongs to somebody else, whose position this one would move."""

    def __init__(self, name: str, owner: str, other: str) -> None:
        super().__init__(name, owner, other)
        self.name = name
        self.owner = owner
        self.other = other

    def __str__(self) -> str:
        return (
            f"consumer {self.name!r} belongs to {self.owner}, and not to {self.other or 'this query'}: each would take "
            "for read what only the other one has. Give another consumer name; or, if that owner is gone for good, "
            f"`headrace consumer hand-over {self.name}` on the broker's machine"
        )


class ConsumerAtWork(JournalError):
    """A consumer is to be removed, and its process reads: it would lose what retention kept for it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"consumer {name!r} is at work: end its process first, or remove it by force")


class JournalMoved(JournalError):
    """A file of the journal is not where the next start will look for it: removed, moved, or replaced by another one.

    A status of its own: a service manager that starts the broker again would have it begin anew in an empty directory.
    """

    exit_status = 3


class WriteFailed(JournalError):
    """A write or fsync failed; what it carried is not durable and nothing after it is acknowledged."""


class DiskFull(WriteFailed):
    """No space left for the journal."""

    retry_helps = True


class SyncFailed(OSError):
    """What was written may or may not be on disk, and a second sync would not tell: it is never tried again."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_RESERVE = "no space for the reserve"
LENT = "another shard needs what is left"
FULL_REASONS = (NO_RESERVE, LENT, *map(os.strerror, _FULL))  # in the words that the journal reports them by


def is_disk_full(error: OSError) -> bool:
    """Return whether the error says that there is no space, or no space within the quota: what was to be written is
    not, and may be tried again."""
    return error.errno in _FULL


_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS)


def is_passing(error: OSError | MemoryError) -> bool:
    """Return whether the system lacked what the call needs: space, a descriptor, memory. Nothing was done, and it may
    be tried again."""
    return isinstance(error, MemoryError) or is_disk_full(error) or error.errno in _PASSING


def reason_of(error: OSError | MemoryError) -> str:
    """Return what the system would say: Python gives no words to want of memory."""
    if isinstance(error, MemoryError):
        return os.strerror(errno.ENOMEM)
    return str(error.strerror or error)


def synced(done: int) -> int:
    """Return what came of a write and its sync by the word of `headrace.syscalls`: the bytes; minus the error number of
    the sync raises SyncFailed."""
    if done < 0:
        raise SyncFailed(-done, os.strerror(-done))
    return done
