"""Which retained messages this shard keeps where there are several: those whose topics are at home here.

A retained message goes to its home with the stream, whoever wants it; here it is only passed on. While somebody here asks
the homes for what they keep (`shards.asking`), what arrives meanwhile is noted: nobody is given an older message behind a
newer one of the same shard, nor the same one twice.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from headrace.core.homes import Homes
from headrace.core.records.message import Copy, Message

NOTED_MAX: Final = 100_000  # topics: beyond it the oldest notes go


class RecentRetained:
    """The retained messages of other homes that have been appended to this journal since somebody began to ask."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._asking: dict[object, int] = {}  # who asks, and since which offset
        # Shard that it was published to, tenant, topic: its offset there, and that of its record here; oldest first.
        self._noted: OrderedDict[tuple[int, str, bytes], tuple[int, int]] = OrderedDict()

    def begin(self, who: object, offset: int) -> None:
        """Note what is appended from now on; `offset` is the next one."""
        self._asking[who] = offset

    def end(self, who: object) -> None:
        """Note nothing more on behalf of somebody."""
        self._asking.pop(who, None)
        if not self._asking:
            self._noted.clear()

    def arrives(self, message: Message) -> None:
        """Note a message that was just appended, if anybody asks."""
        if not self._asking:
            return
        source, offset = origin_of(message, self._shard)
        key = (source, message.tenant, message.topic)
        noted = self._noted
        noted[key] = (offset, message.offset)
        noted.move_to_end(key)
        if len(noted) > NOTED_MAX:
            noted.popitem(False)  # the first key of a dict is behind all places of those that were first

    def has_come(self, message: Copy, since: int) -> bool:
        """Return whether this message, or one that followed it in the same shard and on its topic, was appended here at
        offset `since` or behind it."""
        found = self._noted.get((message.source, message.tenant, message.topic))
        return found is not None and found[1] >= since and found[0] >= message.source_offset


class RetainedHome:
    """What of one tenant is at home in one shard."""

    def __init__(self, homes: Homes, shard: int, tenant: bytes, recent: RecentRetained) -> None:
        self._homes = homes
        self._shard = shard
        self._tenant = tenant
        self._recent = recent

    def has(self, topic: bytes) -> bool:
        """Return whether the retained message of a topic is kept in this shard."""
        return self._homes.of_retained(self._tenant, topic) == self._shard

    def passes(self, message: Message) -> None:
        """Note that a retained message of another home was appended."""
        self._recent.arrives(message)


def origin_of(message: Message, shard: int) -> tuple[int, int]:
    """Return the shard that a message in the journal of `shard` was published to, and its offset there."""
    if isinstance(message, Copy):
        return message.source, message.source_offset
    return shard, message.offset
