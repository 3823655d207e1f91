"""Backup and restore: `headrace backup` and `headrace restore`.

A backup is a directory laid out as a data directory, with a `manifest.json` that is written last: without it
the backup is not complete. It is taken while a broker runs and is consistent: snapshots first, then the high
watermark, then every segment up to it, each batch checked on the way. A registered consumer position holds
the segments while they are copied.

Restoring goes to the end of the backup or to an offset before it. Either way history goes on differently from
there than it may have gone in the original, so the epoch rises, and whoever remembers an offset is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copyfile
from time import time_ns
from uuid import UUID
from zlib import crc32

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptFile, JournalError, OffsetOutOfRange
from headrace.journal.lock import lock_data_dir
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import Batch, SegmentHeader, file_name, pack_batch_header, seed_of
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.snapshot import SnapshotFile, positions
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import WatermarkState

MANIFEST = "manifest.json"
VERSION = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """`files`: path below the backup -> [size, crc32]."""

    version: int
    uuid: str
    epoch: int
    start_offset: int
    high_watermark: int
    created_us: int
    files: dict[str, list[int]]


def backup(data_dir: Path, target: Path) -> Manifest:
    """Copies what is published to `target`, a directory that is empty or not there yet. Raises NoJournal,
    CorruptBatch, FileExistsError."""
    reader = JournalReader(data_dir)
    uuid, epoch = reader.uuid, reader.epoch
    _make_empty(target)
    name = f"backup-{time_ns()}"
    ConsumerPosition.register(data_dir, name, uuid, epoch, reader.start_offset())
    try:
        _copy_snapshots(data_dir / DIRECTORY, target / DIRECTORY)
        end = reader.high_watermark()
        _copy_consumers(data_dir, target, name)
        writer = _SegmentWriter(target / DIRECTORY, uuid, epoch)
        segments = reader.segments()
        start = segments[0].base_offset
        for info in segments:
            if info.base_offset < end or info.base_offset == start:
                last = min(info.end_offset, end)
                writer.write(info.base_offset, reader.scan(info.base_offset, last, uuid=uuid, epoch=epoch))
    finally:
        ConsumerPosition.remove(data_dir, name)
    _write_watermark(target, uuid, epoch, end)
    manifest = Manifest(VERSION, uuid, epoch, start, end, time_ns() // 1000, _checksums(target))
    DISK.replace(target / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
    return manifest


def read_manifest(source: Path) -> Manifest:
    """Raises CorruptFile if there is none, or a newer one."""
    try:
        fields = json.loads((source / MANIFEST).read_bytes())
        manifest = Manifest(**fields)
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise CorruptFile(f"{source / MANIFEST}: not a complete backup ({error})") from None
    if manifest.version > VERSION:
        raise CorruptFile(
            f"{source / MANIFEST}: version {manifest.version}, this headrace reads up to {VERSION}"
        )
    return manifest


def restore(source: Path, data_dir: Path, to_offset: int | None = None) -> Manifest:
    """Makes a data directory from a backup, with the records below `to_offset`. Returns what is there now.

    Raises CorruptFile, OffsetOutOfRange, JournalError if no state is known at that offset, JournalLocked,
    FileExistsError if `data_dir` holds a journal.
    """
    manifest = read_manifest(source)
    end = manifest.high_watermark if to_offset is None else to_offset
    if not manifest.start_offset <= end <= manifest.high_watermark:
        raise OffsetOutOfRange(end, manifest.start_offset, manifest.high_watermark)
    _check(source, manifest)
    kept = _snapshots_up_to(source / DIRECTORY, end)
    if manifest.start_offset > 0 and not kept:
        raise JournalError(
            f"the backup begins at offset {manifest.start_offset} and has no snapshot up to {end}; "
            "the state of sessions at that offset is not in it"
        )
    if (data_dir / DIRECTORY).exists() and any((data_dir / DIRECTORY).iterdir()):
        raise FileExistsError(f"{data_dir} already holds a journal")
    (data_dir / DIRECTORY).mkdir(parents=True, exist_ok=True)
    lock_fd = lock_data_dir(DISK, data_dir)
    try:
        restored = _lay_out(source, data_dir, manifest, end, kept)
    finally:
        DISK.close(lock_fd)
    return restored


def _lay_out(source: Path, data_dir: Path, manifest: Manifest, end: int, kept: list[Path]) -> Manifest:
    epoch = manifest.epoch + 1
    reader = JournalReader(source)
    writer = _SegmentWriter(data_dir / DIRECTORY, manifest.uuid, epoch)
    for info in reader.segments():
        if info.base_offset < end or info.base_offset == manifest.start_offset:
            writer.write(
                info.base_offset, _up_to(reader.scan(info.base_offset, min(info.end_offset, end)), end)
            )
    for path in kept:
        _copy_synced(path, data_dir / DIRECTORY / path.name)
    _copy_consumers(source, data_dir, "")
    _write_watermark(data_dir, manifest.uuid, epoch, end)
    return Manifest(VERSION, manifest.uuid, epoch, manifest.start_offset, end, time_ns() // 1000, {})


def _up_to(batches: Iterator[Batch], end: int) -> Iterator[Batch]:
    """Cuts the last batch between two records if it reaches beyond `end`."""
    for batch in batches:
        if batch.end_offset <= end:
            yield batch
            continue
        at = 0
        for _ in range(end - batch.base_offset):
            at += 4 + int.from_bytes(batch.body[at : at + 4], "little")
        times = (batch.first_timestamp_us, batch.max_timestamp_us)
        yield Batch(batch.base_offset, end - batch.base_offset, *times, batch.body[:at], batch.epoch)


class _SegmentWriter:
    """Writes finished segments: header, batches, footer, synced."""

    def __init__(self, directory: Path, uuid: str, epoch: int) -> None:
        self._directory = directory
        self._uuid = UUID(uuid).bytes
        self._epoch = epoch
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, base_offset: int, batches: Iterator[Batch]) -> None:
        segment = Segment(self._directory, base_offset)
        fd = DISK.create(segment.path)
        file = SegmentFile(DISK, segment, fd, 0, 0)
        seed = seed_of(self._uuid)
        DISK.write_fully(
            fd, [SegmentHeader(self._uuid, self._epoch, base_offset, time_ns() // 1000).pack()], 0
        )
        for batch in batches:
            durable = min(batch.durable_offset, batch.base_offset)
            times = (batch.first_timestamp_us, batch.max_timestamp_us)
            head = pack_batch_header(
                seed, batch.body, batch.base_offset, batch.count, batch.epoch, durable, *times
            )
            segment.size = DISK.write_fully(fd, [head, batch.body], segment.size)
            segment.note(*times)
            segment.end_offset = batch.end_offset
        file.seal(seed)
        file.close()
        DISK.fsync_directory(self._directory)


def _make_empty(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty")
    (target / DIRECTORY).mkdir()


def _copy_snapshots(source: Path, target: Path) -> None:
    """The whole ones. A new one may take the place of the oldest meanwhile."""
    for position in positions(source):
        path = source / file_name(position, SNAPSHOT_SUFFIX)
        with suppress(FileNotFoundError, CorruptFile):
            SnapshotFile(path)
            _copy_synced(path, target / path.name)


def _snapshots_up_to(directory: Path, end: int) -> list[Path]:
    """Those that reflect no record at or above `end`."""
    paths = [directory / file_name(position, SNAPSHOT_SUFFIX) for position in positions(directory)]
    return [path for path in paths if SnapshotFile(path).applied_offset <= end]


def _copy_consumers(source: Path, target: Path, without: str) -> None:
    for position in ConsumerPosition.list(source):
        if position.name != without:
            (target / CONSUMERS).mkdir(exist_ok=True)
            DISK.replace(target / CONSUMERS / position.name, position.pack())


def _copy_synced(source: Path, target: Path) -> None:
    copyfile(source, target)
    fd = DISK.open(target, write=True)
    try:
        DISK.fsync(fd)
    finally:
        DISK.close(fd)


def _write_watermark(target: Path, uuid: str, epoch: int, end: int) -> None:
    DISK.replace(target / WATERMARK, WatermarkState(UUID(uuid).bytes, epoch, end, end).pack_page())


def _checksums(target: Path) -> dict[str, list[int]]:
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): _checksum(path) for path in paths}


def _checksum(path: Path) -> list[int]:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc = crc32(chunk, crc)
    return [size, crc]


def _check(source: Path, manifest: Manifest) -> None:
    for name, expected in manifest.files.items():
        try:
            found = _checksum(source / name)
        except FileNotFoundError:
            raise CorruptFile(f"{source / name}: missing from the backup") from None
        if found != expected:
            raise CorruptFile(
                f"{source / name}: not the file that was backed up (size, crc32 {found}, not {expected})"
            )
