"""The limits and times of the streams between shards, and of what is told beside them."""

from __future__ import annotations


class StreamSettings:
    """The limits and times of the streams between shards."""

    def __init__(self) -> None:
        self.window_bytes = 4 << 20  # of copies from one shard on their way to take effect
        self.note_step = 10_000  # offsets that a position may be behind in the journal
        self.note_bytes = 16 << 20  # bytes of the journal that a follower may be behind there
        self.owed_max = 100_000  # messages that a sender keeps the offsets of, for want of credit
        self.crowded_at = 1000  # messages that are owed: whoever publishes more of them waits
        self.crowded_ms_max = 1000  # without more credit: then nobody waits
        self.pending_max = 4096  # copies from all shards that were taken and have not taken effect
        self.late_at = (
            0  # messages in the queue of a DEVICE for which streams wait; 0: a quarter of its limit
        )
        self.share_of = 32  # copies, at least, are looked at: half have to be for sessions that are late
        self.read_at_once = 500  # records that a sender looks at in one pass of the loop
        self.withdraw_after_ms = 60_000  # a filter that nobody has any more is withdrawn
        self.page_messages = 64  # of what is retained that another shard is given at a time
        self.answer_within_ms = 3000  # or the stream is cut, for which SUBACKs wait
