"""The other shards, as one shard sees them: whom it follows, who follows it, who wants what.

Runs on the loop. Whoever owns the connections opens a wire to the owner of each other shard (`connect`), hands on what is
said on wires (`heard`) and tells of those that broke (`broken`). Here is decided what is said.

SUBACK means that what is published anywhere from then on is found. It waits until each other shard looks for the filter,
or nothing is taken from that shard any more: a stream that was cut begins again behind an announcement of all filters.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.routing import Router
from headrace.core.ports.journal import JournalPort
from headrace.core.ports.link import Crowds, Link, WorkerPort
from headrace.core.ports.waiting import QueueOwner, Waker
from headrace.core.records.message import Copy, Message
from headrace.core.records.record import DROP_QOS0_AWAY, DROP_QOS0_SLOW, FLAG_FRAME, FLAG_QOS, FLAG_RETAIN
from headrace.core.records.stream_record import OWNED, stream_record
from headrace.core.shards import peer
from headrace.core.shards.alone import Alone
from headrace.core.shards.answering import Answering
from headrace.core.shards.asking import Asking
from headrace.core.shards.enrolments import Enrolment
from headrace.core.shards.followed import Followed
from headrace.core.shards.group_frames import Meet, Welcome
from headrace.core.shards.group_homes import GroupHomes
from headrace.core.shards.group_members import GroupMembers
from headrace.core.shards.group_wires import GroupWires
from headrace.core.shards.holding import Held, Holding
from headrace.core.shards.intake import Intake
from headrace.core.shards.peer import Aside, Frame, Hearing, Hello, Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.retained_frames import Answered, Asked, Forgotten, More, Sought
from headrace.core.shards.routes import Routes
from headrace.core.shards.sending import Sender, home_of
from headrace.core.shards.shared_disk import SharedDisk
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker
from headrace.core.shards.withdrawing import Withdrawing
from headrace.core.state.session import FarAudience, Session, session_of
from headrace.core.state.state import Fold
from headrace.core.state.wanted import Wanted, WantedListener
from headrace.errors import CorruptRecord

NOT_BEGUN: Final = -1
TAKEN_IN_TURN: Final = 64  # frames of one stream, before the next one has its turn
TAKEN_AT_ONCE: Final = 1024  # of what has had to wait, in one pass of the loop
Offsets = dict[int, tuple[int, int]]  # two of them, by shard


class Neighbours(Alone, Waker):
    """The other shards, as shard `shard` sees them. `queues`: whoever speaks of topic queues."""

    def __init__(
        self,
        shard: int,
        fold: Fold,
        commit: GroupCommit,
        router: Router,
        delivery: Delivery,
        journal: JournalPort,
        worker: WorkerPort,
        routes: Routes,
        settings: StreamSettings,
        gate: Crowds,
        queues: QueuePort,
    ) -> None:
        super().__init__()
        self.shard = shard
        self.routes = routes
        self.epoch = NOT_BEGUN
        self.others = [other for other in range(worker.homes.shards) if other != shard]
        self.ahead: dict[int, int] = {}  # followers that have taken more than there is, and up to where
        self.behind: Offsets = {}  # those that ask from an offset, and had more than that before
        self.older_followers: Offsets = {}  # those whose owner began before one that was talked to: where both did
        self.older_sources: Offsets = {}
        self.cuts = 0  # streams that were cut because the other side did not answer
        self._fold, self._commit, self._router = fold, commit, router
        self._reader, self._unread = delivery.reader, delivery.unread
        self._worker, self._settings, self._gate = worker, settings, gate
        self._attempt = 0
        self._sent_before = 0  # copies, on wires that have ended
        self._takers: dict[int, Taker] = {}  # in the order in which they have their turns
        self.intake = delivery.lateness = Intake(worker.clock, settings, gate)
        self._holding = Holding(self._takers, commit, worker)
        self.asking = Asking(shard, fold, commit, delivery, worker, self._takers, self._holding, settings)
        self._newest: dict[int, tuple[int, int]] = {}  # by shard: epoch and attempt of its newest hello
        self._senders: dict[int, Sender] = {}  # by slot
        self._by_shard: dict[int, Sender] = {}
        self._absent: dict[int, int] = {}  # slots by shard: what those wanted last that do not follow now
        self.disk = SharedDisk(self.others, self._takers, self._senders, journal, gate, settings)
        self._withdrawing = Withdrawing()
        self._followed = Followed(fold, commit, settings.note_step, settings.note_bytes)
        self._nobody = _Wanting(0, [], 0)
        fold.wanted = fold.groups.wanted = fold.queues.wanted = self._wanted = Wanted()
        self.queues = queues
        wires = _GroupWires(self)
        self._answering = Answering(shard, fold, self._takers, worker, wires, settings.page_messages)
        self.homes = GroupHomes(fold, commit, delivery, worker, self._holding, wires)
        self.members = GroupMembers(shard, fold, commit, delivery, worker, wires, settings.answer_within_ms)
        self._of_source, self._of_follower = self._hear_sources(), self._hear_followers()
        self._aside_of_source, self._aside_of_follower = self._hear_asides()

    def _hear_sources(self) -> Hearing[Taker]:
        """Return what is done with what the shards say that are followed: but for copies and messages, which are many."""
        of_source: Hearing[Taker] = Hearing()
        clock = self._worker.clock
        of_source.on(peer.Looked, lambda taker, frame: taker.looked(frame.offset))
        of_source.on(peer.Started, lambda taker, frame: taker.started(frame, clock.now_us))
        of_source.on(peer.Kept, lambda taker, _: taker.kept(clock.now_us))
        of_source.on(peer.Confirmed, self._confirmed)
        of_source.on(Answered, lambda taker, frame: self.asking.answered(taker.source, frame))
        return of_source

    def _hear_followers(self) -> Hearing[Sender]:
        """Return what is done with what the shards say that follow."""
        of_follower: Hearing[Sender] = Hearing()
        answering = self._answering
        of_follower.on(peer.Announced, self._announced)
        of_follower.on(peer.Follow, self._follow)
        of_follower.on(peer.Wanted, self._wants)
        of_follower.on(peer.Unwanted, self._wants_no_more)
        of_follower.on(peer.Granted, lambda sender, frame: sender.grant(frame.granted))
        of_follower.on(
            peer.Durable, lambda sender, frame: self._followed.tell(sender.shard, int(frame.offset))
        )
        of_follower.on(peer.Filled, lambda sender, frame: self.disk.told(sender.shard, frame.full))
        of_follower.on(Asked, lambda sender, frame: answering.asked(sender.slot, sender.wire, frame))
        of_follower.on(More, lambda sender, frame: answering.more(sender.slot, frame))
        of_follower.on(Forgotten, lambda sender, frame: answering.forgotten(sender.slot, frame))
        of_follower.on(Sought, lambda sender, _: self._look(sender))
        return of_follower

    def _hear_asides(self) -> tuple[Hearing[Wire], Hearing[Wire]]:
        """Return what is done with what is said of groups and topic queues, by shards that are followed and by those that
        follow."""
        of_source: Hearing[Wire] = Hearing()
        of_follower: Hearing[Wire] = Hearing()
        of_source.on(Welcome, self._welcomed)
        of_follower.on(Meet, lambda wire, _: self._greet(self._by_shard[wire.far]))
        self.members.hears(of_source)
        self.homes.hears(of_follower)
        self.queues.hears(of_source, of_follower)
        return of_source, of_follower

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._wanted.listener = _Announcer(self)
        self._followed.begin()
        self.homes.begin()
        self.members.begin()
        settings = self._settings
        for other in self.others:
            self._takers[other] = Taker(
                other,
                self._fold,
                self._commit,
                self._router,
                settings.window_bytes,
                settings.note_step,
                self.intake,
            )
        self.disk.set_windows()

    def set_storage_full(self, full: bool, is_of_disk: bool = True) -> None:
        self.disk.set_full(full, is_of_disk)
        self._worker.request_tick()

    # Wires

    def connect(self, source: int, wire: Wire) -> None:
        """Follow a shard on a new wire to its owner. What raises, for want of memory for all filters, leaves none: a wire
        that was begun and does not ask for the stream would be taken for one on which it comes."""
        self._attempt += 1
        wire.far = source
        taker = self._takers[source]
        try:
            self._begin(taker, wire)
        except BaseException:
            taker.end()
            wire.cut()
            raise
        finally:
            self._holding.release()

    def _begin(self, taker: Taker, wire: Wire) -> None:
        self.members.cut(taker.source)
        self.queues.cut(taker.source)
        hello = Hello(self.shard, self.epoch, self._attempt)
        announced = self._wanted.filters() + self._withdrawing.filters()
        taker.begin(wire, hello, announced, self._holding.number)
        wire.say(peer.Filled(self.disk.says_full))
        if self.members.needs(taker.source):
            wire.say(Meet())
        self.queues.reached(taker.source, wire)

    def follows(self, source: int) -> bool:
        """Return whether there is a wire on which it follows a shard."""
        taker = self._takers.get(source)
        return taker is not None and taker.wire is not None

    def was_answered(self, source: int) -> bool:
        """Return whether a shard has begun to send on the newest wire on which it was followed."""
        taker = self._takers.get(source)
        return taker is not None and taker.answered

    def is_followed(self, shard: int) -> bool:
        """Return whether another shard follows this one now."""
        sender = self._by_shard.get(shard)
        return sender is not None and sender.following

    def came_to(self, shard: int) -> int:
        """Return the offset in the journal of this shard that its stream to another one has come to: what it has looked
        at, or, while that one does not follow, what is known to be durable there."""
        sender = self._by_shard.get(shard)
        if sender is not None and sender.following:
            return int(sender.position(self._commit.high_watermark))
        return self._followed.of(shard)

    @property
    def copies_sent(self) -> int:
        """Return how many copies of messages of this shard were sent to others."""
        return self._sent_before + sum([sender.copies for sender in self._senders.values()])

    @property
    def copies_taken(self) -> int:
        """Return how many copies of messages of others this shard has appended."""
        return sum([taker.copies for taker in self._takers.values()])

    def broken(self, wire: Wire) -> None:
        """Note that a wire has ended."""
        for taker in self._takers.values():
            if taker.wire is wire:
                self._cut(taker)
        for sender in list(self._senders.values()):
            if sender.wire is wire:
                self._close(sender)
        self._holding.release()

    def leave(self) -> None:
        """Follow nobody, and let nobody follow, any more: the shard is being given up. For the others it is one that is
        away."""
        self.epoch = NOT_BEGUN
        for taker in self._takers.values():
            self._cut(taker)
        for sender in list(self._senders.values()):
            self._close(sender)
        self._holding.release()

    def _cut(self, taker: Taker) -> None:
        """Take nothing more from a shard on the wire there is."""
        taker.end()
        self.members.cut(taker.source)
        self.queues.cut(taker.source)

    def heard(self, wire: Wire, frame: Frame) -> None:
        """Go on with what was said on a wire. What comes on one that was cut means nothing any more."""
        self._worker.request_tick()
        if isinstance(frame, Hello):
            self._greeted(wire, frame)
            return
        taker = self._takers.get(wire.far)
        if taker is not None and taker.wire is wire:
            self._from_source(taker, wire, frame)
            return
        sender = self._by_shard.get(wire.far)
        if sender is None or sender.wire is not wire:
            return
        if isinstance(frame, Aside):
            self._aside_of_follower.hear(wire, frame)
        else:
            self._of_follower.hear(sender, frame)

    def _greeted(self, wire: Wire, hello: Hello) -> None:
        """Let somebody follow who has said HELLO: the newest owner of a shard is believed, on its newest wire."""
        newest = (hello.epoch, hello.attempt)
        if self.epoch == NOT_BEGUN or hello.shard not in self._takers:
            wire.cut()
        elif hello.epoch < self._owner(hello.shard):
            self.older_followers[hello.shard] = (hello.epoch, self._owner(hello.shard))
            wire.cut()  # it is of an owner that was replaced, or of a shard that was put back alone
        elif newest <= self._newest.get(hello.shard, (NOT_BEGUN, 0)):
            wire.cut()  # it is of an owner that was replaced, or a wire that was given up
        else:
            self.older_followers.pop(hello.shard, None)
            self._newest[hello.shard] = newest
            wire.far = hello.shard
            before = self._by_shard.get(hello.shard)
            if before is not None:
                self._close(before)
            slot, homes = self.routes.open(), self._worker.homes
            sender = Sender(wire, self.shard, hello.shard, slot, homes, self.queues, self._settings)
            self._senders[sender.slot] = sender
            self._by_shard[hello.shard] = sender
            self.homes.opened(hello.shard)
            if self.homes.knows(hello.shard):
                self._greet(sender)

    def _greet(self, sender: Sender) -> None:
        """Speak of groups to the shard of members, once its epoch is durable."""
        if not sender.greeted:
            sender.greeted = True
            self._note_owner(sender.shard, self._newest[sender.shard][0])
            self._commit.defer(_Greeting(self, sender))

    def meet_home(self, home: int) -> None:
        """Tell the home of groups that it has members here, if there is a wire."""
        taker = self._takers.get(home)
        if taker is not None and taker.wire is not None:
            taker.wire.say(Meet())

    def _owner(self, shard: int) -> int:
        """Return the epoch of the newest owner of a shard that was talked to, as the journal has it."""
        return self._fold.streams.owners.get(shard, NOT_BEGUN)

    def _note_owner(self, shard: int, epoch: int) -> None:
        """Journal the epoch of an owner, unless it is there: who came before is not believed after a crash either."""
        if epoch > self._owner(shard):
            self._commit.append(stream_record(OWNED, self._worker.clock.now_us, [(shard, epoch)]))

    def greet(self, sender: Sender) -> None:
        """Answer the shard of members, when its epoch is durable."""
        if self._senders.get(sender.slot) is sender:
            sender.wire.say(Welcome(self.epoch))

    def _welcomed(self, wire: Wire, frame: Welcome) -> None:
        """Go on with the owner of a shard that has answered: an older one than was talked to is left alone."""
        taker, epoch = self._takers[wire.far], frame.epoch
        if epoch < self._owner(taker.source):
            self.older_sources[taker.source] = (epoch, self._owner(taker.source))
            self._cut(taker)
            self._holding.release()
            return
        self.older_sources.pop(taker.source, None)
        self._note_owner(taker.source, epoch)
        self._commit.defer(_Meeting(self, taker, wire, epoch))

    def meet(self, taker: Taker, wire: Wire, epoch: int) -> None:
        """Speak of groups to the owner of a shard, whose epoch is durable."""
        if taker.wire is wire and epoch >= self._owner(taker.source):
            self.members.welcomed(taker.source, wire)

    def _close(self, sender: Sender) -> None:
        """Send nothing more on a wire, and look no more for what was announced on it."""
        del self._senders[sender.slot]
        del self._by_shard[sender.shard]
        self._sent_before += sender.copies
        self._gate.disperse(sender.crowd)
        self.disk.told(sender.shard, True)  # it may be
        self._leave_routes(sender)
        self._answering.forget(sender.slot)
        sender.wire.cut()
        self.homes.closed(sender.shard)
        self.queues.closed(sender.shard)

    def _leave_routes(self, sender: Sender) -> None:
        """Remember what a shard wanted that follows no more, so that what it misses at QoS 0 is counted. One that did not
        follow had not said everything."""
        if sender.following and sender.shard not in self._absent:
            self._absent[sender.shard] = sender.slot
            self.routes.changes += 1
        else:
            self.routes.close(sender.slot)

    def _announced(self, sender: Sender, frame: peer.Announced) -> None:
        for tenant, topic_filter in frame.filters:
            self.routes.add(sender.slot, tenant, topic_filter)

    def _wants(self, sender: Sender, frame: peer.Wanted) -> None:
        self.routes.add(sender.slot, frame.tenant, frame.topic_filter)
        sender.look_again()
        self._look(sender)  # whatever it did not look for with this filter is below
        sender.wire.say(peer.Confirmed(frame.number))

    def _wants_no_more(self, sender: Sender, frame: peer.Unwanted) -> None:
        self.routes.remove(sender.slot, frame.tenant, frame.topic_filter)

    def _look(self, sender: Sender) -> None:
        """Say how far a sender has looked now."""
        sender.look(self._passed_by())

    def _passed_by(self) -> i64:
        """Return the offset below which everything has passed by the senders that are live: a message that has reached
        only some of its sessions did so when it began."""
        end: i64 = self._commit.high_watermark
        return end + 1 if self._commit.unfinished else end

    def _follow(self, sender: Sender, frame: peer.Follow) -> None:
        """Begin a stream where the follower asks for it. One that has taken more than there is, or than the owner gave
        that it has heard last, would pass over what is written next: this journal has lost its end, or was restored from
        another backup than that one's."""
        streams = self._fold.streams
        followed = self._followed.of(sender.shard)
        if frame.offset < followed:
            self.behind[sender.shard] = (int(frame.offset), followed)
            self._close(
                sender
            )  # of an owner that was replaced by one that has made more durable, or put back alone
        elif frame.offset > self._passed_by() or not streams.has_given(frame.start, int(frame.offset)):
            self.ahead[sender.shard] = int(frame.offset)
            self._close(sender)
        else:
            self.ahead.pop(sender.shard, None)
            self.behind.pop(sender.shard, None)
            sender.grant(frame.granted)
            if streams.starts and streams.starts[-1][0] >= self._commit.high_watermark:
                self._commit.defer(_Following(self, sender, frame))
            else:
                self.follow(sender, frame)

    def follow(self, sender: Sender, frame: peer.Follow) -> None:
        """Begin a stream, if there still is its wire, with whose it is. The record of our start is durable."""
        if self._senders.get(sender.slot) is not sender:
            return
        if self._fold.streams.starts:
            sender.wire.say(peer.Started(*self._fold.streams.starts[-1]))
        sender.follow(frame.offset, frame.granted)
        absent = self._absent.pop(sender.shard, None)
        if absent is not None:
            self.routes.close(absent)

    def _from_source(self, taker: Taker, wire: Wire, frame: Frame) -> None:
        """Go on with what a shard says that is followed. What belongs to its stream, or is told behind it, waits for what
        has come before; what groups and topic queues say does not."""
        if isinstance(frame, Aside):
            self._aside_of_source.hear(wire, frame)
        elif taker.inbox or not self.intake.open:
            taker.inbox.append(frame)
        else:
            self._take(taker, frame)

    def _take_on(self) -> bool:
        """Take what has had to wait, as much as one pass of the loop should, of all streams in turn: the first one is who
        has waited longest for its turn. True if more can be taken now."""
        takers = self._takers
        waiting = deque([taker for taker in takers.values() if taker.inbox])
        left = TAKEN_AT_ONCE
        while waiting and left > 0 and self.intake.open:
            taker = waiting.popleft()
            takers[taker.source] = takers.pop(taker.source)
            end = max(0, left - TAKEN_IN_TURN)
            while taker.inbox and left > end and self.intake.open:
                self._take_one(taker)
                left -= 1
            if taker.inbox:
                waiting.append(taker)
        return len(waiting) > 0 and self.intake.open

    def _take_one(self, taker: Taker) -> None:
        """Take the next of what has had to wait. What that raises cuts this stream: it begins again on another wire."""
        try:
            self._take(taker, taker.inbox.popleft())
        except Exception as error:  # noqa: BLE001
            self._worker.contain("peer", None, error)
            self._cut(taker)
            self._holding.release()

    def _take(self, taker: Taker, frame: Frame) -> None:
        """Take what is next on a stream."""
        if isinstance(frame, peer.Copied):
            try:
                self._copied(taker, frame)
            except Exception as error:  # noqa: BLE001  it is asked for again, on another wire
                self._worker.contain("apply", None, error)
                self._cut(taker)
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
            self.queues.begins(copy, frame.user)
        taker.copied(copy)

    # What the sessions here want

    def wanted(self, tenant: str, topic_filter: str) -> None:
        """Announce a filter, unless it was not withdrawn yet."""
        if self._withdrawing.take((tenant, topic_filter)):
            return  # it is announced
        self._holding.number += 1
        frame = peer.Wanted(self._holding.number, tenant, topic_filter)
        for taker in self._takers.values():
            taker.ask(frame, self._worker.clock.mono_ms)

    def unwanted(self, tenant: str, topic_filter: str) -> None:
        """Withdraw a filter later."""
        until_ms = self._worker.clock.mono_ms + self._settings.withdraw_after_ms
        self._withdraw(self._withdrawing.put((tenant, topic_filter), until_ms))

    def hold(self, held: Held) -> bool:
        return self._holding.hold(held)

    def must_know(self, session: Session, topic_filter: str) -> bool:
        return self.members.enrolments.elsewhere(session, topic_filter)

    def enrol(self, enrolment: Enrolment) -> bool:
        return self.members.enrolments.hold(enrolment)

    # What is published here, and what of others takes effect here

    def passed(
        self, message: Message, known: FarAudience | None, publisher: Link | None
    ) -> FarAudience | None:
        """Send a message that is durable and takes effect here to whoever follows and wants it. Of what is retained
        everybody gets a copy, at QoS 0 too: whoever comes later is told that it has come."""
        if message.flags & (FLAG_QOS | FLAG_RETAIN) == 0:
            return self.passed_live(message, known, publisher)
        self.intake.is_copy = False
        try:
            wanting = self._wanting(message, known)
            for sender in wanting.senders:
                if not sender.passes(message) and publisher is not None:
                    self._crowd(sender, publisher, message.offset)
            if message.flags & (FLAG_RETAIN | FLAG_FRAME):
                self._pass_home(message, wanting.senders, publisher)
        except Exception as error:  # noqa: BLE001  whoever has not got it reads it from the journal
            self._worker.contain("apply", None, error)
            for sender in self._senders.values():
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
            sender = self._senders.get(slot)
            if (
                sender is not None
            ):  # else it is of another shard of this worker, or of one that does not follow now
                found.append(sender)
        absent = 0
        for shard, slot in self._absent.items():
            # One that is about to follow again, and has said so by now, is counted by its sender.
            if slot in slots and self._by_shard.get(shard) not in found:
                absent += 1
        if found or absent:
            return _Wanting(changes, found, absent)
        if self._nobody.changes != changes:
            self._nobody = _Wanting(changes, found, 0)
        return self._nobody

    def _pass_home(self, message: Message, sent: list[Sender], publisher: Link | None) -> None:
        """Send a message to the home of its topic too, if it is retained, or of a device and the topic may have a
        queue."""
        if message.flags & FLAG_RETAIN or self.queues.may_have(message):
            home = self._by_shard.get(home_of(message, self._worker.homes))
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
        if session is not None and not self.intake.keeps_up(session):
            return
        if sender.is_crowded(self._worker.clock.mono_ms):
            sender.gather(offset)
            self._gate.join(publisher, sender.crowd)

    def _disperse(self) -> None:
        """Let publishers go on where less is owed, or nothing is taken, or others go on all the time."""
        now_ms = self._worker.clock.mono_ms
        for sender in self._senders.values():
            if sender.crowd.crowded and (sender.has_paid or not sender.is_crowded(now_ms)):
                self._gate.disperse(sender.crowd)

    def may_be_heard(self, message: Message) -> bool:
        """Return whether another shard wants the message, or does not follow now and may want it: it has announced all
        of its filters when it follows, not when it has said HELLO."""
        if len(self.routes.match(message.tenant, message.topic)) > 0:
            return True
        return not all(self.is_followed(other) for other in self.others)

    def took(self, copy: Copy) -> None:
        taker = self._takers.get(copy.source)
        if taker is not None:
            taker.applies(copy)

    # Passes of the loop, and time

    @property
    def reads(self) -> bool:
        """Return whether somebody who lags may be sent more of the journal now."""
        return any(sender.reads for sender in self._senders.values())

    def end_pass(self) -> None:
        """Read on for the shards that lag, and grant more to the shards that are followed."""
        end: i64 = self._commit.high_watermark
        more = self.routes.sweep()
        # What has reached only some of its sessions passed by when it began: nobody becomes live before it is done.
        looks = 0 if self._commit.unfinished else self._settings.read_at_once
        for sender in self._senders.values():
            if looks and sender.reads and self._reads_on(sender, end, looks):
                more = True
        self._disperse()
        self.intake.look()
        more = self._take_on() or more
        if self.disk.is_full:
            self.disk.set_windows()
        for taker in self._takers.values():
            if not taker.follows:
                taker.announce()
            taker.tell()
        more = self._answering.give_pages() or more
        self.asking.ask_homes()
        self.members.tell_homes()
        self.queues.hear_itself()
        if more:
            self._worker.request_tick()

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
        if not isinstance(owner, Sender) or not owner.unread or self._senders.get(owner.slot) is not owner:
            return False
        owner.unread = False
        looks = 0 if self._commit.unfinished else self._settings.read_at_once
        if not owner.reads or not looks:
            return False
        if self._reads_on(owner, self._commit.high_watermark, looks):
            self._worker.request_tick()
        return True

    def on_timer(self) -> None:
        """Do what time has decided: streams that nobody answers for are cut, filters withdrawn, positions told and
        noted."""
        clock = self._worker.clock
        self._disperse()
        self.disk.on_timer()
        if self.intake.holds or self.disk.is_full:
            self._worker.request_tick()
        for taker in self._takers.values():
            if taker.inbox and taker.asked_ms >= 0:
                taker.asked_ms = clock.mono_ms  # the answer may be among what waits
            if taker.asked_ms >= 0 and clock.mono_ms - taker.asked_ms >= self._settings.answer_within_ms:
                self.cuts += 1
                self._cut(taker)
            taker.note(clock.now_us)
        self._withdraw(self._withdrawing.due(clock.mono_ms))
        end: i64 = self._commit.high_watermark
        for sender in self._senders.values():
            sender.note_lag(end)
            sender.look(end)
            self._followed.ask(sender, end, self.disk.finished)
            if sender.reads:
                self._worker.request_tick()
        self._followed.note(clock.now_us)
        self.homes.on_timer()
        self.members.on_timer()
        self.queues.on_timer()
        self._holding.release()
        self.asking.on_timer()

    def _withdraw(self, filters: list[tuple[str, str]]) -> None:
        """Tell all shards that are followed of filters that nobody wants."""
        for tenant, topic_filter in filters:
            frame = peer.Unwanted(tenant, topic_filter)
            for taker in self._takers.values():
                taker.withdraw(frame)


