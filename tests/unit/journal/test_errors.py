"""Errors say what and where, and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from headrace.journal.errors import (
    CorruptBatch,
    CorruptJournal,
    DiskFull,
    EpochMismatch,
    JournalError,
    JournalLocked,
    OffsetOutOfRange,
    WriteFailed,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            CorruptJournal("f.log", 64, 3, 9, "bad checksum"),
            "f.log, byte 64: bad checksum; offsets 3 up to 9",
        ),
        (CorruptBatch("f.log", 64, 3, "bad checksum"), "f.log, byte 64: bad checksum (offset 3"),
        (OffsetOutOfRange(1, 5, 9), "offset 1 is not in the journal, which holds 5 up to 9"),
        (EpochMismatch("a epoch 1", "a epoch 2"), "taken from journal a epoch 1, but this is a epoch 2"),
        (JournalLocked("taken"), "taken"),
    ],
)
def test_message_and_pickle(error: JournalError, text: str) -> None:
    assert text in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_whether_a_retry_helps() -> None:
    assert DiskFull("").retry_helps
    assert not WriteFailed("").retry_helps
