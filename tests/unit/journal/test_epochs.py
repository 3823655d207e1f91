"""Epochs are found by looking at few records, and by whoever only reads a journal as well; copies that go on apart have
others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.records.message import Message
from headrace.core.records.message_id import JournalName
from headrace.journal.backup import backup
from headrace.journal.disk import DISK
from headrace.journal.epochs import EPOCH_MAX, STEP_MAX, beginnings, joined, published_epochs, raised
from headrace.journal.errors import EpochMismatch, JournalError
from headrace.journal.reader import JournalReader
from headrace.journal.repair import Repair
from headrace.journal.restore import restore
from headrace.journal.watermark import read_state
from unit.journal.log_at import Started, filled, opened


@pytest.mark.parametrize(
    ("epochs", "newest", "expected"),
    [
        ([], 1, [(0, 1)]),
        ([1] * 1000, 1, [(0, 1)]),
        ([1] * 1000, 2, [(0, 1), (1000, 2)]),
        ([1] * 10 + [2] * 500 + [5] * 490, 5, [(0, 1), (10, 2), (510, 5)]),
        ([3], 3, [(0, 3)]),
    ],
)
def test_a_few_records_tell_where_each_epoch_begins(
    epochs: list[int], newest: int, expected: list[tuple[int, int]]
) -> None:
    asked: list[int] = []

    def epoch_at(offset: int) -> int:
        asked.append(offset)
        return epochs[offset]

    assert beginnings(0, len(epochs), newest, epoch_at) == expected
    assert len(asked) <= 12 * len(expected)


@pytest.mark.parametrize(
    ("known", "found", "start", "expected"),
    [
        ([], [(0, 1)], 0, [(0, 1)]),
        ([(0, 1)], [(0, 1)], 0, [(0, 1)]),
        ([(0, 1), (100, 3)], [(150, 3)], 150, [(0, 1), (100, 3)]),  # what was written before is gone
        ([(0, 1)], [(150, 1), (200, 2)], 150, [(0, 1), (200, 2)]),  # restored, and then gone
        ([(0, 1), (200, 2)], [(150, 1), (180, 3)], 150, [(0, 1), (180, 3)]),  # cut back: found counts
        ([(0, 1), (150, 2)], [(150, 2)], 150, [(0, 1), (150, 2)]),
    ],
)
def test_epochs_of_records_that_are_gone_are_those_that_were_known(
    known: list[tuple[int, int]],
    found: list[tuple[int, int]],
    start: int,
    expected: list[tuple[int, int]],
) -> None:
    assert joined(known, found, start) == expected


def test_a_reader_finds_what_the_writer_does(tmp_path: Path) -> None:
    started = Started(tmp_path)
    for _ in range(10):
        started.append(b"x" * 100)
    assert published_epochs(JournalReader(tmp_path)) == started.log.epochs() == [(0, started.log.epoch)]
    started.log.close()


def test_an_epoch_rises_by_a_step_that_nobody_foresees() -> None:
    found = {raised(7) for _ in range(100)}
    assert len(found) > 95  # two of them are the same in one of 200 runs
    assert 7 < min(found) <= max(found) <= 7 + STEP_MAX
    assert {raised(EPOCH_MAX - 1) for _ in range(10)} == {EPOCH_MAX}
    assert max(raised(EPOCH_MAX - 5) for _ in range(100)) <= EPOCH_MAX
    for epoch in (EPOCH_MAX, EPOCH_MAX + 1):
        with pytest.raises(JournalError, match=f"is {epoch} and can rise no more"):
            raised(epoch)


def _restored(source: Path, data_dir: Path) -> None:
    backup(source, data_dir.with_suffix(".backup"))
    restore(data_dir.with_suffix(".backup"), data_dir)


def _cut(source: Path, data_dir: Path) -> None:
    """Recover a copy of which the high watermark says that more was published."""
    shutil.copytree(source, data_dir)
    state = read_state(DISK, data_dir)
    state.high_watermark += 1
    (data_dir / "watermark").write_bytes(state.pack_page())
    opened(data_dir).close()


def _repaired(source: Path, data_dir: Path) -> None:
    shutil.copytree(source, data_dir)
    (data_dir / "watermark").unlink()
    with Repair(data_dir) as repair:
        assert repair.plan()
        repair.run()


@pytest.mark.parametrize("way", [_restored, _cut, _repaired])
def test_two_copies_of_one_journal_go_on_in_other_epochs(
    way: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """Offsets and ids of the one are none of the other."""
    filled(tmp_path / "data", [b"x"] * 3)
    old = JournalReader(tmp_path / "data")
    found = []
    for name in ("a", "b"):
        way(tmp_path / "data", tmp_path / name)
        found.append(JournalReader(tmp_path / name))
    one, other = found
    assert one.uuid == other.uuid == old.uuid
    assert old.epoch < one.epoch <= EPOCH_MAX
    assert old.epoch < other.epoch <= EPOCH_MAX
    with pytest.raises(EpochMismatch):
        other.check(one.uuid, one.epoch)
    message = Message(1, 1, 1, 1, "default", b"defaultc", 7, b"t", b"", -1, b"x")
    message.offset = 3  # the first one of its own
    ids = {JournalName(reader.uuid, [(0, old.epoch), (3, reader.epoch)]).id_of(message) for reader in found}
    assert len(ids) == 2
