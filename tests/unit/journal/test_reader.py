"""Reading from outside: never beyond the high watermark, and clear answers when records or the history are gone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.journal.errors import CorruptBatch, CorruptFile, EpochMismatch, NoJournal, OffsetOutOfRange
from headrace.journal.reader import JournalReader
from unit.journal.log_at import SMALL, Started, filled, opened

BODIES = [b"%03d" % i * 50 for i in range(100)]


def test_an_empty_journal(tmp_path: Path) -> None:
    log = opened(tmp_path)
    reader = JournalReader(tmp_path)
    assert (reader.uuid, reader.epoch) == (log.uuid, 1)
    assert (reader.start_offset(), reader.high_watermark()) == (0, 0)
    assert list(reader.scan(0)) == []
    assert [(info.base_offset, info.end_offset, info.bytes) for info in reader.segments()] == [(0, 0, 0)]
    log.close()


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        JournalReader(tmp_path).high_watermark()
    filled(tmp_path, [b"x"])
    (tmp_path / "journal" / f"{0:020d}.log").unlink()
    with pytest.raises(CorruptFile, match="no segment"):
        JournalReader(str(tmp_path)).start_offset()


def test_it_follows_a_running_writer(tmp_path: Path) -> None:
    started = Started(tmp_path)
    reader = JournalReader(tmp_path)
    for i, body in enumerate(BODIES):
        started.append(body, time_us=1000 + i)
        assert reader.high_watermark() == i + 1
        assert [batch.body for batch in reader.scan(i)] == [body]
    assert [batch.body for batch in reader.scan(0)] == BODIES
    infos = reader.segments()
    assert [info.base_offset for info in infos[1:]] == [info.end_offset for info in infos[:-1]]
    assert infos[-1].end_offset == len(BODIES)
    assert sum(info.bytes for info in infos) == sum(len(body) + 56 for body in BODIES)
    assert (infos[0].min_ts, infos[-1].max_ts) == (1000, 1099)
    started.log.close()
    assert reader.segments() == infos


def test_any_part_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    reader = JournalReader(tmp_path)
    for start in range(0, len(BODIES), 7):
        for end in (start, start + 1, start + 30, 1000):
            assert [batch.body for batch in reader.scan(start, end)] == BODIES[start:end]


def test_batches_carry_the_epoch_they_were_written_in(tmp_path: Path) -> None:
    filled(tmp_path, [b"x"])
    assert [batch.epoch for batch in JournalReader(tmp_path).scan(0)] == [1]


def test_never_beyond_the_high_watermark(tmp_path: Path) -> None:
    started = Started(tmp_path)
    started.append(b"seen")
    published = (tmp_path / "watermark").read_bytes()
    started.append(b"written, not published")
    (tmp_path / "watermark").write_bytes(published)
    assert [batch.body for batch in JournalReader(tmp_path).scan(0)] == [b"seen"]
    with pytest.raises(OffsetOutOfRange):
        JournalReader(tmp_path).scan(2)
    started.log.close()


def test_a_start_that_retention_passed(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    log = opened(tmp_path, replace(SMALL, retention_bytes=5000))
    log.set_floor(100)
    reader = JournalReader(tmp_path)
    scan = reader.scan(0)
    next(scan)
    log.apply_retention()
    log.close()
    with pytest.raises(OffsetOutOfRange) as caught:
        reader.scan(0)
    assert caught.value.start_offset == reader.start_offset() > 0
    with pytest.raises(OffsetOutOfRange):
        list(scan)


def test_another_journal_or_epoch(tmp_path: Path) -> None:
    filled(tmp_path, [b"x"])
    reader = JournalReader(tmp_path)
    reader.check(reader.uuid, 1)
    for uuid, epoch in ((reader.uuid, 2), ("00000000-0000-0000-0000-000000000000", 1)):
        with pytest.raises(EpochMismatch):
            reader.check(uuid, epoch)
        with pytest.raises(EpochMismatch):
            reader.scan(0, uuid=uuid, epoch=epoch)


def test_damage_is_said_with_its_place(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    path = tmp_path / "journal" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[64 + 206 + 100] ^= 1
    path.write_bytes(data)
    scan = JournalReader(tmp_path).scan(0)
    assert next(scan).body == BODIES[0]
    with pytest.raises(CorruptBatch) as caught:
        next(scan)
    assert (caught.value.path, caught.value.position, caught.value.offset) == (str(path), 64 + 206, 1)


@pytest.mark.parametrize("damage", [b"", b"?" * 64, None])
def test_the_index_is_not_trusted(tmp_path: Path, damage: bytes | None) -> None:
    filled(tmp_path, BODIES)
    for path in (tmp_path / "journal").glob("*.index"):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
    assert [batch.body for batch in JournalReader(tmp_path).scan(17)] == BODIES[17:]


def test_an_index_of_another_segment_leads_nobody_astray(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    indexes = sorted((tmp_path / "journal").glob("*.index"))
    indexes[0].write_bytes(indexes[1].read_bytes())
    indexes[2].write_bytes(indexes[1].read_bytes())
    assert [batch.body for batch in JournalReader(tmp_path).scan(5)] == BODIES[5:]
    assert [batch.body for batch in JournalReader(tmp_path).scan(55)] == BODIES[55:]


def test_the_read_side_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import headrace.journal.reader, headrace.journal.consumers;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'headrace'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
