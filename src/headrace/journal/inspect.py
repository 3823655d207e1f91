"""Looking into a journal from outside: `headrace journal verify` and `dump`. Takes no lock, writes nothing.

What verify reads, and what counts as damage, `diagnosis` says: it is what `headrace journal repair` would mend.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.journal.diagnosis import diagnose
from headrace.journal.disk import DISK, Disk
from headrace.journal.findings import Report
from headrace.journal.reader import JournalReader


def verify(data_dir: Path, disk: Disk = DISK) -> Report:
    """Read the whole journal. Damage is in the report, never an exception."""
    return diagnose(data_dir, disk)


def dump(
    data_dir: Path, start: int | None = None, end: int | None = None, disk: Disk = DISK
) -> Iterator[dict[str, object]]:
    """Yield one dict a batch, with the frames of its records as (kind, length); what is inside is not decoded."""
    reader = JournalReader(data_dir, disk)
    for batch in reader.scan(reader.start_offset() if start is None else start, end):
        yield {
            "base_offset": batch.base_offset,
            "count": batch.count,
            "epoch": batch.epoch,
            "durable_offset": batch.durable_offset,
            "first_timestamp_us": batch.first_timestamp_us,
            "max_timestamp_us": batch.max_timestamp_us,
            "bytes": len(batch.body),
            "records": list(frames(batch.body)),
        }


def frames(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield (kind, length) of the records in a batch body, as `core/records/record.py` frames them; stops where that
    ends."""
    at = 0
    while at + 5 <= len(body):
        length = int.from_bytes(body[at : at + 4], "little")
        yield body[at + 4], length
        at += 4 + length
