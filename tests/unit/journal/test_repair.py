"""Repair keeps what can be read at its offsets, lists what cannot, and overwrites nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from zlib import crc32

import pytest

from headrace.core.records.message import decode_batch
from headrace.core.records.record import KIND_PROGRESS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptJournal, JournalError, JournalLocked, NoJournal
from headrace.journal.inspect import verify
from headrace.journal.reader import JournalReader
from headrace.journal.repair import Repair
from headrace.journal.snapshot import SnapshotWriter
from headrace.journal.voids import VOIDS_MAX
from headrace.journal.watermark import STORES_VERSION, VERSION
from unit.journal.log_at import filled, opened
from unit.journal.test_restore import killed

BODIES = [b"%02d" % i * 450 for i in range(12)]  # four a segment
SIZE = 56 + 900


def log_file(tmp_path: Path, base: int) -> Path:
    return tmp_path / "journal" / f"{base:020d}.log"


def hurt(path: Path, at: int, data: bytes = b"\xff\xff") -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def repaired(tmp_path: Path) -> tuple[list[str], int]:
    with Repair(tmp_path) as repair:
        lines = repair.plan()
        repair.run()
        return lines, repair.lost_records


def content(tmp_path: Path) -> dict[int, bytes]:
    log = opened(tmp_path)
    try:
        assert log.next_offset == log.high_watermark == 12
        return {batch.base_offset: batch.body for batch in log.scan(0)}
    finally:
        log.close()


def test_nothing_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    with Repair(tmp_path) as repair:
        assert repair.plan() == []
        assert repair.run() == []
    assert content(tmp_path) == dict(enumerate(BODIES))


@pytest.mark.parametrize(("base", "lost"), [(0, 1), (4, 2), (8, 1), (8, 3)])
def test_one_batch_in_any_segment(tmp_path: Path, base: int, lost: int) -> None:
    filled(tmp_path, BODIES)
    path = log_file(tmp_path, base)
    hurt(path, 64 + lost * SIZE + 500)
    before = path.read_bytes()
    gone = base + lost
    with pytest.raises(CorruptJournal) as refused:
        opened(tmp_path)
    assert f"{path}, byte {64 + lost * SIZE}: bad checksum; offsets {gone} up to" in str(refused.value)
    with Repair(tmp_path) as repair:  # planning changes nothing
        assert len(repair.plan()) == 1
    assert path.read_bytes() == before
    lines, count = repaired(tmp_path)
    assert count == 1
    assert f"offsets {gone} up to {gone + 1} (1 records) cannot be read" in lines[0]
    found = content(tmp_path)
    void = found.pop(gone)
    assert found == {i: body for i, body in enumerate(BODIES) if i != gone}
    assert [record.kind for record in decode_batch(void, gone)] == [KIND_PROGRESS]
    assert [path.read_bytes() for path in (tmp_path / "damaged").iterdir()] == [before]
    assert verify(tmp_path).ok


def test_a_header_and_both_watermarks(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    hurt(log_file(tmp_path, 4), 20)
    hurt(tmp_path / "watermark", 20)
    hurt(tmp_path / "watermark", 532)
    lines, count = repaired(tmp_path)
    assert count == 0
    assert any("header is damaged" in line for line in lines)
    assert content(tmp_path) == dict(enumerate(BODIES))


def test_a_segment_that_is_gone(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    log_file(tmp_path, 4).unlink()
    lines, count = repaired(tmp_path)
    assert count == 4
    assert lines == ["no segment file holds offsets 4 up to 8 (4 records)"]
    found = content(tmp_path)
    assert [found[i] for i in (0, 1, 2, 3, 8, 9, 10, 11)] == BODIES[:4] + BODIES[8:]


def test_small_files_are_moved_away(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    log = opened(tmp_path)
    for position in (3, 6):
        writer = SnapshotWriter(log.directory, position)
        writer.add(b"state")
        writer.commit()
    ConsumerPosition.register(tmp_path, "archive", log.uuid, log.epoch, 2)
    log.close()
    hurt(tmp_path / "journal" / f"{6:020d}.snapshot", 66)
    hurt(tmp_path / "consumers" / "archive", 30)
    report = verify(tmp_path)
    assert len(report.problems) == 2
    lines, count = repaired(tmp_path)
    assert count == 0
    assert len(lines) == 2
    assert sorted(path.name.rsplit(".", 1)[0] for path in (tmp_path / "damaged").iterdir()) == [
        f"{6:020d}.snapshot",
        "archive",
    ]
    assert verify(tmp_path).ok


def test_a_broker_is_running(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    log = opened(tmp_path)
    with pytest.raises(JournalLocked):
        Repair(tmp_path)
    log.close()


def test_there_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        Repair(tmp_path)


def test_void_batches_are_of_bounded_size_and_take_little_space(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(b"x" * 100, 10_000, 1, 1)
    log.append(b"y", 1, 2, 2)
    log.close()
    hurt(log_file(tmp_path, 0), 64 + 60)
    repaired(tmp_path)
    assert log_file(tmp_path, 0).stat().st_size < 500
    batches = list(JournalReader(tmp_path).scan(0))
    assert [batch.count for batch in batches] == [VOIDS_MAX, VOIDS_MAX, 10_000 - 2 * VOIDS_MAX, 1]
    assert all(len(list(decode_batch(batch.body, batch.base_offset))) == batch.count for batch in batches[:3])


@pytest.mark.slow
def test_killed_before_any_call_repair_is_run_again_and_loses_no_more(tmp_path: Path) -> None:
    number, done = 0, False
    damaged = tmp_path / "0"
    filled(damaged, BODIES)
    hurt(log_file(damaged, 0), 64 + 500)
    hurt(log_file(damaged, 8), 64 + SIZE + 500)
    log_file(damaged, 4).unlink()
    hurt(damaged / "watermark", 20)
    hurt(damaged / "watermark", 532)
    while not done:
        number += 1
        data = tmp_path / str(number)
        shutil.copytree(damaged, data)

        def mend(disk: Disk, data: Path = data) -> None:
            with Repair(data, disk) as repair:
                repair.plan()
                repair.run()

        done = not killed(mend, number)
        mend(DISK)
        assert verify(data).ok
        assert JournalReader(data).epoch >= 2
        found = content(data)
        kept = {i: body for i, body in enumerate(BODIES) if i not in (0, 4, 5, 6, 7, 9)}
        assert {i: found[i] for i in kept} == kept
    assert number > 20


def test_what_a_newer_headrace_wrote_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    path = log_file(tmp_path, 4)
    rest = bytearray(path.read_bytes()[8:64])
    rest[0] = 9
    hurt(path, 4, crc32(rest).to_bytes(4, "little") + rest)
    with Repair(tmp_path) as repair:
        assert any("version 9" in line for line in repair.plan())
        with pytest.raises(JournalError, match="nothing was changed"):
            repair.run()
    assert not verify(tmp_path).ok


def test_what_the_journal_says_of_its_beginning_stays(tmp_path: Path) -> None:
    """From where it is complete, and where it begins: nothing else knows of a journal that was divided."""
    filled(tmp_path, BODIES)
    log = opened(tmp_path)
    log._watermark.publish_complete(6)
    log.close()
    hurt(log_file(tmp_path, 8), 64 + SIZE + 500)
    repaired(tmp_path)
    reader = JournalReader(tmp_path)
    assert reader.complete_offset() == 6
    content(tmp_path)
    assert reader.complete_offset() == 6


@pytest.mark.parametrize("is_there", [True, False])
def test_a_journal_that_no_slot_speaks_of_is_refused_by_an_older_headrace(
    tmp_path: Path, is_there: bool
) -> None:
    """What its records speak of, streams or stores, nobody has written down elsewhere."""
    filled(tmp_path, BODIES)
    log = opened(tmp_path)
    log._watermark.publish_complete(6)
    log.close()
    assert JournalReader(tmp_path).version == VERSION
    if is_there:
        hurt(tmp_path / "watermark", 20)
        hurt(tmp_path / "watermark", 532)
        with Repair(tmp_path) as repair:
            repair.plan()
            assert "an older headrace will refuse the journal" in repair.run()[0]
    else:
        (tmp_path / "watermark").unlink()
    content(tmp_path)
    reader = JournalReader(tmp_path)
    assert reader.version == STORES_VERSION
    assert reader.complete_offset() == (6 if is_there else 0)
