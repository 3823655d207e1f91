"""What a tenant sees of a journal: its own messages, where they are, and zeros in the place of the rest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from librt.strings import BytesWriter

from headrace.api import tenant_view
from headrace.api.tenant_view import TenantView, without_others
from headrace.core.records.message import Message
from headrace.core.records.record import ACKED, Progress, Record
from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptBatch
from headrace.journal.finished import FinishedSegment
from headrace.journal.index import SUFFIX
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import DIRECTORY
from headrace.journal.segment import (
    SPARSE,
    Batch,
    file_name,
    pack_batch_header,
    sparse_body,
    split_records,
    unpack_batch,
)
from headrace.journal.walk import Walk

SEED = 7


def message(tenant: str, payload: bytes, client: str = "c") -> bytes:
    origin = (tenant + client).encode()
    length = len(tenant.encode())
    return packed(Message(1_000_000, 1, 5, 9, tenant, origin, length, b"t", b"", -1, payload))


def packed(record: Record) -> bytes:
    out = BytesWriter()
    record.encode_into(out)
    return bytes(out.getvalue())


OTHERS = [
    message("acme2", b"secret"),
    message("acm", b"secret"),
    message("", b"acme secret", "acme"),
    packed(Progress(ACKED, 3, b"secret!!" * 2)),
]
OURS = [message("acme", b"ours %d" % n * n) for n in range(5)]


def batch_of(records: list[bytes], sparse: bool = False) -> bytes:
    body, count = b"".join(records), len(records)
    if sparse:
        body, count = sparse_body({2 * place: record for place, record in enumerate(records)}), 2 * count
    return pack_batch_header(SEED, body, 10, count, 1, 0, 50, 60, SPARSE if sparse else 0) + body


@pytest.mark.parametrize("sparse", [False, True])
def test_only_messages_of_the_tenant_are_left_in_their_places(sparse: bool) -> None:
    mixed = [record for pair in zip(OTHERS, OURS, strict=False) for record in pair]
    whole = batch_of(mixed, sparse)
    seen = without_others(whole, SEED, b"acme")
    assert len(seen) == len(whole)
    batch, before = unpack_batch(seen, 0, SEED), unpack_batch(whole, 0, SEED)
    assert batch is not None
    assert before is not None
    assert (batch.base_offset, batch.count, batch.epoch) == (before.base_offset, before.count, before.epoch)
    found, expected = split_records(batch.body), split_records(before.body)
    assert [record in OURS for record in found] == [record in OURS for record in expected]
    assert [record for record in found if record in OURS] == OURS[: len(OTHERS)]
    for record, original in zip(found, expected, strict=True):
        if original in OTHERS:
            assert record == original[:4] + bytes(len(original) - 4)
    assert b"secret" not in seen


def test_nobody_s_tenant_sees_what_has_no_tenant_and_no_more() -> None:
    """A client id that begins like a tenant is not taken for one."""
    seen = without_others(batch_of([*OTHERS, *OURS]), SEED, b"acmeacme")
    assert b"secret" not in seen
    assert b"ours" not in seen


class Kept:
    """A segment of batches of both, as the log writes it."""

    def __init__(self, data_dir: Path) -> None:
        settings = LogSettings(segment_bytes_max=1 << 20, index_interval_bytes=2000)
        self.directory = data_dir / DIRECTORY
        with closing(SegmentedLog.open(data_dir, settings, lambda _line: None)) as log:
            for n in range(60):
                body = message("other", b"secret" * 20) + message("acme", b"ours %d" % n * 10)
                log.append(body, 2, n + 1, n + 1)
        self.index = (self.directory / file_name(0, SUFFIX)).read_bytes()

    def segment(self) -> FinishedSegment:
        return FinishedSegment(DISK, self.directory, 0)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def batches(data: bytes, tmp_path: Path, seed: int) -> list[Batch]:
    (tmp_path / "seen").write_bytes(data)
    fd = DISK.open(tmp_path / "seen")
    try:
        return list(Walk(DISK, fd, seed, 0))
    finally:
        DISK.close(fd)


@pytest.mark.parametrize("step", [97, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("with_index", [True, False])
def test_parts_of_any_size_make_the_same_segment(
    kept: Kept, tmp_path: Path, step: int, with_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_view, "RANGE_BYTES_MAX", 1 << 20)
    view = TenantView()
    index = kept.index if with_index else b""
    with kept.segment() as segment:
        parts = [
            view.read(segment, index, at, min(step, segment.size - at), "acme")
            for at in range(0, segment.size, step)
        ]
        data = b"".join(parts)
        assert len(data) == segment.size
        assert [len(part) for part in parts[:-1]] == [step] * (len(parts) - 1)
        assert data[:64] == segment.read(0, 64)
        assert data[-64:] == segment.read(segment.size - 64, 64)
        assert b"secret" not in data
        found = [
            record for batch in batches(data, tmp_path, segment.seed) for record in split_records(batch.body)
        ]
    assert [record for record in found if record[4]] == [
        message("acme", b"ours %d" % n * 10) for n in range(60)
    ]


def test_an_answer_is_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_view, "RANGE_BYTES_MAX", 300)
    with kept.segment() as segment:
        assert len(TenantView().read(segment, kept.index, 0, segment.size, "acme")) == 300


def test_an_index_that_lies_is_not_trusted(kept: Kept) -> None:
    """It was made for other bytes: the walk begins where the segment does."""
    with kept.segment() as segment:
        true = TenantView().read(segment, b"", 3000, 2000, "acme")
        assert TenantView().read(segment, kept.index[16:48] + kept.index[:16], 3000, 2000, "acme") == true


@pytest.mark.parametrize("at", [64, 64 + 9, 64 + 56 + 45], ids=["magic", "length", "a record"])
def test_a_damaged_batch_is_said_and_nothing_behind_it_is_shown(kept: Kept, at: int) -> None:
    path = kept.directory / file_name(0)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    with kept.segment() as segment, pytest.raises(CorruptBatch):
        TenantView().read(segment, kept.index, 0, 5000, "acme")
