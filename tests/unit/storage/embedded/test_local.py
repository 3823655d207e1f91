"""Messages by offset: from memory, from the batches read last, from the log; damage is said and counted."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from headrace.core.ports.journal import DAMAGED, GONE, NOT_NOW, OTHER_RECORD, Absent
from headrace.core.ports.waiting import Waiting
from headrace.core.records.message import Copy, Given, Message, copy_of, message_flags
from headrace.core.records.record import KIND_COPY, KIND_GIVEN, KIND_MESSAGE
from headrace.errors import CorruptRecord
from headrace.journal.errors import UnsupportedFormat
from headrace.storage.embedded import local
from headrace.storage.embedded.local import LocalJournal


class Gone(Exception):
    """Retention took it."""


class Damaged(Exception):
    """A checksum does not hold."""


class Batch:
    def __init__(self, base_offset: int, body: bytes) -> None:
        self.base_offset = base_offset
        self.body = body


class Log:
    """Batches of ten messages, read from nowhere; `broken` are bases that cannot be read."""

    def __init__(self) -> None:
        self.next_offset = 10_000
        self.reads: list[int] = []
        self.broken: dict[int, Exception] = {}
        self.statvfs_fails = False

    def append(self, body: bytes, count: int, first_timestamp_us: int, max_timestamp_us: int) -> int:
        self.next_offset += count
        return self.next_offset - count

    def room(self) -> int:
        if self.statvfs_fails:
            raise OSError("statvfs")
        return 500

    def has_room(self) -> bool:
        return self.room() > 1000

    def read_batch(self, offset: int) -> Batch:
        self.reads.append(offset)
        base = offset - offset % 10
        if base in self.broken:
            raise self.broken[base]
        return Batch(base, body_of(base))


def message(offset: int) -> Message:
    return Message(
        1, message_flags(1, False, False, 5), 1, 1, "default", b"defaultc", 7, b"t", b"", -1, b"%d" % offset
    )


def body_of(base: int, count: int = 10) -> bytes:
    out = BytesWriter()
    for offset in range(base, base + count):
        message(offset).encode_into(out)
    return out.getvalue()


def payload(journal: LocalJournal, offset: int) -> bytes | None:
    found = journal.fetch(offset)
    if isinstance(found, Absent):
        return None
    assert found.offset in (offset, -1)
    return found.payload


def test_a_batch_is_read_once() -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    for _ in range(2):
        for offset in (0, 9, 25, 3, 21, 29):
            assert payload(journal, offset) == b"%d" % offset
    assert log.reads == [0, 25]
    assert journal.disk_reads == 2


def test_the_batches_read_last_are_kept() -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    kept = local.DECODED_BATCHES_MAX
    for base in range(0, 10 * kept, 10):
        journal.fetch(base)
    journal.fetch(0)  # used again, so the second oldest goes
    journal.fetch(10 * kept)
    log.reads.clear()
    assert payload(journal, 5) == b"5"
    assert log.reads == []
    assert payload(journal, 15) == b"15"
    assert log.reads == [15]


def test_what_was_appended_last_needs_no_read() -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    journal.append(body_of(0, 2), [message(0), message(1)], 1, 1)
    assert payload(journal, 10_001) == b"1"
    assert payload(journal, 10_002) is None
    assert log.reads == []


def test_what_nobody_waited_for_is_read_back_when_it_is_asked_for_all_the_same() -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    records: list[object] = [message(10_000), message(10_001)]
    journal.append(body_of(10_000, 2), records, 1, 1)
    records[0] = None
    assert payload(journal, 10_001) == b"10001"
    assert log.reads == []
    assert payload(journal, 10_000) == b"10000"
    assert log.reads == [10_000]


def test_small_messages_count_as_what_they_take_in_memory() -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    body, records = body_of(0), [message(offset) for offset in range(10)]
    kept = local.RECENT_BYTES_MAX // (len(body) + 10 * local.RECORD_BYTES)
    first = log.next_offset
    for _ in range(kept + 1):
        journal.append(body, list(records), 1, 1)
    journal.fetch(first + 10)
    assert log.reads == []
    journal.fetch(first)
    assert log.reads == [first]


def test_what_retention_took_is_no_damage() -> None:
    log = Log()
    said: list[str] = []
    log.broken[0] = Gone()
    journal = LocalJournal(log, Gone, said.append)
    assert journal.fetch(5) is GONE
    assert (journal.damaged_reads, said) == (0, [])


def test_damage_is_counted_each_time_and_said_once_a_batch() -> None:
    log = Log()
    said: list[str] = []
    log.broken[0] = Damaged("a.log, byte 64: bad checksum (offset 5 was wanted)")
    log.broken[20] = CorruptRecord("record at byte 7 runs past its batch")
    journal = LocalJournal(log, Gone, said.append)
    for offset in (5, 6, 25):
        assert journal.fetch(offset) is DAMAGED
    assert payload(journal, 15) == b"15", "the batches around it are read as before"
    assert journal.damaged_reads == 3
    assert [line.split(" cannot")[0] for line in said] == ["offset 5", "offset 25"]


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), MemoryError(), UnsupportedFormat("newer")]
)
def test_a_read_that_fails_for_the_moment_says_nothing_about_the_record(error: Exception) -> None:
    log = Log()
    said: list[str] = []
    now = 100.0
    log.broken[0] = error
    journal = LocalJournal(log, Gone, said.append, lambda: now)
    for _ in range(50):
        assert journal.fetch(5) is NOT_NOW
        assert journal.fetch_page(5) is NOT_NOW
    assert (journal.failed_reads, journal.damaged_reads) == (100, 0)
    assert said == [
        f"offset 5 cannot be read now, whoever needs it waits: {str(error) or 'not enough memory'}"
    ]
    now += local.FAILURE_SAID_EVERY_S
    journal.fetch(5)
    assert len(said) == 2
    log.broken.clear()
    assert payload(journal, 5) == b"5"


class Told(Waiting):
    """Counts how often it was told that reads succeed again."""

    def __init__(self) -> None:
        self.count = 0

    def wake_all(self) -> None:
        self.count += 1


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_whoever_waits_is_told_once_that_a_read_of_the_disk_succeeds_behind_one_that_failed(
    error: Exception,
) -> None:
    log = Log()
    journal = LocalJournal(log, Gone)
    journal.waiting = told = Told()
    assert payload(journal, 35) == b"35"
    assert told.count == 0, "nothing has failed"
    log.broken[0] = error
    for _ in range(3):
        assert journal.fetch(5) is NOT_NOW
    assert payload(journal, 36) == b"36", "from memory, which says nothing of the disk"
    assert told.count == 0
    assert journal.fetch_page(15) is OTHER_RECORD
    assert payload(journal, 25) == b"25"
    assert told.count == 1
    assert journal.fetch_page(5) is NOT_NOW
    log.broken.clear()
    assert payload(journal, 5) == b"5"
    assert told.count == 2


def test_a_message_that_was_read_back_is_of_the_kind_that_it_was() -> None:
    """What another shard published is not taken for a publication of this one, which would be sent on."""
    published = message(3)
    copy = copy_of(published, 2, 7)
    out = BytesWriter()
    for record in (published, copy, Given(copy)):
        record.encode_into(out)

    class Kinds(Log):
        def read_batch(self, offset: int) -> Batch:
            return Batch(0, out.getvalue())

    journal = LocalJournal(Kinds(), Gone)
    found = [journal.fetch(offset) for offset in range(3)]
    assert [type(record) for record in found] == [Message, Copy, Given]
    assert [record.kind for record in found if isinstance(record, Message)] == [
        KIND_MESSAGE,
        KIND_COPY,
        KIND_GIVEN,
    ]
    assert [(r.source, r.source_offset) for r in found if isinstance(r, (Copy, Given))] == [(2, 7), (2, 7)]


def test_while_the_room_on_the_disk_cannot_be_told_there_is_none() -> None:
    log = Log()
    journal = LocalJournal(log, KeyError)
    assert (journal.room(), journal.has_room()) == (500, False)
    log.statvfs_fails = True
    assert (journal.room(), journal.has_room()) == (0, True), "and nobody waits for that"
