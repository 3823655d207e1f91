"""Epochs are found by looking at few records, and by whoever only reads a journal as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.epochs import beginnings, joined, published_epochs
from headrace.journal.reader import JournalReader
from unit.journal.log_at import Started


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
