"""The bytes between two workers of a node: frames, each on a channel.

Integers are little endian::

     0 u32 length of what follows it   4 u8 kind   5 u32 channel   9 body

    1 HELLO   0        the first frame of both sides: 8 bytes magic, u16 format, u16 worker, u16 workers, u16 reserved,
                       u32 shards, u64 run, 16 bytes node
    2 BEAT    0        every second, by both sides; with a body (LEAVING) by a node that stops: who is at the other end of
                       channels that it has opened is to say goodbye. On a channel: whoever has its socket at the sender
                       is to hear goodbye, by the reason code in the body. Who knows nothing of that sees a heartbeat
    3 FOLLOW  channel  u32 follower, u32 source: what two shards say to each other comes on this channel from now on
    4 SAY     channel  a frame of that conversation (`core.shards.peer_codec`)
    5 OPEN    channel  a channel of bytes begins; the body is what it begins with
    6 DATA    channel  its next bytes, within what the other side has granted
    7 CREDIT  channel  u32: so many bytes more may be sent
    8 CLOSE   channel  a conversation or a channel of bytes has ended; what still comes on it means nothing

A channel has an odd number if whoever dialled has opened it, else an even one; no number comes twice on a connection.
Another format is refused: all workers of a node are of one headrace. Whatever is none of these ends the connection.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i32_le
from mypy_extensions import i32, i64, mypyc_attr

from headrace.errors import HeadraceError

# 1: streams without the starts of their sources; 2: without Kept; 3: other weights of messages; 4: without claims
FORMAT: Final = 5
MAGIC: Final = b"HRPEER\r\n"
HELLO: Final = 1
BEAT: Final = 2
FOLLOW: Final = 3
SAY: Final = 4
OPEN: Final = 5
DATA: Final = 6
CREDIT: Final = 7
CLOSE: Final = 8

LEAVING: Final = b"\x01"

LENGTH_BYTES: Final = 4
HEADER_BYTES: Final = 5  # of what the length counts
_HELLO: Final = struct.Struct("<8sHHHHIQ16s")
_PAIR: Final = struct.Struct("<II")
_NUMBER: Final = struct.Struct("<I")
_UNSIGNED: Final = 0xFFFF_FFFF
# What somebody may say who has not said who it is.
HELLO_BYTES: Final = HEADER_BYTES + _HELLO.size


@mypyc_attr(allow_interpreted_subclasses=True)
class BrokenLink(HeadraceError):
    """The other side of a connection between workers said what nobody of this node says. `reason` is for counting."""

    retry_helps = True

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Greeting:
    """Says who a worker is, before anything else. `node` is 16 bytes, `run` differs with each start of the worker."""

    def __init__(self, worker: int, workers: int, shards: int, run: int, node: bytes) -> None:
        self.worker = worker
        self.workers = workers
        self.shards = shards
        self.run = run
        self.node = node

    def encode(self) -> bytes:
        """Return the body of a HELLO."""
        return _HELLO.pack(MAGIC, FORMAT, self.worker, self.workers, 0, self.shards, self.run, self.node)


def decode_greeting(body: bytes) -> Greeting:
    """Return the greeting in the body of a HELLO. Raises BrokenLink: `garbage`, or `format` if it is of another one."""
    if len(body) < _HELLO.size or not body.startswith(MAGIC):
        raise BrokenLink("garbage", f"{len(body)} bytes that are no greeting")
    _, level, worker, workers, _, shards, run, node = _HELLO.unpack_from(body, 0)
    if level != FORMAT:
        raise BrokenLink("format", f"it speaks format {level}, this headrace format {FORMAT}")
    return Greeting(worker, workers, shards, run, node)


def encode_pair(follower: int, source: int) -> bytes:
    """Return the body of a FOLLOW."""
    return _PAIR.pack(follower, source)


def decode_pair(body: bytes) -> tuple[int, int]:
    """Return follower and source of a FOLLOW. Raises BrokenLink."""
    if len(body) != _PAIR.size:
        raise BrokenLink("garbage", f"a pair of shards of {len(body)} bytes")
    follower, source = _PAIR.unpack(body)
    return follower, source


def encode_number(number: int) -> bytes:
    """Return the body of a CREDIT."""
    return _NUMBER.pack(number)


def decode_number(body: bytes) -> int:
    """Return the number in a CREDIT. Raises BrokenLink."""
    if len(body) != _NUMBER.size:
        raise BrokenLink("garbage", f"a credit of {len(body)} bytes")
    number: int = _NUMBER.unpack(body)[0]
    return number


def write_frame(out: BytesWriter, kind: int, channel: int, body: bytes) -> None:
    """Append a frame to `out`."""
    write_header(out, kind, channel, len(body))
    out.write(body)


def write_header(out: BytesWriter, kind: int, channel: int, size: i64) -> None:
    """Append what stands before the body of a frame, which is `size` bytes long, to `out`."""
    write_i32_le(out, i32(HEADER_BYTES + size))
    out.append(kind)
    write_i32_le(out, channel)


@mypyc_attr(allow_interpreted_subclasses=True)
class Splitter:
    """Takes a stream of bytes apart into frames, and calls `on_frame` for each whole one.

    A length is compared with `bytes_max` as soon as its four bytes are there; what is not whole is kept in the pieces
    that it came in, so a large frame costs its length and not its square.
    """

    def __init__(self, bytes_max: i64) -> None:
        self.bytes_max: i64 = bytes_max
        self.stopped = False
        self._pieces: list[bytes] = []
        self._held: i64 = 0
        self._needed: i64 = LENGTH_BYTES

    @property
    def partial(self) -> bool:
        """Return whether what came last ends within a frame."""
        return self._held > 0

    def on_frame(self, kind: int, channel: int, body: bytes) -> None:
        """Handle a frame. Raises BrokenLink: nothing behind it is looked at."""
        raise NotImplementedError

    def split(self, data: bytes) -> None:
        """Handle the frames that these bytes complete, until `stopped`. Raises BrokenLink."""
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces = []
            self._held = 0
        at: i64 = 0
        size: i64 = len(data)
        self._needed = LENGTH_BYTES
        while size - at >= LENGTH_BYTES and not self.stopped:
            length: i64 = i64(read_i32_le(data, at)) & _UNSIGNED
            if length < HEADER_BYTES or length > self.bytes_max:
                raise BrokenLink("oversized", f"a frame of {length} bytes, {self.bytes_max} are taken")
            end: i64 = at + LENGTH_BYTES + length
            if end > size:
                self._needed = end - at
                break
            body_at: i64 = at + LENGTH_BYTES + HEADER_BYTES
            self.on_frame(
                data[at + LENGTH_BYTES],
                int(i64(read_i32_le(data, body_at - LENGTH_BYTES)) & _UNSIGNED),
                data[body_at:end],
            )
            at = end
        if at < size and not self.stopped:
            self._pieces = [data[at:] if at else data]
            self._held = size - at
