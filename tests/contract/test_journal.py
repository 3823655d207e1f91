"""What every journal behind `JournalPort` does: the fake in memory and the segmented log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from headrace.core.interfaces import JournalPort
from headrace.core.message import decode_batch
from headrace.journal.errors import JournalError
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.stores.local import LocalJournal
from headrace.stores.memory import MemoryJournal

NO_EXPIRY = 0xFFFF_FFFF


def message(topic: bytes, payload: bytes) -> bytes:
    """A message record, byte by byte as `core/record.py` documents it."""
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
    journal = LocalJournal(log, JournalError)
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
    found = [journal.fetch(offset) for offset in range(5)]
    assert [item and (item.offset, item.topic, item.payload) for item in found] == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        None,
        (3, b"c", b"3"),
        None,
    ]


def test_what_is_not_there_is_none(journal: JournalPort) -> None:
    append(journal, message(b"a", b"1"))
    assert journal.fetch(1) is None
    assert journal.fetch(1 << 40) is None


def test_a_reopened_log_finds_the_same_messages(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes_max=4096)
    log = SegmentedLog.open(tmp_path, settings, print)
    journal = LocalJournal(log, JournalError)
    offsets = [append(journal, message(b"t/%d" % i, b"%d" % i * 100), progress()) for i in range(50)]
    log.close()
    log = SegmentedLog.open(tmp_path, settings, print)
    journal = LocalJournal(log, JournalError)
    for i, offset in enumerate(offsets):
        found = journal.fetch(offset)
        assert found is not None
        assert (found.offset, found.topic, found.payload) == (offset, b"t/%d" % i, b"%d" % i * 100)
        assert journal.fetch(offset + 1) is None
    log.close()
