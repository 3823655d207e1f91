"""Damage to what is known durable is refused with file, position and offsets; nothing wrong is ever handed out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.journal.crash_run import DATA_DIR, SMALL, Run, content, reopened
from faults.journal.simulated_disk import SimulatedDisk
from headrace.journal.errors import CorruptBatch, CorruptJournal, JournalError
from headrace.journal.reader import JournalReader
from headrace.journal.segment import BATCH_HEADER_SIZE, SEGMENT_HEADER_SIZE

DIRECTORY = DATA_DIR / "journal"
LOG = DIRECTORY / f"{0:020d}.log"
BODIES = [bytes([65 + i]) * 40 for i in range(6)]
SIZE = BATCH_HEADER_SIZE + 40


def written_disk(bodies: list[bytes], is_clean: bool = False) -> SimulatedDisk:
    disk = SimulatedDisk()
    run = Run(disk)
    for body in bodies:
        run.append([body])
    if is_clean:
        run.log.close()
    disk.kill()
    return disk


@pytest.mark.parametrize("byte", range(0, SIZE, 3))
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_flip_in_the_middle_is_refused(byte: int, is_clean: bool) -> None:
    disk = written_disk(BODIES, is_clean)
    position = SEGMENT_HEADER_SIZE + 2 * SIZE
    disk.content(LOG)[position + byte] ^= 0x10
    with pytest.raises(CorruptJournal) as caught:
        Run(disk)
    assert caught.value.path == str(LOG)
    assert caught.value.position == position
    assert caught.value.first_offset == 2
    assert caught.value.end_offset == (6 if is_clean else 5)
    assert str(LOG) in str(caught.value)


def test_refusing_changes_nothing() -> None:
    disk = written_disk(BODIES)
    disk.content(LOG)[200] ^= 1
    before = {name: bytes(disk.content(DIRECTORY / name)) for name in disk.names(DIRECTORY)}
    for _ in range(2):
        with pytest.raises(CorruptJournal):
            Run(disk)
    assert {name: bytes(disk.content(DIRECTORY / name)) for name in disk.names(DIRECTORY)} == before


def test_a_flip_in_the_very_last_batch_is_cut_and_raises_the_epoch() -> None:
    disk = written_disk(BODIES)
    disk.content(LOG)[SEGMENT_HEADER_SIZE + 5 * SIZE + 60] ^= 1
    bodies, reports, epoch = reopened(disk)
    assert bodies == BODIES[:5]
    assert epoch > 1
    assert any("bad checksum" in line for line in reports)


def test_a_flip_in_the_watermark_file_costs_nothing() -> None:
    disk = written_disk(BODIES)
    for at in (20, 512 + 20):
        disk.content(DATA_DIR / "watermark")[at] ^= 1
    bodies, _, epoch = reopened(disk)
    assert bodies == BODIES
    assert epoch == 1


def test_a_flip_in_a_finished_segment_is_refused_with_its_place_and_offsets() -> None:
    disk = written_disk([b"y" * 1500] * 6)
    disk.content(LOG)[700] ^= 1
    with pytest.raises(CorruptJournal, match=f"{LOG}, byte 64: bad checksum; offsets 0 up to 1 "):
        Run(disk)


def test_a_flip_in_an_old_segment_is_found_when_it_is_read_or_its_turn_comes() -> None:
    disk = written_disk([b"y" * 1500] * 6)
    disk.content(LOG)[700] ^= 1
    run = Run(disk, settings=replace(SMALL, verified_bytes=0))
    said = []
    while run.log.unverified:
        said.append(run.log.verify_next())
    assert said[:-1] == [""] * (len(said) - 1)
    assert "offsets 0 up to 1 (1 records) cannot be read" in said[-1]
    with pytest.raises(CorruptBatch, match="bad checksum"):
        run.log.read_batch(0)
    with pytest.raises(CorruptBatch):
        content(run.log)
    with pytest.raises(CorruptBatch):
        list(JournalReader(DATA_DIR, disk).scan(0))
    run.log.close()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), is_clean=st.booleans())
def test_whatever_is_flipped_nothing_wrong_is_handed_out(data: st.DataObject, is_clean: bool) -> None:
    bodies = [bytes([i]) * 900 for i in range(8)]
    disk = written_disk(bodies, is_clean)
    path = DIRECTORY / data.draw(st.sampled_from(disk.names(DIRECTORY)))
    content_of = disk.content(path)
    at = data.draw(st.integers(0, len(content_of) - 1))
    content_of[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _, _ = reopened(disk)
    except JournalError:
        return
    assert found == bodies or found == bodies[:7]
