"""Which shard something belongs to: its home, the only shard that decides about it.

A client, with its session and everything of it, is at home where its tenant and its client id say; a retained message and
a topic queue where the topic says; a shared subscription where its share name and its filter say. The home is crc32 of
the names in UTF-8, each but the last followed by a zero byte, which none of them holds, modulo the number of shards. That
number and this rule are those of a data directory for good: every session of it lies where they have put it.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

MEMBER_PREFIX: Final = "$member/"  # of stand-ins for members of groups in other shards; refused to everybody


class Homes:
    """Says which of so many shards, numbered from 0, is the home of something."""

    def __init__(self, shards: int = 1) -> None:
        """Begin with so many shards. Raises ValueError where there is no shard."""
        if shards < 1:
            raise ValueError(f"{shards} shards: there is at least one")
        self.shards = shards

    def of_client(self, tenant: str, client_id: str) -> int:
        """Return the shard of a session, and of a device that speaks frames."""
        return self._home(tenant, client_id)

    def of_topic(self, tenant: str, topic: str) -> int:
        """Return the shard of the retained message and of the topic queue of a topic."""
        return self._home(tenant, topic)

    def of_retained(self, tenant: bytes, topic: bytes) -> int:
        """Return what `of_topic` does, of names that are in UTF-8 already."""
        return crc32(topic, crc32(b"\0", crc32(tenant))) % self.shards

    def of_group(self, tenant: str, share_name: str, topic_filter: str) -> int:
        """Return the shard of a shared subscription."""
        return self._home(tenant, f"{share_name}\0{topic_filter}")

    def _home(self, tenant: str, rest: str) -> int:
        return crc32(f"{tenant}\0{rest}".encode()) % self.shards
