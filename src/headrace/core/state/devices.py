"""What the broker remembers of the devices of a tenant: whose they are, and what they published last.

A device that heard no answer publishes again, with the same sequence number. So what came within the last minutes is
known by (SN, sequence number); it is the same message only if topic and payload are the same too, since a device that
was reset begins its numbers anew. A fold over the journal: `note` is called for each message of a device when it is
appended, and again in a replay; what is forgotten follows from the times of the records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from mypy_extensions import i64

from headrace.core.records.message import FrameMessage

REPEAT_WINDOW_US: Final = 300_000_000
SEEN_MAX: Final = 200_000  # messages that are remembered
NEVER: Final = -1
_PER_ENTRY: Final = 1000
_FORGOTTEN_AT_ONCE: Final = 2  # with each new one: so that none of them waits for many


class Seen:
    """A message that a device published lately: its offset, the checksum of topic and payload, its time."""

    def __init__(self, offset: int, content: int, time_us: int) -> None:
        self.offset = offset
        self.content = content
        self.time_us = time_us


class DeviceRoster:
    """The devices of one tenant, by client id."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self._owned: dict[str, int] = {}  # devices by user
        # By client id and sequence number, the oldest first. No plain dictionary: to find the first key of one costs a
        # look at the place of each that was deleted before it.
        self._seen: OrderedDict[bytes, Seen] = OrderedDict()

    def __len__(self) -> int:
        """Return how many messages are remembered."""
        return len(self._seen)

    def own(self, client_id: str, user: str) -> None:
        """Give a device to this user, if it belongs to nobody yet."""
        if client_id not in self.owners:
            self.owners[client_id] = user
            self._owned[user] = self._owned.get(user, 0) + 1

    def owned_by(self, user: str) -> int:
        """Return how many devices belong to a user."""
        return self._owned.get(user, 0)

    def find(self, message: FrameMessage) -> int:
        """The offset of the message that this one repeats, NEVER if it is new."""
        seen = self._seen.get(_key(message))
        if seen is None or seen.content != _content(message):
            return NEVER
        return seen.offset if _is_lately(seen, message) else NEVER

    def note(self, message: FrameMessage) -> None:
        """A message that is new has got its offset. Does nothing the second time."""
        key = _key(message)
        known = self._seen.get(key)
        if known is not None:
            if known.offset >= message.offset:
                return
            self._seen.move_to_end(key)
        self._seen[key] = Seen(message.offset, _content(message), message.timestamp_us)
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._seen))
            if len(self._seen) <= SEEN_MAX and _is_lately(self._seen[oldest], message):
                return
            del self._seen[oldest]

    # Snapshots

    def entries(self, position: int) -> Iterator[list[list[object]]]:
        """Two lists, some at a time: rows of client id and user, and rows of key, offset, content and time of messages
        below `position`; those behind it are in the journal that is replayed."""
        owners = list(self.owners.items())
        for start in range(0, len(owners), _PER_ENTRY):
            yield [[list(row) for row in owners[start : start + _PER_ENTRY]], []]
        seen = list(self._seen.items())
        for start in range(0, len(seen), _PER_ENTRY):
            yield [
                [],
                [
                    [key, one.offset, one.content, one.time_us]
                    for key, one in seen[start : start + _PER_ENTRY]
                    if one.offset < position
                ],
            ]

    def restore(self, key: bytes, offset: int, content: int, time_us: int) -> None:
        self._seen[key] = Seen(offset, content, time_us)


def _is_lately(seen: Seen, message: FrameMessage) -> bool:
    """Return whether not much time is between them, as far as the clock can be believed. Where it was set in between,
    nobody knows: to have a message twice is better than to take a new one for a repeat."""
    return abs(message.timestamp_us - seen.time_us) <= REPEAT_WINDOW_US


def _key(message: FrameMessage) -> bytes:
    sequence: int = message.sequence
    return message.origin[message.tenant_len :] + sequence.to_bytes(4, "big")


def _content(message: FrameMessage) -> int:
    start: i64 = crc32(message.topic + b"\0")  # which no topic holds: what follows is the payload
    return crc32(message.payload, int(start))
