"""Snapshots of a shard in a partition of Kafka: pieces, and behind them a manifest, without which they are nothing.

The records are those of `envelope`, of the journal that the snapshots are of. Little endian:

kind 6, PIECE, numbered from 0 on:

     0  16  random bytes, which name the snapshot
    16      entries (`headrace.core.state.snapshots`), each with its length in 4 bytes in front; one may go on in the next

kind 7, MANIFEST, behind the last piece:

     0  16  the name of the snapshot
    16  16  that of the one whose changes these are; zeros: it is a full one
    32   8  position: records from this offset on must be applied behind it
    40   8  applied offset: no entry reflects a record at or above it
    48   8  Kafka offset of a MARK in the journal's partition, behind all that the snapshot has: it was confirmed
            before, and has the epoch that the manifest's envelope has
    56   8  time of creation, microseconds since 1970
    64   8  count of entries
    72   4  count of pieces
    76   4  crc32 of the pieces, without their names
    80   4  count of what follows
    84      index: the record offset that comes next at a MARK and the Kafka offset of it, 8 bytes each, ascending: MARKs
            that were confirmed, from the one on that the journal's partition was deleted up to; 0 and 0 where nothing
            was. The last one is that at 48

The index is where a reader begins who wants what queues refer to, and not only what is behind the position: whatever is
deleted meanwhile is deleted up to one of them.
A manifest is written once everything in its snapshot is confirmed. So a snapshot stays true whoever owns the shard by
then: one that an owner finishes late, when another has the shard, only lies further back. Of two chains the one that
reaches further is the newer one, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from headrace.journal.errors import CorruptFile
from headrace.journal.segment import seed_of
from headrace.storage.kafka.envelope import MANIFEST, PIECE, Envelope, Epoch, pack, unpack

NAME_SIZE: Final = 16
PIECE_BYTES: Final = 1 << 20
CHAINS_KEPT: Final = 2
FULL: Final = bytes(NAME_SIZE)
_MANIFEST: Final = Struct("<16s16sQQqQQIII")
_PAIR: Final = Struct("<QQ")
LENGTH: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a whole snapshot. `parent` is the name of the snapshot whose changes these are, `FULL` if it is
    none of changes; `index` has pairs of the next record offset at a MARK and its Kafka offset, ascending."""

    name: bytes
    parent: bytes
    position: int
    applied: int
    mark: int
    created_us: int
    entries: int
    pieces: int
    crc: int
    index: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Whole:
    """A snapshot whose pieces are all there: its manifest, the epoch that this has, and the Kafka offsets of its first
    piece and of the manifest; of one without pieces both are the manifest's."""

    manifest: Manifest
    epoch: Epoch
    first: int
    last: int


def pack_piece(seed: int, epoch: Epoch, name: bytes, number: int, data: bytes) -> bytes:
    """Return a PIECE of the snapshot `name`, written by the owner with this epoch."""
    return pack(seed, PIECE, epoch, name + data, number)


def pack_manifest(seed: int, epoch: Epoch, manifest: Manifest) -> bytes:
    """Return a MANIFEST, written by the owner with this epoch."""
    head = _MANIFEST.pack(
        manifest.name,
        manifest.parent,
        manifest.position,
        manifest.applied,
        manifest.mark,
        manifest.created_us,
        manifest.entries,
        manifest.pieces,
        manifest.crc,
        len(manifest.index),
    )
    return pack(seed, MANIFEST, epoch, head + b"".join(_PAIR.pack(*pair) for pair in manifest.index))


def manifest_of(content: bytes) -> Manifest | None:
    """Return what a MANIFEST holds; None if its size is another one than it says."""
    if len(content) < _MANIFEST.size:
        return None
    name, parent, position, applied, mark, created_us, entries, pieces, crc, count = _MANIFEST.unpack_from(
        content
    )
    if len(content) != _MANIFEST.size + count * _PAIR.size:
        return None
    index = tuple(_PAIR.iter_unpack(content[_MANIFEST.size :]))
    return Manifest(name, parent, position, applied, mark, created_us, entries, pieces, crc, index)