class _Wanting(FarAudience):
    """The senders to the shards that want a topic, and how many `absent` shards wanted it when they followed last, while
    the `changes` of routes are so many."""

    def __init__(self, changes: i64, senders: list[Sender], absent: int) -> None:
        self.changes: i64 = changes
        self.senders = senders
        self.absent = absent


class _Announcer(WantedListener):
    """Hands on what the sessions of this shard want."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def wanted(self, tenant: str, topic_filter: str) -> None:
        self._neighbours.wanted(tenant, topic_filter)

    def unwanted(self, tenant: str, topic_filter: str) -> None:
        self._neighbours.unwanted(tenant, topic_filter)


class _GroupWires(GroupWires):
    """The wires, as those who speak of groups see them."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def end(self, wire: Wire) -> None:
        self._neighbours.broken(wire)

    def meet(self, home: int) -> None:
        self._neighbours.meet_home(home)


class _Greeting(Deferred):
    """Answers the shard of members when its epoch is durable."""

    def __init__(self, neighbours: Neighbours, sender: Sender) -> None:
        super().__init__()
        self._neighbours = neighbours
        self._sender = sender

    def run(self) -> None:
        self._neighbours.greet(self._sender)


class _Following(Deferred):
    """Begins a stream when the record of our start is durable."""

    def __init__(self, neighbours: Neighbours, sender: Sender, frame: peer.Follow) -> None:
        super().__init__()
        self._neighbours = neighbours
        self._sender = sender
        self._frame = frame

    def run(self) -> None:
        self._neighbours.follow(self._sender, self._frame)


class _Meeting(Deferred):
    """Speaks of groups to the owner of a shard when its epoch is durable."""

    def __init__(self, neighbours: Neighbours, taker: Taker, wire: Wire, epoch: int) -> None:
        super().__init__()
        self._neighbours = neighbours
        self._taker = taker
        self._wire = wire
        self._epoch = epoch

    def run(self) -> None:
        self._neighbours.meet(self._taker, self._wire, self._epoch)
