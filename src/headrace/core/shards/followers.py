"""The shards that follow this one, and what is published here that they want.

Runs on the loop. A message that takes effect here is sent at once to those that keep up; the others read it from the
journal, as their windows allow.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.routing import Passing
from headrace.core.ports.link import Crowds, Link, WorkerPort
from headrace.core.ports.waiting import QueueOwner, Waker
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_QOS0_AWAY, DROP_QOS0_SLOW, FLAG_FRAME, FLAG_QOS, FLAG_RETAIN
from headrace.core.shards import peer
from headrace.core.shards.followed import Followed
from headrace.core.shards.intake import Intake
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.routes import Routes
from headrace.core.shards.sending import Sender, home_of
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.session import FarAudience, session_of
from headrace.core.state.state import Fold


class Followers(Passing, Waker):
    """Sends messages of this shard to those that follow it. `routes` says who of them wants a topic."""

    def __init__(
        self,
        others: list[int],
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        worker: WorkerPort,
        routes: Routes,
        settings: StreamSettings,
        gate: Crowds,
        queues: QueuePort,
        intake: Intake,
    ) -> None:
        self.routes = routes
        self.senders: dict[int, Sender] = {}  # by slot
        self.by_shard: dict[int, Sender] = {}
        self._absent: dict[int, int] = {}  # slots by shard: what those wanted last that do not follow now
        self._nobody = _Wanting(0, [], 0)
        self._sent_before = 0  # copies, on wires that have ended
        self._others = others
        self._fold, self._commit = fold, commit
        self._reader, self._unread = delivery.reader, delivery.unread
        self._worker, self._settings, self._gate = worker, settings, gate
        self._queues = queues
        self._intake = intake
        self.followed = Followed(fold, commit, settings.note_step, settings.note_bytes)

    def closed(self, sender: Sender) -> None:
        """Send nothing more on a wire, and look no more for what was announced on it."""
        del self.senders[sender.slot]
        del self.by_shard[sender.shard]
        self._sent_before += sender.copies
        self._gate.disperse(sender.crowd)
        self._leave_routes(sender)

    def read_on(self, end: i64) -> bool:
        """Read on for those that lag; True if there is more."""
        more = False
        # What has reached only some of its sessions passed by when it began: nobody becomes live before it is done.
        looks = 0 if self._commit.unfinished else self._settings.read_at_once
        for sender in self.senders.values():
            if looks and sender.reads and self._reads_on(sender, end, looks):
                more = True
        return more

    def follow_durably(self, sender: Sender, frame: peer.Follow) -> None:
        """Begin a stream, once the record of our start is durable."""
        streams = self._fold.streams
        if streams.starts and streams.starts[-1][0] >= self._commit.high_watermark:
            self._commit.then(None, partial(self.follow, sender, frame))
        else:
            self.follow(sender, frame)

    def passed(
        self, message: Message, known: FarAudience | None, publisher: Link | None
    ) -> FarAudience | None:
        """Send a message that is durable and takes effect here to whoever follows and wants it. Of what is retained
        everybody gets a copy, at QoS 0 too: whoever comes later is told that it has come."""
        if message.flags & (FLAG_QOS | FLAG_RETAIN) == 0:
            return self.passed_live(message, known, publisher)
        self._intake.is_copy = False
        try:
            wanting = self._wanting(message, known)
            for sender in wanting.senders:
                if not sender.passes(message) and publisher is not None:
                    self._crowd(sender, publisher, message.offset)
            if message.flags & (FLAG_RETAIN | FLAG_FRAME):
                self._pass_home(message, wanting.senders, publisher)
        except Exception as error:  # noqa: BLE001  whoever has not got it reads it from the journal
            self._worker.contain("apply", None, error)
            for sender in self.senders.values():
                sender.fall_back(message.offset)
            return None
        return wanting

    def _wanting(self, message: Message, known: FarAudience | None) -> _Wanting:
        """Return the senders to the shards that want the topic of a message: those that are `known`, if no route has
        changed since."""
        changes = self.routes.changes
        if known is not None:
            wanting = cast(_Wanting, known)
            if wanting.changes == changes:
                return wanting
        found: list[Sender] = []
        slots = self.routes.match(message.tenant, message.topic)
        for slot in slots:
            sender = self.senders.get(slot)
            if (
                sender is not None
            ):  # else it is of another shard of this worker, or of one that does not follow now
                found.append(sender)
        absent = 0
        for shard, slot in self._absent.items():
            # One that is about to follow again, and has said so by now, is counted by its sender.
            if slot in slots and self.by_shard.get(shard) not in found:
                absent += 1
        if found or absent:
            return _Wanting(changes, found, absent)
        if self._nobody.changes != changes:
            self._nobody = _Wanting(changes, found, 0)
        return self._nobody

    def _pass_home(self, message: Message, sent: list[Sender], publisher: Link | None) -> None:
        """Send a message to the home of its topic too, if it is retained, or of a device and the topic may have a
        queue."""
        if message.flags & FLAG_RETAIN or self._queues.may_have(message):
            home = self.by_shard.get(home_of(message, self._worker.homes))
            if home is not None and home not in sent and not home.passes(message) and publisher is not None:
                self._crowd(home, publisher, message.offset)

    def passed_live(
        self, message: Message, known: FarAudience | None, publisher: Link | None
    ) -> FarAudience | None:
        """Send a message at QoS 0 to whoever follows, wants it and keeps up; for the others it is dropped, and
        counted, also for those that wanted it when they followed last."""
        wanting = self._wanting(message, known)
        if wanting.absent:
            self._fold.tenant(message.tenant).count_drop(DROP_QOS0_AWAY, wanting.absent)
        for sender in wanting.senders:
            if not sender.passes_live(message):
                self._fold.tenant(message.tenant).count_drop(DROP_QOS0_SLOW, 1)
                if publisher is not None:
                    self._crowd(sender, publisher, message.offset)
        return wanting

    def _crowd(self, sender: Sender, publisher: Link, offset: i64) -> None:
        """Let whoever publishes wait for a shard that takes all the time, and less than comes, unless it has to take much
        itself."""
        session = session_of(publisher)
        if session is not None and not self._intake.keeps_up(session):
            return
        if sender.is_crowded(self._worker.clock.mono_ms):
            sender.gather(offset)
            self._gate.join(publisher, sender.crowd)

    def disperse(self) -> None:
        """Let publishers go on where less is owed, or nothing is taken, or others go on all the time."""
        now_ms = self._worker.clock.mono_ms
        for sender in self.senders.values():
            if sender.crowd.crowded and (sender.has_paid or not sender.is_crowded(now_ms)):
                self._gate.disperse(sender.crowd)

    def may_be_heard(self, message: Message) -> bool:
        """Return whether another shard wants the message, or does not follow now and may want it: it has announced all
        of its filters when it follows, not when it has said HELLO."""
        if len(self.routes.match(message.tenant, message.topic)) > 0:
            return True
        return not all(self.is_followed(other) for other in self._others)

    @property
    def reads(self) -> bool:
        """Return whether somebody who lags may be sent more of the journal now."""
        return any(sender.reads for sender in self.senders.values())

    def is_followed(self, shard: int) -> bool:
        """Return whether another shard follows this one now."""
        sender = self.by_shard.get(shard)
        return sender is not None and sender.following

    def came_to(self, shard: int) -> int:
        """Return the offset in the journal of this shard that its stream to another one has come to: what it has looked
        at, or, while that one does not follow, what is known to be durable there."""
        sender = self.by_shard.get(shard)
        if sender is not None and sender.following:
            return int(sender.position(self._commit.high_watermark))
        return self.followed.of(shard)

    @property
    def copies_sent(self) -> int:
        """Return how many copies of messages of this shard were sent to others."""
        return self._sent_before + sum([sender.copies for sender in self.senders.values()])

    def announced(self, sender: Sender, frame: peer.Announced) -> None:
        for tenant, topic_filter in frame.filters:
            self.routes.add(sender.slot, tenant, topic_filter)

    def wants(self, sender: Sender, frame: peer.Wanted) -> None:
        self.routes.add(sender.slot, frame.tenant, frame.topic_filter)
        sender.look_again()
        self.look(sender)  # whatever it did not look for with this filter is below
        sender.wire.say(peer.Confirmed(frame.number))

    def wants_no_more(self, sender: Sender, frame: peer.Unwanted) -> None:
        self.routes.remove(sender.slot, frame.tenant, frame.topic_filter)

    def look(self, sender: Sender) -> None:
        """Say how far a sender has looked now."""
        sender.look(self.passed_by())

    def passed_by(self) -> i64:
        """Return the offset below which everything has passed by the senders that are live: a message that has reached
        only some of its sessions did so when it began."""
        end: i64 = self._commit.high_watermark
        return end + 1 if self._commit.unfinished else end

    def _leave_routes(self, sender: Sender) -> None:
        """Remember what a shard wanted that follows no more, so that what it misses at QoS 0 is counted. One that did not
        follow had not said everything."""
        if sender.following and sender.shard not in self._absent:
            self._absent[sender.shard] = sender.slot
            self.routes.changes += 1
        else:
            self.routes.close(sender.slot)

    def follow(self, sender: Sender, frame: peer.Follow) -> None:
        """Begin a stream, if there still is its wire, with whose it is. The record of our start is durable."""
        if self.senders.get(sender.slot) is not sender:
            return
        if self._fold.streams.starts:
            sender.wire.say(peer.Started(*self._fold.streams.starts[-1]))
        sender.follow(frame.offset, frame.granted)
        absent = self._absent.pop(sender.shard, None)
        if absent is not None:
            self.routes.close(absent)

    def _reads_on(self, sender: Sender, end: i64, looks: i64) -> bool:
        """Read on for a shard that lags; True if there is more. What that raises costs the others nothing, and is tried
        again when the timer calls."""
        try:
            more = sender.read(self._reader, self.routes, end, looks)
            if sender.unread:
                self._unread.add(sender, self)
            return more
        except Exception as error:  # noqa: BLE001
            self._worker.contain("read", None, error)
            return False

    def wake(self, owner: QueueOwner) -> bool:
        """Go on with a stream whose next record could not be read. False if its wire has ended, or nothing may be read
        in this pass."""
        if not isinstance(owner, Sender) or not owner.unread or self.senders.get(owner.slot) is not owner:
            return False
        owner.unread = False
        looks = 0 if self._commit.unfinished else self._settings.read_at_once
        if not owner.reads or not looks:
            return False
        if self._reads_on(owner, self._commit.high_watermark, looks):
            self._worker.request_tick()
        return True


class _Wanting(FarAudience):
    """The senders to the shards that want a topic, and how many `absent` shards wanted it when they followed last, while
    the `changes` of routes are so many."""

    def __init__(self, changes: i64, senders: list[Sender], absent: int) -> None:
        self.changes: i64 = changes
        self.senders = senders
        self.absent = absent
