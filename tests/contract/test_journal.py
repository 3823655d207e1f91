"""What every journal behind `JournalPort` does: the fake in memory and the segmented log."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from headrace.core.ports.journal import GONE, NOT_NOW, OTHER_RECORD, JournalPort
from headrace.core.records.message import Message, decode_batch
from headrace.journal.disk import Disk
from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.memory import MemoryJournal

NO_EXPIRY = 0xFFFF_FFFF


class Unreadable(Disk):
    """Fails reads with `code`, if there is one."""

    def __init__(self) -> None:
        self.code = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:
        if self.code:
            raise OSError(self.code, errno.errorcode[self.code])
        return super().pread(fd, length, position)


def message(topic: bytes, payload: bytes) -> bytes:
    """A message record, byte by byte as `core/records/record.py` documents it."""
    length = 36 + len(topic) + len(payload)
    return (
        pack("<IBBHQQIBBHHIH", length, 1, 1, 9, 77, 0, NO_EXPIRY, 0, 0, 0, len(topic), 0, 0) + topic + payload
    )


def progress() -> bytes:
    return pack("<IBBHQ", 12 + 16, 3, 1, 0, 77) + pack("<QQ", 5, 6)


def append(journal: JournalPort, *records: bytes) -> int:
    offset = journal.next_offset()
    body = b"".join(records)
    journal.append(body, list(decode_batch(body, offset)), 77, 77)
    return offset


@pytest.fixture(params=["memory", "local"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalPort]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    log = SegmentedLog.open(tmp_path, LogSettings(segment_bytes_max=4096), print)
    journal = LocalJournal(log, OffsetOutOfRange)
    yield journal
    log.close()


def test_offsets_count_records(journal: JournalPort) -> None:
    assert journal.next_offset() == 0
    assert append(journal, message(b"a", b"1")) == 0
    assert append(journal, message(b"b", b"2"), progress(), message(b"c", b"3")) == 1
    assert journal.next_offset() == 4


def test_messages_are_found_by_offset(journal: JournalPort) -> None:
    append(journal, message(b"a", b"1"))
    append(journal, message(b"b", b"2"), progress(), message(b"c", b"3"))
    found = {offset: journal.fetch(offset) for offset in (0, 1, 3)}
    assert {at: (m.offset, m.topic, m.payload) for at, m in found.items() if isinstance(m, Message)} == {
        0: (0, b"a", b"1"),
        1: (1, b"b", b"2"),
        3: (3, b"c", b"3"),
    }


def test_what_is_not_there_is_gone(journal: JournalPort) -> None:
    append(journal, message(b"a", b"1"))
    for offset in (1, 1 << 40):
        assert journal.fetch(offset) is GONE
        assert journal.fetch_page(offset) is GONE


def test_what_cannot_be_read_now_is_there_later(tmp_path: Path) -> None:
    memory = MemoryJournal()
    disk = Unreadable()
    log = SegmentedLog.open(tmp_path, LogSettings(segment_bytes_max=4096), print, disk)
    local = LocalJournal(log, OffsetOutOfRange)
    for journal in (memory, local):
        append(journal, message(b"a", b"1"), progress())
    log.close()
    log = SegmentedLog.open(tmp_path, LogSettings(segment_bytes_max=4096), print, disk)
    local = LocalJournal(log, OffsetOutOfRange)
    for code in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EINTR):
        disk.code, memory.reads_fail = code, True
        for journal in (memory, local):
            assert journal.fetch(0) is NOT_NOW
            assert journal.fetch_page(1) is NOT_NOW
    disk.code, memory.reads_fail = 0, False
    for journal in (memory, local):
        found = journal.fetch(0)
        assert isinstance(found, Message)
        assert found.payload == b"1"
        assert journal.fetch_page(1) == pack("<QQ", 5, 6)
    assert local.failed_reads == memory.failed_reads == 10
    log.close()


def test_a_reopened_log_finds_the_same_messages(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes_max=4096)
    log = SegmentedLog.open(tmp_path, settings, print)
    journal = LocalJournal(log, OffsetOutOfRange)
    offsets = [append(journal, message(b"t/%d" % i, b"%d" % i * 100), progress()) for i in range(50)]
    log.close()
    log = SegmentedLog.open(tmp_path, settings, print)
    journal = LocalJournal(log, OffsetOutOfRange)
    for i, offset in enumerate(offsets):
        found = journal.fetch(offset)
        assert isinstance(found, Message)
        assert (found.offset, found.topic, found.payload) == (offset, b"t/%d" % i, b"%d" % i * 100)
        assert journal.fetch(offset + 1) is OTHER_RECORD
        assert journal.fetch_page(offset) is OTHER_RECORD
        assert journal.fetch_page(offset + 1) == pack("<QQ", 5, 6)
    log.close()
