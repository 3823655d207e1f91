"""The snapshots of one shard in their partition (`chains`): read through at a start, and written while the shard is
served.

Runs on the loop; Kafka's threads are behind the mailbox. What pieces hold lies in files of the cache's directory from the
reading to the end of the recovery: a snapshot may be larger than memory has room for beside the state that comes of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from zlib import crc32

from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptFile
from headrace.journal.segment import seed_of
from headrace.storage.kafka.chains import (
    LENGTH,
    NAME_SIZE,
    PIECE_BYTES,
    ChainFold,
    Manifest,
    Whole,
    entries_in,
    pack_manifest,
    pack_piece,
)
from headrace.storage.kafka.envelope import NO_OWNER, Epoch
from headrace.storage.kafka.keeping import Place, newest_chain
from headrace.storage.kafka.mailbox import Clients, Hearer, Mailbox, Records

SUFFIX: Final = ".pieces"
WAIT_S: Final = 0.1
READ_BYTES: Final = 1 << 20

# Confirms a MARK behind everything that a snapshot has, and returns the epoch that it has and the places that stand, of
# which it is the last one. Raises OSError.
Seal = Callable[[], Awaitable[tuple[Epoch, list[Place]]]]


class SnapshotTopic:
    """The partition of a shard's snapshots. `fold` says which of them are whole."""

    def __init__(
        self,
        uuid: bytes,
        directory: Path,
        connect: Callable[[Hearer], Clients],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to know the snapshots of the journal with these 16 bytes as its name. `directory` is for what is read."""
        self._seed = seed_of(uuid)
        self._directory = directory
        self._report = report
        self._clock = clock
        self.fold = ChainFold(uuid, self._keep)
        self._mailbox = Mailbox(self)
        self._clients = connect(self._mailbox)
        self._at = 0  # the Kafka offset that is read next
        self._reading = 0
        self._has_ended = False
        self.heard_at = clock()
        self._token = 0
        self._sent: asyncio.Future[int] | None = None

    # Start

    def read(self, silent_s: float) -> bool:
        """Read what has come since the last time. Returns False after `silent_s` in which Kafka has said nothing. Raises
        OSError."""
        if not self._reading:
            self.forget()  # what a process has left that was killed while it began
        self.heard_at = self._clock()
        self._begin()
        while not self._has_ended:
            self._mailbox.wait(WAIT_S)
            if self._clock() - self.heard_at > silent_s:
                return False
        return True

    def _begin(self) -> None:
        self._has_ended = False
        self._reading += 1
        self._clients.read(self._reading, self._at)

    def _keep(self, name: bytes, data: bytes) -> None:
        """Keep what the next piece of a snapshot holds."""
        with self._file(name).open("ab") as file:
            file.write(data)

    def _file(self, name: bytes) -> Path:
        return self._directory / f"{name.hex()}{SUFFIX}"

    def newest(self, start: int) -> list[LoadedSnapshot]:
        """Return the chain to begin with, the full snapshot first; [] where there is none. `start` is where the
        journal's partition is known to begin, at least."""
        chain = newest_chain(self.fold.chains(start), start)
        return [LoadedSnapshot(whole, self._file(whole.manifest.name)) for whole in chain]

    def forget(self) -> None:
        """Remove what was kept of the pieces."""
        for name in DISK.names(self._directory):
            if name.endswith(SUFFIX):
                DISK.unlink(self._directory / name)

    # Writing

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop deliver what Kafka says, from now on."""
        self._mailbox.attach(loop)

    async def append(self, value: bytes) -> int:
        """Append a record; return its Kafka offset. Raises OSError, and then it may be there or not."""
        self._token += 1
        sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sent = sent
        self._clients.append(self._token, value)
        return await sent

    def begin(self, position: int, parent: bytes, seal: Seal) -> SnapshotWriter:
        """Begin a snapshot at a record offset; `parent` is the name of the one whose changes it is to have, `FULL`: it
        is a full one. `seal` is awaited before its manifest is written."""
        manifest = Manifest(os.urandom(NAME_SIZE), parent, position, position, -1, 0, 0, 0, 0)
        return SnapshotWriter(self, self._seed, manifest, seal)

    def delete(self, offset: int) -> None:
        """Delete the snapshots that lie below a Kafka offset."""
        self._clients.delete(offset)

    def close(self) -> None:
        """Give up the clients. Who waits for an append waits no longer."""
        self._settle(OSError("the shard is given up"))
        self._clients.close()

    # What Kafka says

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        if token != self._token:
            return
        if error or offset is None:
            self._clients.purge()
            self._settle(OSError(error or "Kafka does not say where it has appended a piece of a snapshot"))
        else:
            self._settle(offset)

    def _settle(self, outcome: int | OSError) -> None:
        sent, self._sent = self._sent, None
        if sent is None or sent.done():
            return
        if isinstance(outcome, int):
            sent.set_result(outcome)
        else:
            sent.set_exception(outcome)

    def on_records(self, reading: int, records: Records) -> None:
        self.heard_at = self._clock()
        try:
            for offset, value in records:
                if reading == self._reading and offset >= self._at:
                    self.fold.take(offset, value)
                    self._at = offset + 1
        finally:
            self._clients.taken()

    def on_end(self, reading: int, end: int) -> None:
        self._has_ended = self._has_ended or reading == self._reading

    def on_missing(self, reading: int, start: int) -> None:
        if reading == self._reading:
            self._at = start
            self._begin()

    def on_trouble(self, what: str) -> None:
        self._report(what)


class LoadedSnapshot:
    """A whole snapshot whose pieces were read: what a recovery restores (`storage.embedded.recovery`)."""

    def __init__(self, whole: Whole, file: Path) -> None:
        self.manifest = whole.manifest
        self.place = whole
        self.position = whole.manifest.position
        self.entry_count = whole.manifest.entries
        self._file = file

    def entries(self) -> Iterator[bytes]:
        """Yield the entries in the order in which they were added. Raises CorruptFile, OSError."""
        return entries_in(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        if not self.manifest.pieces:
            return
        crc = 0
        with self._file.open("rb") as file:
            while data := file.read(READ_BYTES):
                crc = crc32(data, crc)
                yield data
        if crc != self.manifest.crc:
            raise CorruptFile(f"{self._file} is not what was read from Kafka")


class SnapshotWriter:
    """One snapshot that is being written (`storage.embedded.snapshotting.Writer`). `first` is the Kafka offset of its
    first record, `last` that of its manifest, -1 until they are there."""

    def __init__(self, topic: SnapshotTopic, seed: int, manifest: Manifest, seal: Seal) -> None:
        self._topic = topic
        self._seed = seed
        self._seal = seal
        self.manifest = manifest
        self.size = 0
        self.first = -1
        self.last = -1
        self._waiting = bytearray()
        self._entries = 0
        self._pieces = 0
        self._crc = 0

    def add(self, entry: bytes) -> None:
        self._waiting += LENGTH.pack(len(entry))
        self._waiting += entry
        self._entries += 1
        self.size += LENGTH.size + len(entry)

    async def drain(self) -> None:
        await asyncio.sleep(0)
        while len(self._waiting) >= PIECE_BYTES:
            piece = bytes(self._waiting[:PIECE_BYTES])
            del self._waiting[:PIECE_BYTES]
            await self._send(piece)

    async def _send(self, piece: bytes) -> None:
        value = pack_piece(self._seed, NO_OWNER, self.manifest.name, self._pieces, piece)
        self._note(await self._topic.append(value))
        self._pieces += 1
        self._crc = crc32(piece, self._crc)

    def _note(self, offset: int) -> None:
        self.last = offset
        if self.first < 0:
            self.first = offset

    async def commit(self, applied_offset: int) -> None:
        await self.drain()
        if self._waiting:
            await self._send(bytes(self._waiting))
            self._waiting.clear()
        epoch, places = await self._seal()
        self.manifest = replace(
            self.manifest,
            mark=places[-1][1],
            index=tuple(places),
            applied=max(applied_offset, self.manifest.position),
            created_us=time.time_ns() // 1000,
            entries=self._entries,
            pieces=self._pieces,
            crc=self._crc,
        )
        self._note(await self._topic.append(pack_manifest(self._seed, epoch, self.manifest)))

    def abandon(self) -> None:
        """Forget it: pieces without a manifest are nothing."""
        self._waiting.clear()
