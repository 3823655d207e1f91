"""The published high watermark: a file of one page, mapped by the one writer, read by everybody else.

`<data-dir>/watermark`, 4096 bytes, little endian, holds two slots, at 0 and at 512; the one with the larger
sequence that passes its checksum counts. A slot is written while the other one stands, so one of them is
always whole.

     0   4  magic "HRWM"
     4   4  crc32 of bytes 8-63
     8   8  sequence: grows by one with each write
    16  16  uuid of the journal
    32   8  high watermark: readers may read every record below it
    40   8  durable offset: every record below it is on disk. Equal to the high watermark with
    `durability=fsync`
    48   4  epoch
    52   1  version, 1; 2 once it has been one of several shards, whose journals hold records of streams between them;
            4 once a store of queues was configured, which the journal may have been let go of what is in; 3, of a version
            that did not write down which store that is;
            255 where there is no journal here, but several in the directories below (ADR 0019)
    53   3  zero
    56   8  largest timestamp of the last batch below the high watermark, microseconds since 1970

Behind them, at 1024, lies where the journal begins; whoever does not know of it passes over it, and a file without it
says nothing about that:

     0   4  magic "HRST"
     4   4  crc32 of bytes 8-31
     8  16  uuid of the journal
    24   8  start offset: every record from here on has a segment file. It is synced before retention deletes what
            lies below, so the first file may begin earlier and never later

At 1088 lies in the same way from where it is complete:

     0   4  magic "HRCO"
     4   4  crc32 of bytes 8-31
     8  16  uuid of the journal
    24   8  complete offset: from here on every record is there that was ever written. Of what lies below, compaction
            may have left out what no session refers to. It is synced before a segment is replaced, so readers that need
            all and find it above their first offset have missed something, and never the other way round

At 1152 lie the times of the segment that is being written, once they do not ascend there, as after the clock was set
back. Until then its first and its last batch tell them:

     0   4  magic "HRTM"
     4   4  crc32 of bytes 8-47
     8  16  uuid of the journal
    24   8  base offset of the segment
    32   8  earliest and
    40   8  latest time of a record in it, or beyond; microseconds since 1970. They are there before the high watermark is
            above such a record

The file is replaced atomically and synced when the log is opened; between, the slots reach the disk when the
system likes to, which is always after what they speak of.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from zlib import crc32

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptFile, NoJournal, ShardedDirectory, UnsupportedFormat

NAME = "watermark"
VERSION = 1
STREAMS_VERSION = 2  # a headrace that knows no streams refuses the journal
STORES_VERSION = 4  # one that knows no stores of queues does
SHARDED = (
    255  # no version will be it: what is older refuses the directory, since it is newer than it can read
)
FILE_SIZE = 4096
_MAGIC = b"HRWM"
_SLOT = Struct("<4sI56s")
_REST = Struct("<Q16sQQIB3xQ")
_SLOT_POSITIONS = (0, 512)
_MARK = Struct("<4sI24s")
_MARK_REST = Struct("<16sQ")
_START_MAGIC = b"HRST"
_START_POSITION = 1024
_COMPLETE_MAGIC = b"HRCO"
_COMPLETE_POSITION = 1088
_TIMES = Struct("<4sI40s")
_TIMES_REST = Struct("<16sQQQ")
_TIMES_MAGIC = b"HRTM"
_TIMES_POSITION = 1152
_LATEST_US = (1 << 63) - 1
UNKNOWN = -1  # an offset that nobody has written down


class Times:
    """Between which times the records of a segment are, microseconds since 1970. `base_offset` names it; UNKNOWN: any
    may be meant."""

    __slots__ = ("base_offset", "max_us", "min_us")

    def __init__(self, base_offset: int = UNKNOWN, min_us: int = 0, max_us: int = _LATEST_US) -> None:
        self.base_offset = base_offset
        self.min_us = min_us
        self.max_us = max_us


class WatermarkState:
    __slots__ = (
        "complete_offset",
        "durable_offset",
        "epoch",
        "high_watermark",
        "last_timestamp_us",
        "sequence",
        "start_offset",
        "times",
        "uuid",
        "version",
    )

    def __init__(
        self,
        uuid: bytes,
        epoch: int,
        high_watermark: int,
        durable_offset: int,
        last_timestamp_us: int = 0,
        sequence: int = 0,
        start_offset: int = UNKNOWN,
        complete_offset: int = UNKNOWN,
        version: int = VERSION,
    ) -> None:
        self.uuid = uuid
        self.epoch = epoch
        self.high_watermark = high_watermark
        self.durable_offset = durable_offset
        self.last_timestamp_us = last_timestamp_us
        self.sequence = sequence
        self.start_offset = start_offset
        self.complete_offset = complete_offset
        self.version = version
        self.times: Times | None = None  # of the segment that is being written, where they do not ascend

    def pack(self) -> bytes:
        rest = _REST.pack(
            self.sequence,
            self.uuid,
            self.high_watermark,
            self.durable_offset,
            self.epoch,
            self.version,
            self.last_timestamp_us,
        )
        return _SLOT.pack(_MAGIC, crc32(rest), rest)

    def pack_page(self) -> bytes:
        """Return a whole file in which both slots say this."""
        page = bytearray(FILE_SIZE)
        self.sequence += 2 - self.sequence % 2
        for at in _SLOT_POSITIONS:
            page[at : at + _SLOT.size] = self.pack()
        for position, packed in (
            (_START_POSITION, self.pack_start()),
            (_COMPLETE_POSITION, self.pack_complete()),
            (_TIMES_POSITION, self.pack_times()),
        ):
            page[position : position + len(packed)] = packed
        return bytes(page)

    def pack_start(self) -> bytes:
        return _pack_mark(_START_MAGIC, self.uuid, self.start_offset)

    def pack_complete(self) -> bytes:
        return _pack_mark(_COMPLETE_MAGIC, self.uuid, self.complete_offset)

    def pack_times(self) -> bytes:
        times = self.times
        if times is None:
            return b""
        rest = _TIMES_REST.pack(self.uuid, times.base_offset, times.min_us, times.max_us)
        return _TIMES.pack(_TIMES_MAGIC, crc32(rest), rest)


def _pack_mark(magic: bytes, uuid: bytes, offset: int) -> bytes:
    """Return the bytes of a mark, none for UNKNOWN."""
    if offset == UNKNOWN:
        return b""
    rest = _MARK_REST.pack(uuid, offset)
    return _MARK.pack(magic, crc32(rest), rest)


def sharded_page(uuid: bytes) -> bytes:
    """Return the file for a directory whose journals lie in directories below it, so that no headrace begins one here.
    `uuid` names the node, 16 bytes."""
    page = bytearray(FILE_SIZE)
    rest = _REST.pack(0, uuid, 0, 0, 0, SHARDED, 0)
    for at in _SLOT_POSITIONS:
        page[at : at + _SLOT.size] = _SLOT.pack(_MAGIC, crc32(rest), rest)
    return bytes(page)


def _unpack(data: bytes) -> WatermarkState | None:
    if len(data) < _SLOT.size or data[:4] != _MAGIC:
        return None
    _, crc, rest = _SLOT.unpack(data)
    if crc32(rest) != crc:
        return None
    sequence, uuid, high_watermark, durable, epoch, version, last_us = _REST.unpack(rest)
    if version == SHARDED:
        raise ShardedDirectory(
            f"it holds several shards: {NAME} and journal of each lie in shard-0, shard-1, ..."
        )
    if version > STORES_VERSION:
        raise UnsupportedFormat(f"{NAME}: version {version}, this headrace reads up to {STORES_VERSION}")
    return WatermarkState(uuid, epoch, high_watermark, durable, last_us, sequence, version=version)


def _unpack_mark(page: bytes, position: int, magic: bytes, uuid: bytes) -> int:
    """Return the offset of a mark, UNKNOWN where no whole record of this journal says it."""
    data = page[position : position + _MARK.size]
    if len(data) < _MARK.size:
        return UNKNOWN
    found_magic, crc, rest = _MARK.unpack(data)
    if found_magic != magic or crc32(rest) != crc:
        return UNKNOWN
    found, offset = _MARK_REST.unpack(rest)
    return int(offset) if found == uuid else UNKNOWN


def _unpack_times(page: bytes, uuid: bytes) -> Times | None:
    """Return the times that are told of a segment, None where nobody has. What is not whole is being written: it may be
    of any segment, and say anything."""
    data = page[_TIMES_POSITION : _TIMES_POSITION + _TIMES.size]
    if len(data) < _TIMES.size or data[:4] != _TIMES_MAGIC:
        return None
    _, crc, rest = _TIMES.unpack(data)
    if crc32(rest) != crc:
        return Times()
    found, base_offset, min_us, max_us = _TIMES_REST.unpack(rest)
    return Times(base_offset, min_us, max_us) if found == uuid else None


def without_slots(disk: Disk, data_dir: Path, uuid: bytes) -> WatermarkState:
    """Return what is known of a journal of which no slot is whole: the marks behind them, where the file is still there.
    Which version it needs nobody knows any more, so that it is the highest: what is older refuses it. Raises OSError."""
    try:
        data = disk.read_file(data_dir / NAME)
    except FileNotFoundError:
        data = b""
    start = _unpack_mark(data, _START_POSITION, _START_MAGIC, uuid)
    complete = _unpack_mark(data, _COMPLETE_POSITION, _COMPLETE_MAGIC, uuid)
    return WatermarkState(uuid, 0, 0, 0, start_offset=start, complete_offset=complete, version=STORES_VERSION)


def read_slots(disk: Disk, data_dir: Path) -> list[WatermarkState]:
    """Return the whole slots, newest first; empty if there is no file. Raises CorruptFile if none is whole,
    ShardedDirectory, UnsupportedFormat."""
    try:
        data = disk.read_file(data_dir / NAME)
    except FileNotFoundError:
        return []
    try:
        slots = [slot for at in _SLOT_POSITIONS if (slot := _unpack(data[at : at + _SLOT.size]))]
    except ShardedDirectory as error:
        raise ShardedDirectory(f"{data_dir}: {error}") from None
    if not slots:
        raise CorruptFile(f"{data_dir / NAME}: neither slot passes its checksum")
    for slot in slots:
        slot.start_offset = _unpack_mark(data, _START_POSITION, _START_MAGIC, slot.uuid)
        slot.complete_offset = _unpack_mark(data, _COMPLETE_POSITION, _COMPLETE_MAGIC, slot.uuid)
        slot.times = _unpack_times(data, slot.uuid)
    return sorted(slots, key=lambda slot: -slot.sequence)


def read_state(disk: Disk, data_dir: Path) -> WatermarkState:
    """Return what is published now. Raises NoJournal, CorruptFile."""
    slots = read_slots(disk, data_dir)
    if not slots:
        raise NoJournal(f"{data_dir / NAME}: there is no such file, so no journal")
    return slots[0]


class Watermark:
    """The high watermark at the writer's end. `publish` runs where batches are made durable: on its thread or on the
    loop, one at a time."""

    def __init__(self, disk: Disk, data_dir: Path, state: WatermarkState) -> None:
        self.state = state
        self._disk = disk
        self._path = data_dir / NAME
        self.replace()
        fd = disk.open(self._path, write=True)
        try:
            self._mapped = disk.map(fd, FILE_SIZE)
            self.identity = disk.identity_of(fd)
        finally:
            disk.close(fd)

    def publish(self, high_watermark: int, durable_offset: int, last_timestamp_us: int) -> None:
        state = self.state
        state.high_watermark = high_watermark
        state.durable_offset = durable_offset
        state.last_timestamp_us = last_timestamp_us
        state.sequence += 1
        at = _SLOT_POSITIONS[state.sequence & 1]
        self._mapped[at : at + _SLOT.size] = state.pack()

    def publish_times(self, base_offset: int, min_us: int, max_us: int) -> None:
        """Publish between which times the segment is that is being written, before the high watermark is above a record
        of such a time."""
        told = self.state.times
        if told is not None and (told.base_offset, told.min_us, told.max_us) == (base_offset, min_us, max_us):
            return
        self.state.times = Times(base_offset, min_us, max_us)
        packed = self.state.pack_times()
        self._mapped[_TIMES_POSITION : _TIMES_POSITION + len(packed)] = packed

    def publish_start(self, start_offset: int) -> None:
        """Publish where the journal starts, before what lies below is deleted. Runs on the loop. Synced. Raises
        OSError."""
        self.state.start_offset = start_offset
        self._mark(_START_POSITION, self.state.pack_start())

    def publish_complete(self, complete_offset: int) -> None:
        """Publish from where the journal is complete, before a segment below is replaced by one without some of its
        records. Runs on the loop. Synced. Raises OSError."""
        self.state.complete_offset = complete_offset
        self._mark(_COMPLETE_POSITION, self.state.pack_complete())

    def _mark(self, position: int, packed: bytes) -> None:
        self._mapped[position : position + len(packed)] = packed
        self._mapped.flush()

    def replace(self) -> None:
        """Write both slots alike: everything is durable, and damage found later is refused."""
        self._disk.replace(self._path, self.state.pack_page())

    def close(self) -> None:
        self._mapped.close()
