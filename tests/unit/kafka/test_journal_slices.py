"""The journal in slices of what a sink wants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.records.message_id import JournalName
from headrace.journal.reader import JournalReader
from headrace.kafka import journal_slices
from headrace.kafka.journal_slices import JournalSlices
from headrace.kafka.settings import SinkSettings
from unit.kafka.journals import START_US, carried, copied, encoded, journal, message

SINK = SinkSettings("s", ("127.0.0.1:1",), "d/#", "t")


def test_what_was_published_here_and_matches_is_wanted_and_nothing_else(tmp_path: Path) -> None:
    journal(
        tmp_path,
        encoded(message("d/0", b"0")),
        copied("d/1"),
        carried("d/2"),
        encoded(message("e", b"3")),
        encoded(message("d/4", b"4", "acme")),
    )
    found = JournalSlices(tmp_path, SINK).take(0, 5)
    assert ([one.value for one in found.records], found.end) == ([b"0", b"4"], 5)
    only = JournalSlices(tmp_path, replace(SINK, tenant="acme")).take(0, 5)
    assert [one.value for one in only.records] == [b"4"]


def test_ids_are_those_that_clients_get(tmp_path: Path) -> None:
    journal(tmp_path, encoded(message("d/0")), encoded(message("d/1")))
    reader = JournalReader(tmp_path)
    wanted = message("d/1")
    wanted.offset = 1
    (one,) = JournalSlices(tmp_path, SINK).take(1, 2).records
    name = JournalName(reader.uuid, [(0, reader.epoch)])
    assert dict(one.headers)["headrace-message-id"] == name.id_of(wanted).hex().encode()


def test_a_slice_ends_where_it_is_full_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_slices, "RECORDS_MAX", 3)
    journal(tmp_path, *(encoded(message("d", b"%d" % n)) for n in range(8)))
    slices, offset, found = JournalSlices(tmp_path, SINK), 0, []
    while offset < slices.end():
        taken = slices.take(offset, slices.end())
        assert 0 < len(taken.records) <= 3
        found += [one.value for one in taken.records]
        offset = taken.end
    assert found == [b"%d" % n for n in range(8)]


def test_how_much_is_scanned_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_slices, "SCANNED_MAX", 3)
    journal(tmp_path, *(encoded(message("e")) for _ in range(8)))
    found = JournalSlices(tmp_path, SINK).take(0, 8)
    assert (found.records, found.end) == ([], 3)


def test_a_position_says_when_the_last_record_below_it_was_written(tmp_path: Path) -> None:
    made = [message("d") for _ in range(3)]
    for number, one in enumerate(made):
        one.timestamp_us += number
    journal(tmp_path, *(encoded(one) for one in made))
    slices = JournalSlices(tmp_path, SINK)
    assert [slices.position(offset).time_us for offset in range(4)] == [
        None, START_US, START_US + 1, START_US + 2,
    ]  # fmt: skip
