"""verify and dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.inspect import dump, frames, verify
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import Started, filled

BODIES = [b"%03d" % i * 50 for i in range(60)]


def first_log(data_dir: Path) -> Path:
    return data_dir / "journal" / f"{0:020d}.log"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_sound_journal(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    report = verify(tmp_path)
    assert report.ok
    assert report.high_watermark == 60
    assert sum(segment.batches for segment in report.segments) == 60
    assert report.lines()[-1] == "ok"
    assert "ends with footer" in report.lines()[1]


def test_a_journal_that_is_being_written(tmp_path: Path) -> None:
    started = Started(tmp_path)
    for body in BODIES:
        started.append(body)
    assert verify(tmp_path).ok
    started.log.close()


def test_no_journal(tmp_path: Path) -> None:
    assert not verify(tmp_path).ok


def test_damage_in_a_batch_is_found_with_its_place(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    flip(first_log(tmp_path), 64 + 206 + 80)
    report = verify(tmp_path)
    assert not report.ok
    assert (
        f"{first_log(tmp_path)}, bytes 270 up to 476: bad checksum; offsets 1 up to 2" in report.problems[0]
    )
    assert report.lines()[-1] == "damaged"


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    sorted((tmp_path / "journal").glob("*.log"))[1].unlink()
    assert "no segment file holds offsets" in verify(tmp_path).problems[0]


def test_a_missing_end_is_found(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    sorted((tmp_path / "journal").glob("*.log"))[-1].unlink()
    assert "up to 60" in verify(tmp_path).problems[0]


def test_what_lies_behind_the_high_watermark_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path, [b"x"])
    path = first_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-64] + b"\xd7HRB half a batch")
    report = verify(tmp_path)
    assert report.ok
    assert "unfinished" in report.notes[0]


def test_other_files_are_checked_too(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    writer = SnapshotWriter(tmp_path / "journal", 5)
    writer.add(b"entry")
    flip(writer.commit(), 70)
    ConsumerPosition.register(tmp_path, "spark", str(verify(tmp_path).uuid), 1, 0)
    flip(tmp_path / "consumers" / "spark", 40)
    indexes = sorted((tmp_path / "journal").glob("*.index"))
    indexes[1].write_bytes(indexes[2].read_bytes())
    report = verify(tmp_path)
    assert len(report.problems) == 2
    flip(first_log(tmp_path), 20)
    assert len(verify(tmp_path).problems) >= 3


def test_an_index_with_a_wrong_place_is_a_note(tmp_path: Path) -> None:
    from headrace.journal.index import pack_entry
    from headrace.journal.segment import SegmentHeader, seed_of

    filled(tmp_path, BODIES)
    header = SegmentHeader.unpack(first_log(tmp_path).read_bytes(), "")
    entries = pack_entry(0, 64, seed_of(header.uuid)) + pack_entry(1, 300, seed_of(header.uuid))
    first_log(tmp_path).with_suffix(".index").write_bytes(entries)
    report = verify(tmp_path)
    assert report.ok
    assert "is wrong" in report.notes[0]


def test_dump_gives_batches_and_frames(tmp_path: Path) -> None:
    body = b"".join(len(rest).to_bytes(4, "little") + rest for rest in (b"\1abc", b"\2", b"\3" + bytes(99)))
    filled(tmp_path, [body, body])
    rows = list(dump(tmp_path))
    assert rows[1] == {
        "base_offset": 1,
        "count": 1,
        "epoch": 1,
        "durable_offset": 0,
        "first_timestamp_us": 2000,
        "max_timestamp_us": 2000,
        "bytes": len(body),
        "records": [(1, 4), (2, 1), (3, 100)],
    }
    assert [row["base_offset"] for row in dump(tmp_path, 1, 2)] == [1]


@pytest.mark.parametrize("body", [b"", b"abc", b"\5\0\0\0"])
def test_what_is_no_frame_ends_the_frames(body: bytes) -> None:
    assert list(frames(body)) == []
