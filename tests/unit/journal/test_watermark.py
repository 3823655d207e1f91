"""The high watermark file: two slots, one of which always stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptFile, NoJournal, UnsupportedFormat
from headrace.journal.watermark import FILE_SIZE, UNKNOWN, Watermark, WatermarkState, read_slots, read_state

UUID = bytes(range(16))


def test_others_see_what_is_published(tmp_path: Path) -> None:
    watermark = Watermark(DISK, tmp_path, WatermarkState(UUID, 3, 10, 10))
    assert read_state(DISK, tmp_path).high_watermark == 10
    for high_watermark in range(11, 20):
        watermark.publish(high_watermark, high_watermark - 1, 77)
        state = read_state(DISK, tmp_path)
        assert (state.high_watermark, state.durable_offset) == (high_watermark, high_watermark - 1)
        assert (state.uuid, state.epoch, state.last_timestamp_us) == (UUID, 3, 77)
    newest, older = read_slots(DISK, tmp_path)
    assert (newest.high_watermark, older.high_watermark) == (19, 18)
    watermark.replace()
    assert [slot.high_watermark for slot in read_slots(DISK, tmp_path)] == [19, 19]
    watermark.close()
    assert (tmp_path / "watermark").stat().st_size == FILE_SIZE


@pytest.mark.parametrize("damaged", [0, 512])
def test_with_one_slot_torn_the_other_counts(tmp_path: Path, damaged: int) -> None:
    watermark = Watermark(DISK, tmp_path, WatermarkState(UUID, 1, 0, 0))
    watermark.publish(1, 1, 0)
    watermark.publish(2, 2, 0)
    watermark.close()
    data = bytearray((tmp_path / "watermark").read_bytes())
    data[damaged + 30] ^= 1
    (tmp_path / "watermark").write_bytes(data)
    assert read_state(DISK, tmp_path).high_watermark == (1 if damaged == 0 else 2)


def test_no_file_and_no_whole_slot(tmp_path: Path) -> None:
    assert read_slots(DISK, tmp_path) == []
    with pytest.raises(NoJournal):
        read_state(DISK, tmp_path)
    (tmp_path / "watermark").write_bytes(bytes(FILE_SIZE))
    with pytest.raises(CorruptFile):
        read_state(DISK, tmp_path)


def test_a_version_is_kept_and_a_newer_one_refused(tmp_path: Path) -> None:
    for version in (1, 2, 3, 4):
        page = WatermarkState(UUID, 1, 0, 0, version=version).pack_page()
        assert page[52] == version
        (tmp_path / "watermark").write_bytes(page)
        assert read_state(DISK, tmp_path).version == version
    (tmp_path / "watermark").write_bytes(WatermarkState(UUID, 1, 0, 0, version=5).pack_page())
    with pytest.raises(UnsupportedFormat, match="reads up to 4"):
        read_state(DISK, tmp_path)


def test_where_the_journal_begins_is_kept_until_another_journal_is_there(tmp_path: Path) -> None:
    watermark = Watermark(DISK, tmp_path, WatermarkState(UUID, 1, 0, 0))
    assert read_state(DISK, tmp_path).start_offset == UNKNOWN
    watermark.publish_start(0)
    assert read_state(DISK, tmp_path).start_offset == 0
    watermark.publish_start(70)
    watermark.publish(100, 100, 0)
    assert [slot.start_offset for slot in read_slots(DISK, tmp_path)] == [70, 70]
    watermark.replace()
    watermark.close()
    assert read_state(DISK, tmp_path).start_offset == 70
    assert read_state(DISK, tmp_path).complete_offset == UNKNOWN
    start = (tmp_path / "watermark").read_bytes()[1024:1056]
    page = bytearray(WatermarkState(bytes(16), 1, 0, 0).pack_page())
    page[1024:1056] = start
    (tmp_path / "watermark").write_bytes(page)
    assert read_state(DISK, tmp_path).start_offset == UNKNOWN


def test_from_where_the_journal_is_complete_is_kept_beside_it(tmp_path: Path) -> None:
    watermark = Watermark(DISK, tmp_path, WatermarkState(UUID, 1, 0, 0, start_offset=5, complete_offset=9))
    assert read_state(DISK, tmp_path).complete_offset == 9
    watermark.publish_complete(70)
    watermark.publish(100, 100, 0)
    assert [slot.complete_offset for slot in read_slots(DISK, tmp_path)] == [70, 70]
    watermark.close()
    found = read_state(DISK, tmp_path)
    assert (found.start_offset, found.complete_offset) == (5, 70)
