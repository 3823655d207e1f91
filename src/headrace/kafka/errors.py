"""What keeps a sink from writing."""

from __future__ import annotations

from headrace.errors import HeadraceError


class SinkTrouble(HeadraceError):
    """Kafka does not do what the sink needs."""


class SinkFenced(SinkTrouble):
    """Somebody else has begun to write for this sink and shard."""


class JournalGone(SinkTrouble):
    """Retention or compaction has passed a sink that is beyond its limit."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the journal has let go of records from offset {offset} on that were not sent")
