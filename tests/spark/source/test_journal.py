"""The journal as the pipeline meets it: positions registered, moved and replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from headrace_spark.base.errors import DataLoss, ForeignOffset, JournalMissing
from headrace_spark.source.journal import (
    commit,
    holds_last,
    open_journal,
    reaches,
    readable_from,
    register,
    registered_offset,
    require_history,
)
from headrace_spark.source.ranges import JournalOffset
from spark.conftest import Writer
from spark.journals import mixed


@pytest.fixture
def reader(journal: Writer) -> JournalReader:
    journal.write(mixed(300))
    return open_journal(journal.data_dir)


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing, match="a broker that has been started once"):
        open_journal(tmp_path)


def test_history(reader: JournalReader) -> None:
    require_history(reader, JournalOffset(reader.uuid, reader.epoch, 5))
    for foreign in (
        JournalOffset(reader.uuid, reader.epoch + 1, 5),
        JournalOffset("0" * 32, reader.epoch, 5),
    ):
        with pytest.raises(ForeignOffset, match="or a new checkpoint and consumer"):
            require_history(reader, foreign)


def test_retention(reader: JournalReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalReader, "start_offset", lambda _self: 100)
    assert readable_from(reader, 100, True) == 100
    assert readable_from(reader, 20, False) == 100
    with pytest.raises(DataLoss, match="offsets 20 to 100 are gone"):
        readable_from(reader, 20, True)


def test_whether_the_journal_still_has_what_a_table_has(
    reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert holds_last(reader, 300, reader.epoch)
    assert holds_last(reader, 1, reader.epoch)
    assert not holds_last(reader, 301, reader.epoch)
    assert not holds_last(reader, 9999, reader.epoch)
    assert not holds_last(reader, 300, reader.epoch + 1)
    monkeypatch.setattr(JournalReader, "start_offset", lambda _self: 100)
    assert holds_last(reader, 100, 77)
    assert not holds_last(reader, 101, 77)


def test_whether_what_was_read_is_still_the_journal_s(
    reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch says when it was read; the record before it may have been written in an older one."""
    assert reaches(reader, 300, reader.epoch)
    assert reaches(reader, 300, reader.epoch + 1)
    assert not reaches(reader, 301, reader.epoch)
    assert not reaches(reader, 300, reader.epoch - 1)
    monkeypatch.setattr(JournalReader, "start_offset", lambda _self: 100)
    assert reaches(reader, 100, 0)
    assert not reaches(reader, 101, -1)


def test_registering_never_leaves_the_position_ahead(reader: JournalReader) -> None:
    assert registered_offset(reader, "c") is None
    register(reader, "c", 50)
    register(reader, "c", 70)
    assert registered_offset(reader, "c") == 50
    register(reader, "c", 10)
    assert registered_offset(reader, "c") == 10


def test_a_position_of_another_journal_is_replaced(reader: JournalReader) -> None:
    ConsumerPosition.register(reader.data_dir, "c", "0" * 32, 9, 5)
    assert registered_offset(reader, "c") is None
    register(reader, "c", 40)
    assert registered_offset(reader, "c") == 40


def test_commits_move_forward_and_register_again_what_was_dropped(reader: JournalReader) -> None:
    register(reader, "c", 0)
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 30))
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 20))
    assert registered_offset(reader, "c") == 30
    ConsumerPosition.remove(reader.data_dir, "c")
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 40))
    assert registered_offset(reader, "c") == 40
