"""The global message id in 16 bytes (decision 3): the MD5 of its text, which Spark's `md5` makes of `message_id` too.

The text is `client:<tenant>/<client id>/<id>` where the publisher gave an id of its own, as the user property
`message-id` that is not empty, else `journal:<uuid>:<epoch>:<offset>`. Both stand for the same message for ever, however
often it is delivered. MD5 is no secret here: it spreads texts over 128 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from headrace.core.records.message import Copy, Message
from headrace.mqtt.publish import user_property

try:  # Python's own: to begin a digest of OpenSSL costs several times what a digest of so few bytes does
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:  # a Python may be built without
    from hashlib import md5

_KIND: Final = "origin"
_AHEAD: Final = ("streams", "starts")  # entries of a snapshot that come in front of it
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()
_md5: Final = md5  # whom compiled code calls without a look-up by name
ID_PROPERTY: Final = b"message-id"


class Origin:
    """The journal of whose records those of another one below an offset are copies: `reshard` has divided it."""

    def __init__(self, uuid: str, end: int, epochs: list[tuple[int, int]]) -> None:
        """Name the journal `uuid`. `end`: the offset; `epochs`: as `JournalName` takes them, of that journal; none where
        an older version has divided it: they are those of the copies then."""
        self.uuid = uuid
        self.end = end
        self.epochs = epochs

    @property
    def epoch(self) -> int:
        """Return that of its last record, -1 where an older version has divided it."""
        found = -1
        for start, epoch in self.epochs:
            if start < self.end:  # else it began after the last record
                found = epoch
        return found

    def entry(self) -> bytes:
        """Return what a snapshot says of it (`state.snapshots`)."""
        return _encoder.encode([_KIND, self.uuid, self.end, self.epochs])

    @classmethod
    def from_entry(cls, value: list[object]) -> Origin:
        epochs = cast(list[list[int]], value[3]) if len(value) > 3 else []
        return cls(cast(str, value[1]), cast(int, value[2]), [(row[0], row[1]) for row in epochs])


def origin_in(entries: Iterable[bytes]) -> Origin | None:
    """Return the origin that a snapshot tells with one of its first entries; no others are read."""
    for entry in entries:
        value = cast(list[object], _decoder.decode(entry))
        if value[0] == _KIND:
            return Origin.from_entry(value)
        if value[0] not in _AHEAD:
            break
    return None


class JournalName:
    """What ids call a journal, "<uuid>:<epoch>": a message has the epoch that it was written in."""

    def __init__(
        self,
        uuid: str = "",
        epochs: list[tuple[int, int]] | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Name the messages of a journal. `epochs`: offset from which on an epoch holds, and the epoch; in ascending
        order, the first from the beginning. `origin`: another journal, of whose records those below an offset, at which
        an epoch begins, are copies."""
        found = epochs or [(0, 0)]
        heads = [(start, uuid, epoch) for start, epoch in found]
        if origin is not None:
            copied = [(start, epoch) for start, epoch in origin.epochs or found if start < origin.end]
            own = [head for head in heads if head[0] >= origin.end]
            heads = [(start, origin.uuid, epoch) for start, epoch in copied] + own
        self._starts = [start for start, _, _ in heads]
        self._heads = [f"journal:{name}:{epoch}:".encode() for _, name, epoch in heads]
        self._sources: dict[int, JournalName] = {}

    def differs_from(self, other: JournalName, end: int) -> int:
        """Return the lowest offset below `end` of a message that another name of this journal gives another id; -1 if
        there is none."""
        for offset in sorted({0, *self._starts, *other._starts}):
            if offset < end and self._head_at(offset) != other._head_at(offset):
                return offset
        return -1

    def add_source(self, shard: int, name: JournalName) -> None:
        """Have copies of what another shard holds called what they are called there: it is one message."""
        self._sources[shard] = name

    def id_of(self, message: Message) -> bytes:
        """Return the 16 bytes of a message that has its offset."""
        own = own_id(message) if len(message.properties) else None
        if own is not None:
            text = _text_of(message, own)
        else:
            text = self._place_of(message)
        found: bytes = _md5(text, usedforsecurity=False).digest()
        return found

    def _place_of(self, message: Message) -> bytes:
        """Return where a message was published to, and its offset there; of a source without a name the place of the
        copy, which is no other message's."""
        name, offset = self, message.offset
        if isinstance(message, Copy) and message.source in self._sources:
            name = self._sources[message.source]
            offset = message.source_offset
        return name._head_at(offset) + str(offset).encode()

    def _head_at(self, offset: int) -> bytes:
        starts = self._starts
        at = len(starts) - 1
        while at > 0 and starts[at] > offset:
            at -= 1
        return self._heads[at]


def own_id(message: Message) -> bytes | None:
    """Return the id that the publisher gave, None where it gave none. An empty one is none: it would be that of all
    messages of a publisher whose field is empty."""
    return (user_property(message.properties, ID_PROPERTY) or None) if message.properties else None


def _text_of(message: Message, own: bytes) -> bytes:
    client_id = message.client_id.replace("%", "%25").replace("/", "%2F")
    return f"client:{message.tenant}/{client_id}/".encode() + own