def pieces_of(entries: Iterable[bytes], bytes_max: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield what the pieces of a snapshot with these entries hold, none of them more than `bytes_max`."""
    waiting = bytearray()
    for entry in entries:
        waiting += LENGTH.pack(len(entry))
        waiting += entry
        while len(waiting) >= bytes_max:
            yield bytes(waiting[:bytes_max])
            del waiting[:bytes_max]
    if waiting:
        yield bytes(waiting)


def entries_in(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the entries that the pieces of a whole snapshot hold. Raises CorruptFile if they end within one."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        at = 0
        while at + LENGTH.size <= len(waiting):
            end = at + LENGTH.size + LENGTH.unpack_from(waiting, at)[0]
            if end > len(waiting):
                break
            yield bytes(waiting[at + LENGTH.size : end])
            at = end
        del waiting[:at]
    if waiting:
        raise CorruptFile("a snapshot in Kafka ends within an entry")


@dataclass(slots=True)
class _Begun:
    """The pieces of a snapshot so far, whose manifest is still to come."""

    first: int
    pieces: int = 0
    crc: int = 0


def _kept_nowhere(name: bytes, data: bytes) -> None:
    """Keep nothing: nobody wants the pieces."""


class ChainFold:
    """The fold of a partition of snapshots: which of them are whole. It looks at each record once, and keeps no piece."""

    def __init__(self, uuid: bytes, keep: Callable[[bytes, bytes], None] = _kept_nowhere) -> None:
        """Begin at the oldest record of the partition, with snapshots of the journal of these 16 bytes. `keep` is given
        the name of a snapshot and what its next piece holds, for each piece in its order."""
        self._seed = seed_of(uuid)
        self._keep = keep
        self._begun: dict[bytes, _Begun] = {}
        self.whole: dict[bytes, Whole] = {}

    def take(self, offset: int, value: bytes | None) -> Whole | None:
        """Take the record at a Kafka offset. Returns the snapshot that is whole by it."""
        found = unpack(self._seed, value or b"")
        if found is None:
            return None
        if found.kind == PIECE and len(found.content) >= NAME_SIZE:
            self._piece(offset, found.number, found.content)
        elif found.kind == MANIFEST:
            return self._manifest(offset, found)
        return None

    def _piece(self, offset: int, number: int, content: bytes) -> None:
        name = content[:NAME_SIZE]
        begun = self._begun.setdefault(name, _Begun(offset))
        if (
            number == begun.pieces
        ):  # another one is a repeat, or one before it is missing, which the manifest shows
            begun.pieces += 1
            begun.crc = crc32(content[NAME_SIZE:], begun.crc)
            self._keep(name, content[NAME_SIZE:])

    def _manifest(self, offset: int, found: Envelope) -> Whole | None:
        manifest = manifest_of(found.content)
        if manifest is None or manifest.name in self.whole:
            return None
        begun = self._begun.pop(manifest.name, _Begun(offset))
        if (begun.pieces, begun.crc) != (manifest.pieces, manifest.crc):
            return None
        whole = self.whole[manifest.name] = Whole(manifest, found.epoch, begun.first, offset)
        return whole

    def forget_below(self, offset: int) -> None:
        """Forget the snapshots of which the partition has lost pieces: it begins at `offset` by now."""
        self.whole = {name: whole for name, whole in self.whole.items() if whole.first >= offset}
        self._begun = {name: begun for name, begun in self._begun.items() if begun.first >= offset}

    def chains(self, start: int) -> list[list[Whole]]:
        """Return the chains that a start may begin with, the one that reaches furthest first: a full snapshot, and those
        of changes behind it in their order. `start` is where the journal's partition begins: a chain whose last MARK
        lies before it is none."""
        found = [self._chain(whole, start) for whole in self.whole.values() if whole.manifest.parent == FULL]
        return sorted(filter(None, found), key=lambda chain: chain[-1].manifest.position, reverse=True)

    def _chain(self, full: Whole, start: int) -> list[Whole]:
        chain = [full]
        while True:
            following = [
                whole
                for whole in self.whole.values()
                if whole.manifest.parent == chain[-1].manifest.name
                and whole.manifest.position > chain[-1].manifest.position
            ]
            if not following:
                break
            chain.append(max(following, key=lambda whole: whole.manifest.position))
        # A later one may stand on changes whose own MARK is gone, as long as its own is there.
        return chain if chain[-1].manifest.mark >= start else []

    def kept_from(self, start: int) -> int | None:
        """Return the Kafka offset below which this partition has nothing of the newest `CHAINS_KEPT` chains; None while
        there are fewer."""
        kept = self.chains(start)[:CHAINS_KEPT]
        if len(kept) < CHAINS_KEPT:
            return None
        return min(whole.first for chain in kept for whole in chain)

    def floor(self, start: int) -> Manifest | None:
        """Return the manifest of the full snapshot of the older chain that is kept: what lies before its position, and
        before its MARK, no start needs. None while there are fewer chains."""
        kept = self.chains(start)[:CHAINS_KEPT]
        return None if len(kept) < CHAINS_KEPT else kept[-1][0].manifest
