"""What keeps a sink from writing."""

from __future__ import annotations

from headrace.errors import HeadraceError


class SinkTrouble(HeadraceError):
    """Kafka does not do what the sink needs."""


class SinkFenced(SinkTrouble):
    """Somebody else has begun to write for this sink and shard."""


class OtherJournal(SinkTrouble):
    """A journal has the name of the one that was sent, and other records: where they part nobody can tell."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the journal is another copy of the one that was sent: {what}. Put the right data directory back, or "
            "give the sink another name: it begins as a new one then"
        )


class JournalGone(SinkTrouble):
    """Retention or compaction has passed a sink that is beyond its limit."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the journal has let go of records from offset {offset} on that were not sent")
