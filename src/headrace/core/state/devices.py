"""What the broker remembers of the devices of a tenant: whose they are, and what they published last.

A device that heard no answer publishes again, with the same sequence number. So what came within the last minutes is
known by (SN, sequence number); it is the same message only if topic and payload are the same too, since a device that
was reset begins its numbers anew. A fold over the journal: `note` is called for each message of a device when it is
appended, and again in a replay; what is forgotten follows from the times of the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64, mypyc_attr

from headrace.core.records.message import FrameMessage

if TYPE_CHECKING:
    from headrace.core.homes import Homes
    from headrace.core.ports.owned import Owned

REPEAT_WINDOW_US: Final = 300_000_000
SEEN_MAX: Final = 200_000  # messages that are remembered
NEVER: Final = -1
_PER_ENTRY: Final = 1000
_NUMBER_BYTES: Final = 4  # of the sequence number, behind the client id in a key
_FORGOTTEN_AT_ONCE: Final = 2  # with each new one: so that none of them waits for many
_REPLACED_AT_ONCE: Final = 8  # places in the line of those that were replaced
_SHORTENED_AT: Final = 1000  # places of what was forgotten
_COPIED_MAX: Final = 4096  # bytes of a payload that is copied rather than looked at by a call of its own
_crc32: Final = crc32  # whom compiled code calls without a look-up by name


@mypyc_attr(acyclic=True)
class Seen:
    """What is known of a message of a device: its key, client id and sequence number; the checksum of topic and payload;
    its time, and its offset: NEVER while it has none, and when a later one has taken its place."""

    def __init__(self, key: bytes, content: int, time_us: int, offset: int) -> None:
        self.key = key
        self.content = content
        self.time_us = time_us
        self.offset = offset


_FORGOTTEN: Final = Seen(b"", 0, 0, NEVER)


class DeviceRoster:
    """The devices of one tenant, by client id."""

    def __init__(self, tenant: str = "") -> None:
        self._tenant = tenant
        self.of_all_shards: Owned | None = None  # how many a user has, where there are several
        self.owners: dict[str, str] = {}
        self.homes: Homes | None = None  # where there are other shards
        self.shard = 0
        # Owners of devices that are at home in another shard, as each shard wrote them down by itself once.
        self.strays: dict[str, str] = {}
        self._owned: dict[str, int] = {}  # devices by user
        # By key, and in line, the oldest first. To find the first key of a dictionary costs a look at the place of each
        # that was deleted before it, and an OrderedDict costs several times what the two do.
        self._seen: dict[bytes, Seen] = {}
        self._line: list[Seen] = []
        self._first: i64 = 0  # in line; what is before it was forgotten

    def __len__(self) -> int:
        """Return how many messages are remembered."""
        return len(self._seen)

    def own(self, client_id: str, user: str) -> None:
        """Give a device to this user, if it belongs to nobody yet. Whose one of another shard is, is decided there."""
        if not self.is_home(client_id):
            self.strays.setdefault(client_id, user)
        elif client_id not in self.owners:
            self.owners[client_id] = user
            self._owned[user] = self._owned.get(user, 0) + 1
            if self.of_all_shards is not None:
                self.of_all_shards.add(self._tenant, user, 1)

    def let_go(self) -> None:
        """Count the devices here no more with those of other shards: this one is given up."""
        if self.of_all_shards is not None:
            for user, count in self._owned.items():
                self.of_all_shards.add(self._tenant, user, -count)
        self._owned = {}

    def is_home(self, client_id: str) -> bool:
        """Return whether this shard decides whose a device is."""
        return self.homes is None or self.homes.of_client(self._tenant, client_id) == self.shard

    def owned_by(self, user: str) -> int:
        """Return how many devices belong to a user, in all shards."""
        if self.of_all_shards is not None:
            return self.of_all_shards.count(self._tenant, user)
        return self._owned.get(user, 0)

    def find(self, message: Seen) -> int:
        """Return the offset of the message that this message repeats, NEVER if it is new."""
        seen = self._seen.get(message.key)
        if seen is None or seen.content != message.content:
            return NEVER
        return seen.offset if _is_lately(seen, message) else NEVER

    def note(self, message: Seen) -> None:
        """Note that a message that is new has got its offset. Does nothing the second time."""
        known = self._seen.get(message.key)
        if known is not None:
            if known.offset >= message.offset:
                return
            known.offset = NEVER
            del self._seen[message.key]  # the new one goes to the end
        self._add(message)
        self._forget(message)

    def _add(self, message: Seen) -> None:
        self._seen[message.key] = message
        self._line.append(message)

    def _forget(self, newest: Seen) -> None:
        """Forget what is too old, some of it at a time."""
        replaced = _REPLACED_AT_ONCE
        left = _FORGOTTEN_AT_ONCE
        while left and replaced:
            oldest = self._line[self._first]
            if oldest.offset == NEVER:
                replaced -= 1
            elif len(self._seen) <= SEEN_MAX and _is_lately(oldest, newest):
                break
            else:
                left -= 1
                del self._seen[oldest.key]
            self._line[self._first] = _FORGOTTEN
            self._first += 1
        if self._first >= _SHORTENED_AT and self._first * 2 >= len(self._line):
            del self._line[: self._first]
            self._first = 0

    # Snapshots

    def entries(self, position: int) -> Iterator[tuple[list[list[object]], list[list[object]]]]:
        """Yield two lists, some at a time: rows of client id and user, and rows of key, offset, content and time of
        messages below `position`; those behind it are in the journal that is replayed."""
        owners = list(self.owners.items()) + list(self.strays.items())
        for start in range(0, len(owners), _PER_ENTRY):
            yield [list(row) for row in owners[start : start + _PER_ENTRY]], []
        seen = list(self._seen.items())
        for start in range(0, len(seen), _PER_ENTRY):
            yield (
                [],
                [
                    [key, one.offset, one.content, one.time_us]
                    for key, one in seen[start : start + _PER_ENTRY]
                    if one.offset < position
                ],
            )

    def restore(self, key: bytes, offset: int, content: int, time_us: int) -> None:
        self._add(Seen(key, content, time_us, offset))


def seen_of(message: FrameMessage) -> Seen:
    """Return what is remembered of a message, to know it again."""
    return Seen(_key(message), _content(message), message.timestamp_us, message.offset)


def _is_lately(seen: Seen, message: Seen) -> bool:
    """Return whether not much time is between them, as far as the clock can be believed. Where it was set in between,
    nobody knows: to have a message twice is better than to take a new one for a repeat."""
    return -REPEAT_WINDOW_US <= message.time_us - seen.time_us <= REPEAT_WINDOW_US


def _key(message: FrameMessage) -> bytes:
    sequence: i64 = message.sequence
    out = BytesWriter()
    out.write(message.origin[message.tenant_len :])
    write_i32_be(out, i32(sequence - 0x100000000 if sequence > 0x7FFFFFFF else sequence))
    return out.getvalue()


def client_of_device(row: list[object]) -> str:
    """Return the client id of a message in a row of `DeviceRoster.entries`."""
    key = row[0]
    assert isinstance(key, bytes)
    return key[:-_NUMBER_BYTES].decode("utf-8")


def _content(message: FrameMessage) -> int:
    payload = message.payload
    topic = message.topic + b"\0"  # which no topic holds: what follows is the payload
    if len(payload) <= _COPIED_MAX:
        return _crc32(topic + payload)
    return _crc32(payload, _crc32(topic))
