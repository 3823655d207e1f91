"""Repair keeps what can be read at its offsets, lists what cannot, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.message import decode_batch
from headrace.core.record import KIND_PROGRESS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import CorruptJournal, JournalLocked, NoJournal
from headrace.journal.inspect import verify
from headrace.journal.repair import Repair, void_batches
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import filled, opened

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


def test_void_batches_are_of_bounded_size() -> None:
    batches = list(void_batches(10, 10_010, 7, 3))
    assert [(batch.base_offset, batch.count) for batch in batches] == [(10, 4096), (4106, 4096), (8202, 1808)]
    assert all(len(list(decode_batch(batch.body, batch.base_offset))) == batch.count for batch in batches)
