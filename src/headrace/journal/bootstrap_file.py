"""A bootstrap snapshot, for `headrace serve --bootstrap`: a journal's events without what later ones made void.

A file of the layout of `snapshot`, whose position is the checkpoint: the offset of the journal up to which it speaks. Its
first entry says what it is, every other one is a record as it stands in the journal, in the order of their offsets:

    first   9 bytes "bootstrap" | 1 byte version, 1 | 16 bytes uuid of the journal | u64 epoch, little endian
    others  u64 offset, little endian | the record

Who folds these records has the sessions, subscriptions, retained messages and wills of the journal at the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from uuid import UUID

from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.segment import file_name
from headrace.journal.snapshot import SUFFIX, SnapshotFile, SnapshotWriter
from headrace.ownership import make_directory

VERSION = 1
_MAGIC = b"bootstrap"
_FIRST = Struct("<9sB16sQ")
_OFFSET = Struct("<Q")


def bootstrap_path(directory: Path, checkpoint: int) -> Path:
    """Return where `write_bootstrap` puts its file."""
    return directory / file_name(checkpoint, SUFFIX)


def write_bootstrap(
    directory: Path, uuid: str, epoch: int, checkpoint: int, records: Iterable[tuple[int, bytes]]
) -> Path:
    """Write `<directory>/<checkpoint>.snapshot`, synced; the newest two are kept. `records`: offset, bytes; ascending."""
    make_directory(directory)
    writer = SnapshotWriter(directory, checkpoint)
    try:
        writer.add(_FIRST.pack(_MAGIC, VERSION, UUID(uuid).bytes, epoch))
        for offset, record in records:
            writer.add(_OFFSET.pack(offset) + record)
        return writer.commit()
    except BaseException:
        writer.abandon()
        raise


class BootstrapFile:
    """A bootstrap snapshot that passed all its checks. Raises CorruptFile, UnsupportedFormat, FileNotFoundError."""

    def __init__(self, path: Path) -> None:
        self._file = SnapshotFile(path)
        self.checkpoint = self._file.position
        first = next(self._file.entries(), b"")
        if len(first) != _FIRST.size or not first.startswith(_MAGIC):
            raise CorruptFile(f"{path} is a broker's own snapshot, not one to start another broker from")
        _, version, uuid, self.epoch = _FIRST.unpack(first)
        if version > VERSION:
            raise UnsupportedFormat(
                f"{path}: bootstrap version {version}, this headrace reads up to {VERSION}"
            )
        self.uuid = str(UUID(bytes=uuid))

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of each record."""
        entries = self._file.entries()
        next(entries)
        for entry in entries:
            yield _OFFSET.unpack_from(entry)[0], entry[_OFFSET.size :]
