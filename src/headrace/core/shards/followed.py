"""How far the shards that follow this one are durable: from the lowest of these offsets on this journal is kept.

A follower tells it by itself now and then, by offsets, which say nothing about bytes. So it is asked, too: when much has
been written since it was asked last, and on a full disk, where whatever can go has to. A disk full of messages that all
others have had would else be full for ever, since nothing more is published there that could move an offset. It is asked
until it has come to the end of what is in finished segments, and no further, since what answers write down moves the end
of the journal itself.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.records.stream_record import FOLLOWED, stream_record
from headrace.core.shards.peer import Kept
from headrace.core.shards.sending import Sender
from headrace.core.state.state import Fold


class _Asked:
    """When a follower was asked last."""

    def __init__(self) -> None:
        self.at: i64 = 0  # the offset that its stream had come to
        self.written: i64 = 0  # bytes of this journal, since the start


class Followed:
    """What followers have said of themselves, and what of it is in the journal."""

    def __init__(self, fold: Fold, commit: GroupCommit, note_step: int, note_bytes: i64) -> None:
        """Begin with nobody who was asked. A position may be behind in the journal by `note_step` offsets, and by
        `note_bytes` of it."""
        self._fold = fold
        self._commit = commit
        self._step = note_step
        self._bytes: i64 = note_bytes
        self._durable: dict[int, int] = {}
        self._noted: dict[int, int] = {}
        self._asked: dict[int, _Asked] = {}

    def begin(self) -> None:
        """Begin with what the journal says."""
        self._noted = dict(self._fold.streams.followed)

    def tell(self, shard: int, offset: int) -> None:
        """Note that a follower has everything below an offset, durably."""
        self._durable[shard] = max(self._durable.get(shard, 0), offset)

    def of(self, shard: int) -> int:
        """Return the offset below which everything is known to be durable in a shard."""
        return max(self._durable.get(shard, 0), self._fold.streams.followed.get(shard, 0))

    def ask(self, sender: Sender, end: i64, finished: i64) -> None:
        """Ask a follower how far it is, if that may free much. `finished`: where the finished segments end while space is
        short, so that what can go has to; 0 while it is not."""
        asked = self._asked.get(sender.shard)
        if asked is None:
            asked = self._asked[sender.shard] = _Asked()
        at, written = sender.position(end), i64(self._commit.bytes)
        if not sender.following or at <= asked.at:
            return
        if asked.at < finished or written - asked.written >= self._bytes:
            sender.look(end)
            sender.wire.say(Kept())
            asked.at, asked.written = at, written

    def note(self, now_us: int) -> None:
        """Journal how far followers have come, where that is much further than the journal says, or they were asked."""
        moved = [
            (shard, offset) for shard, offset in sorted(self._durable.items()) if self._counts(shard, offset)
        ]
        if moved:
            self._commit.append(stream_record(FOLLOWED, now_us, moved))
            self._noted.update(moved)

    def _counts(self, shard: int, offset: int) -> bool:
        noted = self._noted.get(shard, 0)
        if offset >= noted + self._step:
            return True
        asked = self._asked.get(shard)
        return asked is not None and noted < asked.at <= offset
