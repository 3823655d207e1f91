"""The shards that this one follows: what comes on their streams is taken in its order, as much as the loop has time for.

Runs on the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.core.ports.link import WorkerPort
from headrace.core.shards import peer
from headrace.core.shards.asking import Asking
from headrace.core.shards.group_members import GroupMembers
from headrace.core.shards.holding import Holding
from headrace.core.shards.intake import Intake
from headrace.core.shards.peer import Aside, Frame, Hearing, Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.retained_frames import Answered
from headrace.core.shards.taking import Taker
from headrace.errors import CorruptRecord

TAKEN_IN_TURN: Final = 64  # frames of one stream, before the next one has its turn
TAKEN_AT_ONCE: Final = 1024  # of what has had to wait, in one pass of the loop


class Sources:
    """Takes the streams of the shards that are followed. `takers`: one each, in the order in which they have their
    turns; `aside`: what is done with what they say of groups and topic queues."""

    def __init__(
        self,
        takers: dict[int, Taker],
        holding: Holding,
        intake: Intake,
        asking: Asking,
        members: GroupMembers,
        queues: QueuePort,
        worker: WorkerPort,
    ) -> None:
        self.takers = takers
        self.aside: Hearing[Wire] = Hearing()
        self._holding = holding
        self._intake = intake
        self._asking = asking
        self._members = members
        self._queues = queues
        self._worker = worker
        self._of_source = self._hear_sources()

    def _hear_sources(self) -> Hearing[Taker]:
        """Return what is done with what the shards say that are followed: but for copies and messages, which are many."""
        of_source: Hearing[Taker] = Hearing()
        clock = self._worker.clock
        of_source.on(peer.Looked, lambda taker, frame: taker.looked(frame.offset))
        of_source.on(peer.Started, lambda taker, frame: taker.started(frame, clock.now_us))
        of_source.on(peer.Kept, lambda taker, _: taker.kept(clock.now_us))
        of_source.on(peer.Confirmed, self._confirmed)
        of_source.on(Answered, lambda taker, frame: self._asking.answered(taker.source, frame))
        return of_source

    def heard(self, taker: Taker, wire: Wire, frame: Frame) -> None:
        """Go on with what a shard says that is followed. What belongs to its stream, or is told behind it, waits for what
        has come before; what groups and topic queues say does not."""
        if isinstance(frame, Aside):
            self.aside.hear(wire, frame)
        elif taker.inbox or not self._intake.open:
            taker.inbox.append(frame)
        else:
            self._take(taker, frame)

    def take_on(self) -> bool:
        """Take what has had to wait, as much as one pass of the loop should, of all streams in turn: the first one is who
        has waited longest for its turn. True if more can be taken now."""
        takers = self.takers
        waiting = deque([taker for taker in takers.values() if taker.inbox])
        left = TAKEN_AT_ONCE
        while waiting and left > 0 and self._intake.open:
            taker = waiting.popleft()
            takers[taker.source] = takers.pop(taker.source)
            end = max(0, left - TAKEN_IN_TURN)
            while taker.inbox and left > end and self._intake.open:
                self._take_one(taker)
                left -= 1
            if taker.inbox:
                waiting.append(taker)
        return len(waiting) > 0 and self._intake.open

    def _take_one(self, taker: Taker) -> None:
        """Take the next of what has had to wait. What that raises cuts this stream: it begins again on another wire."""
        try:
            self._take(taker, taker.inbox.popleft())
        except Exception as error:  # noqa: BLE001
            self._worker.contain("peer", None, error)
            self.cut(taker)
            self._holding.release()

    def _take(self, taker: Taker, frame: Frame) -> None:
        """Take what is next on a stream."""
        if isinstance(frame, peer.Copied):
            try:
                self._copied(taker, frame)
            except Exception as error:  # noqa: BLE001  it is asked for again, on another wire
                self._worker.contain("apply", None, error)
                self.cut(taker)
                self._holding.release()
        elif isinstance(frame, peer.Passed):
            taker.passed(frame.message)
        else:
            self._of_source.hear(taker, frame)

    def _confirmed(self, taker: Taker, frame: peer.Confirmed) -> None:
        taker.confirm(frame.number, self._holding.number, self._worker.clock.mono_ms)
        self._holding.release()

    def _copied(self, taker: Taker, frame: peer.Copied) -> None:
        """Append the next copy of a stream; before it the queue of its topic, where it is to begin one. Raises
        CorruptRecord for one of another shard, which would move the position of that one's stream, and what the journal
        does."""
        copy = frame.copy
        if copy.source != taker.source:
            raise CorruptRecord(f"a copy of shard {copy.source} in the stream of shard {taker.source}")
        if frame.begins and copy.source_offset >= taker.position:
            self._queues.begins(copy, frame.user)
        taker.copied(copy)

    def cut(self, taker: Taker) -> None:
        """Take nothing more from a shard on the wire there is."""
        taker.end()
        self._members.cut(taker.source)
        self._queues.cut(taker.source)
