"""A file that ends in the middle of a batch is cut back to the last good record, and that is said (P9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.journal.crash_run import DATA_DIR, Run, content, reopened
from faults.journal.simulated_disk import SimulatedDisk
from headrace.journal.errors import CorruptJournal
from headrace.journal.reader import JournalReader
from headrace.journal.segment import BATCH_HEADER_SIZE, SEGMENT_HEADER_SIZE

BODIES = [b"one", b"two" * 10, b"three" * 5]
SIZES = [BATCH_HEADER_SIZE + len(body) for body in BODIES]
LOG = DATA_DIR / "journal" / f"{0:020d}.log"
WATERMARK = DATA_DIR / "watermark"


def killed_disk() -> SimulatedDisk:
    """Three groups of one batch each, all acknowledged; then kill -9."""
    disk = SimulatedDisk()
    run = Run(disk)
    for body in BODIES:
        run.append([body])
    disk.kill()
    return disk


@pytest.mark.parametrize("kept", range(SIZES[2]))
def test_cut_at_every_byte_of_the_last_batch(kept: int) -> None:
    disk = killed_disk()
    before = bytes(disk.content(WATERMARK))
    del disk.content(LOG)[SEGMENT_HEADER_SIZE + SIZES[0] + SIZES[1] + kept :]
    bodies, reports, epoch = reopened(disk)
    assert bodies == BODIES[:2]
    assert epoch > 1, "three records had been published"
    assert any("published" in line for line in reports)
    assert len(before) == len(disk.content(WATERMARK))


@pytest.mark.parametrize("kept", range(1, SIZES[2]))
def test_the_same_where_it_was_never_published(kept: int) -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    run.append([BODIES[0]])
    run.append([BODIES[1]])
    published = bytes(disk.content(WATERMARK))
    run.append([BODIES[2]])
    disk.kill()
    disk.content(WATERMARK)[:] = published
    at = SEGMENT_HEADER_SIZE + SIZES[0] + SIZES[1] + kept
    disk.content(LOG)[at:] = bytes(len(disk.content(LOG)) - at)
    bodies, reports, epoch = reopened(disk)
    assert bodies == BODIES[:2]
    assert epoch == 1
    assert any("cut" in line and LOG.name in line for line in reports)
    assert reopened(disk)[1] == []


def test_a_cut_deeper_than_the_last_group_is_refused() -> None:
    disk = killed_disk()
    del disk.content(LOG)[SEGMENT_HEADER_SIZE + SIZES[0] + 5 :]
    with pytest.raises(CorruptJournal) as caught:
        Run(disk)
    assert caught.value.path == str(LOG)
    assert caught.value.position == SEGMENT_HEADER_SIZE + SIZES[0]
    assert (caught.value.first_offset, caught.value.end_offset) == (1, 2)


def test_a_cut_after_a_clean_stop_is_refused() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    run.append(BODIES)
    run.log.close()
    del disk.content(LOG)[-70:]
    with pytest.raises(CorruptJournal):
        Run(disk)


def test_garbage_behind_the_end_is_cut_and_reported_once() -> None:
    disk = killed_disk()
    end = SEGMENT_HEADER_SIZE + sum(SIZES)
    disk.content(LOG)[end : end + 9] = b"\xd7HRBjunk!"
    bodies, reports, epoch = reopened(disk)
    assert bodies == BODIES
    assert epoch == 1
    assert len(reports) == 1
    assert "cut" in reports[0]
    assert reopened(disk)[1] == []


def test_a_lost_middle_of_the_last_group_takes_what_is_behind_it_along() -> None:
    """Of two batches written but never acknowledged only the second reached the disk. It must not come back later,
    when a batch of the same length is written before it."""
    disk = SimulatedDisk()
    run = Run(disk)
    published = bytes(disk.content(WATERMARK))
    run.append([b"aaaa", b"bbbb"])
    disk.kill()
    disk.content(WATERMARK)[:] = published
    disk.content(LOG)[SEGMENT_HEADER_SIZE : SEGMENT_HEADER_SIZE + 60] = bytes(60)
    run = Run(disk)
    assert content(run.log) == []
    run.append([b"cccc"])
    disk.kill()
    assert reopened(disk)[0] == [b"cccc"]


def test_readers_of_the_old_epoch_are_told() -> None:
    disk = killed_disk()
    reader = JournalReader(Path(DATA_DIR), disk)
    uuid, epoch = reader.uuid, reader.epoch
    del disk.content(LOG)[SEGMENT_HEADER_SIZE + SIZES[0] + SIZES[1] :]
    run = Run(disk)
    run.append([b"another three"])
    newest = reader.epoch
    assert newest > 1
    assert [batch.epoch for batch in reader.scan(0)] == [1, 1, newest]
    with pytest.raises(Exception, match=rf"epoch 1, but this is .* epoch {newest}"):
        reader.scan(0, uuid=uuid, epoch=epoch)
    run.log.close()


def test_the_last_segment_file_is_missing() -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    for _ in range(3):
        run.append([b"x" * 3000])
    disk.kill()
    for name in disk.names(LOG.parent)[-4:]:
        disk.unlink(LOG.parent / name)
    with pytest.raises(CorruptJournal):
        Run(disk)


def test_all_segment_files_are_missing() -> None:
    disk = killed_disk()
    for name in disk.names(LOG.parent):
        disk.unlink(LOG.parent / name)
    with pytest.raises(CorruptJournal, match="no segment"):
        Run(disk)
