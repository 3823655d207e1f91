"""Released bytes stay readable: a data directory of format version 1, frozen (tests/vectors/journal)."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.inspect import verify
from headrace.journal.reader import JournalReader
from headrace.journal.segment import split_records, void_records
from headrace.journal.snapshot import newest_snapshot
from unit.journal.log_at import opened

V1 = Path(__file__).parents[2] / "vectors" / "journal" / "v1"
UUID = "32ac57f3-839f-4aaf-9979-8d95f52bd869"
SHA256 = "533ff764228100ca4b3772932705fce79fd44a4148dfff095bd09696bca4f907"
TIME_US = 1_700_000_000_000_000
# (base offset, count, first timestamp, largest timestamp, body)
BATCHES = [
    (
        i // 3 * 6 + (0, 1, 3)[i % 3],
        i % 3 + 1,
        TIME_US + i * 1000,
        TIME_US + i * 1000 + 500,
        bytes([65 + i]) * (50 * i),
    )
    for i in range(15)
]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(V1, tmp_path / "v1"))


def test_nobody_changed_them() -> None:
    digest = sha256()
    for path in sorted(path for path in V1.rglob("*") if path.is_file()):
        digest.update(path.relative_to(V1).as_posix().encode() + path.read_bytes())
    assert digest.hexdigest() == SHA256


def test_a_reader_decodes_them() -> None:
    reader = JournalReader(V1)
    assert (reader.uuid, reader.epoch, reader.start_offset(), reader.high_watermark()) == (UUID, 1, 0, 30)
    assert verify(V1).ok
    found = [
        (batch.base_offset, batch.count, batch.first_timestamp_us, batch.max_timestamp_us, batch.body)
        for batch in reader.scan(0)
    ]
    assert found == BATCHES
    assert [(info.base_offset, info.end_offset) for info in reader.segments()] == [(0, 24), (24, 30)]


def test_a_log_opens_them_and_goes_on(data_dir: Path) -> None:
    lines: list[str] = []
    log = opened(data_dir, report=lines.append)
    assert (log.uuid, log.epoch, log.next_offset, lines) == (UUID, 1, 30, [])
    assert [log.read_batch(offset).body for offset in (0, 3, 29)] == [BATCHES[i][4] for i in (0, 2, 14)]
    assert log.append(b"more", 1, 1, 1) == 30
    log.close()
    assert [batch.body for batch in JournalReader(data_dir).scan(30)] == [b"more"]


def test_snapshot_and_consumer() -> None:
    snapshot = newest_snapshot(V1 / "journal")
    assert snapshot is not None
    assert (snapshot.position, snapshot.applied_offset) == (9, 11)
    assert list(snapshot.entries()) == [b"first entry", b"", b"third"]
    consumer = ConsumerPosition.read(V1, "archive")
    assert consumer == ConsumerPosition("archive", UUID, 1, 7, TIME_US, TIME_US)


V2 = V1.parent / "v2"
V2_SHA256 = "5c4d39b6988f98e812312cf794d6d5db7719694dbc628a81bfb3d4de736c9f54"


def test_a_compacted_segment() -> None:
    """Format version 2 of a batch: of 44 records in the first segment, 0, 5, 6 and 30 are kept."""
    digest = sha256()
    for path in sorted(path for path in V2.rglob("*") if path.is_file()):
        digest.update(path.relative_to(V2).as_posix().encode() + path.read_bytes())
    assert digest.hexdigest() == V2_SHA256
    assert verify(V2).ok
    records = [record for batch in JournalReader(V2).scan(0) for record in split_records(batch.body)]
    assert len(records) == 64
    for offset, record in enumerate(records):
        if offset in (0, 5, 6, 30) or offset >= 44:
            assert record[4:] == b"\x09" + bytes([65 + offset % 26]) * (3 * offset)
        else:
            assert record == void_records(1, TIME_US)
