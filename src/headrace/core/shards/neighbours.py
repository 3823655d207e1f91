"""The other shards, as one shard sees them: whom it follows, who follows it, who wants what.

Runs on the loop. Whoever owns the connections opens a wire to the owner of each other shard (`connect`), hands on what is
said on wires (`heard`) and tells of those that broke (`broken`). Here is decided what is said.

SUBACK means that what is published anywhere from then on is found. It waits until each other shard looks for the filter,
or nothing is taken from that shard any more: a stream that was cut begins again behind an announcement of all filters.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.routing import Router
from headrace.core.ports.journal import JournalPort
from headrace.core.ports.link import Crowds, WorkerPort
from headrace.core.records.message import Copy
from headrace.core.records.stream_record import OWNED, stream_record
from headrace.core.shards import peer
from headrace.core.shards.alone import Alone
from headrace.core.shards.announcing import Announcing
from headrace.core.shards.answering import Answering
from headrace.core.shards.asking import Asking
from headrace.core.shards.enrolments import Enrolment
from headrace.core.shards.followers import Followers
from headrace.core.shards.group_frames import Meet, Welcome
from headrace.core.shards.group_homes import GroupHomes
from headrace.core.shards.group_members import GroupMembers
from headrace.core.shards.group_wires import GroupWires
from headrace.core.shards.holding import Held, Holding
from headrace.core.shards.intake import Intake
from headrace.core.shards.peer import Aside, Frame, Hearing, Hello, Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.retained_frames import Asked, Forgotten, More, Sought
from headrace.core.shards.routes import Routes
from headrace.core.shards.sending import Sender
from headrace.core.shards.shared_disk import SharedDisk
from headrace.core.shards.sources import Sources
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.core.state.wanted import Wanted

NOT_BEGUN: Final = -1
Offsets = dict[int, tuple[int, int]]  # two of them, by shard


class Neighbours(Alone):
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
        self.epoch = NOT_BEGUN
        self.others = [other for other in range(worker.homes.shards) if other != shard]
        self.ahead: dict[int, int] = {}  # followers that have taken more than there is, and up to where
        self.behind: Offsets = {}  # those that ask from an offset, and had more than that before
        self.older_followers: Offsets = {}  # those whose owner began before one that was talked to: where both did
        self.older_sources: Offsets = {}
        self.cuts = 0  # streams that were cut because the other side did not answer
        self._fold, self._commit, self._router = fold, commit, router
        self._worker, self._settings = worker, settings
        self._attempt = 0
        self._takers: dict[int, Taker] = {}  # in the order in which they have their turns
        self.intake = delivery.lateness = Intake(worker.clock, settings, gate)
        self._holding = Holding(self._takers, commit, worker)
        self.asking = Asking(shard, fold, commit, delivery, worker, self._takers, self._holding, settings)
        self._newest: dict[int, tuple[int, int]] = {}  # by shard: epoch and attempt of its newest hello
        self.followers = Followers(
            self.others, fold, commit, delivery, worker, routes, settings, gate, queues, self.intake
        )
        self._senders, self._by_shard = self.followers.senders, self.followers.by_shard
        self.disk = SharedDisk(self.others, self._takers, self._senders, journal, gate, settings)
        self._announcing = Announcing(self._takers, self._holding, worker, settings)
        fold.wanted = fold.groups.wanted = fold.queues.wanted = self._wanted = Wanted()
        self.queues = queues
        wires = _GroupWires(self)
        self._answering = Answering(shard, fold, self._takers, worker, wires, settings.page_messages)
        self.homes = GroupHomes(fold, commit, delivery, worker, self._holding, wires)
        self.members = GroupMembers(shard, fold, commit, delivery, worker, wires, settings.answer_within_ms)
        self._sources = Sources(
            self._takers, self._holding, self.intake, self.asking, self.members, queues, worker
        )
        self._of_follower = self._hear_followers()
        self._aside_of_follower = self._hear_asides()

    def _hear_followers(self) -> Hearing[Sender]:
        """Return what is done with what the shards say that follow."""
        of_follower: Hearing[Sender] = Hearing()
        answering = self._answering
        of_follower.on(peer.Announced, self.followers.announced)
        of_follower.on(peer.Follow, self._follow)
        of_follower.on(peer.Wanted, self.followers.wants)
        of_follower.on(peer.Unwanted, self.followers.wants_no_more)
        of_follower.on(peer.Granted, lambda sender, frame: sender.grant(frame.granted))
        of_follower.on(
            peer.Durable, lambda sender, frame: self.followers.followed.tell(sender.shard, int(frame.offset))
        )
        of_follower.on(peer.Filled, lambda sender, frame: self.disk.told(sender.shard, frame.full))
        of_follower.on(Asked, lambda sender, frame: answering.asked(sender.slot, sender.wire, frame))
        of_follower.on(More, lambda sender, frame: answering.more(sender.slot, frame))
        of_follower.on(Forgotten, lambda sender, frame: answering.forgotten(sender.slot, frame))
        of_follower.on(Sought, lambda sender, _: self.followers.look(sender))
        return of_follower

    def _hear_asides(self) -> Hearing[Wire]:
        """Return what is done with what is said of groups and topic queues, by shards that are followed and by those that
        follow."""
        of_source = self._sources.aside
        of_follower: Hearing[Wire] = Hearing()
        of_source.on(Welcome, self._welcomed)
        of_follower.on(Meet, lambda wire, _: self._greet(self._by_shard[wire.far]))
        self.members.hears(of_source)
        self.homes.hears(of_follower)
        self.queues.hears(of_source, of_follower)
        return of_follower

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._wanted.listener = self._announcing
        self.followers.followed.begin()
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
        announced = self._wanted.filters() + self._announcing.withdrawing.filters()
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

    @property
    def copies_taken(self) -> int:
        """Return how many copies of messages of others this shard has appended."""
        return sum([taker.copies for taker in self._takers.values()])

    def broken(self, wire: Wire) -> None:
        """Note that a wire has ended."""
        for taker in self._takers.values():
            if taker.wire is wire:
                self._sources.cut(taker)
        for sender in list(self._senders.values()):
            if sender.wire is wire:
                self._close(sender)
        self._holding.release()

    def leave(self) -> None:
        """Follow nobody, and let nobody follow, any more: the shard is being given up. For the others it is one that is
        away."""
        self.epoch = NOT_BEGUN
        for taker in self._takers.values():
            self._sources.cut(taker)
        for sender in list(self._senders.values()):
            self._close(sender)
        self._holding.release()

    def heard(self, wire: Wire, frame: Frame) -> None:
        """Go on with what was said on a wire. What comes on one that was cut means nothing any more."""
        self._worker.request_tick()
        if isinstance(frame, Hello):
            self._greeted(wire, frame)
            return
        taker = self._takers.get(wire.far)
        if taker is not None and taker.wire is wire:
            self._sources.heard(taker, wire, frame)
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
            slot, homes = self.followers.routes.open(), self._worker.homes
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
            self._commit.then(None, partial(self.greet, sender))

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
            self._sources.cut(taker)
            self._holding.release()
            return
        self.older_sources.pop(taker.source, None)
        self._note_owner(taker.source, epoch)
        self._commit.then(None, partial(self.meet, taker, wire, epoch))

    def meet(self, taker: Taker, wire: Wire, epoch: int) -> None:
        """Speak of groups to the owner of a shard, whose epoch is durable."""
        if taker.wire is wire and epoch >= self._owner(taker.source):
            self.members.welcomed(taker.source, wire)

    def _close(self, sender: Sender) -> None:
        """Send nothing more on a wire, and look no more for what was announced on it."""
        self.followers.closed(sender)
        self.disk.told(sender.shard, True)  # it may be
        self._answering.forget(sender.slot)
        sender.wire.cut()
        self.homes.closed(sender.shard)
        self.queues.closed(sender.shard)

    def _follow(self, sender: Sender, frame: peer.Follow) -> None:
        """Begin a stream where the follower asks for it. One that has taken more than there is, or than the owner gave
        that it has heard last, would pass over what is written next: this journal has lost its end, or was restored from
        another backup than that one's."""
        streams = self._fold.streams
        followed = self.followers.followed.of(sender.shard)
        if frame.offset < followed:
            self.behind[sender.shard] = (int(frame.offset), followed)
            self._close(
                sender
            )  # of an owner that was replaced by one that has made more durable, or put back alone
        elif frame.offset > self.followers.passed_by() or not streams.has_given(
            frame.start, int(frame.offset)
        ):
            self.ahead[sender.shard] = int(frame.offset)
            self._close(sender)
        else:
            self.ahead.pop(sender.shard, None)
            self.behind.pop(sender.shard, None)
            sender.grant(frame.granted)
            self.followers.follow_durably(sender, frame)

    # What the sessions here want

    def hold(self, held: Held) -> bool:
        return self._holding.hold(held)

    def must_know(self, session: Session, topic_filter: str) -> bool:
        return self.members.enrolments.elsewhere(session, topic_filter)

    def enrol(self, enrolment: Enrolment) -> bool:
        return self.members.enrolments.hold(enrolment)

    def took(self, copy: Copy) -> None:
        taker = self._takers.get(copy.source)
        if taker is not None:
            taker.applies(copy)

    # Passes of the loop, and time

    def end_pass(self) -> None:
        """Read on for the shards that lag, and grant more to the shards that are followed."""
        end: i64 = self._commit.high_watermark
        more = self.followers.routes.sweep()
        more = self.followers.read_on(end) or more
        self.followers.disperse()
        self.intake.look()
        more = self._sources.take_on() or more
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

    def on_timer(self) -> None:
        """Do what time has decided: streams that nobody answers for are cut, filters withdrawn, positions told and
        noted."""
        clock = self._worker.clock
        self.followers.disperse()
        self.disk.on_timer()
        if self.intake.holds or self.disk.is_full:
            self._worker.request_tick()
        for taker in self._takers.values():
            if taker.inbox and taker.asked_ms >= 0:
                taker.asked_ms = clock.mono_ms  # the answer may be among what waits
            if taker.asked_ms >= 0 and clock.mono_ms - taker.asked_ms >= self._settings.answer_within_ms:
                self.cuts += 1
                self._sources.cut(taker)
            taker.note(clock.now_us)
        self._announcing.withdraw(self._announcing.withdrawing.due(clock.mono_ms))
        end: i64 = self._commit.high_watermark
        for sender in self._senders.values():
            sender.note_lag(end)
            sender.look(end)
            self.followers.followed.ask(sender, end, self.disk.finished)
            if sender.reads:
                self._worker.request_tick()
        self.followers.followed.note(clock.now_us)
        self.homes.on_timer()
        self.members.on_timer()
        self.queues.on_timer()
        self._holding.release()
        self.asking.on_timer()


class _GroupWires(GroupWires):
    """The wires, as those who speak of groups see them."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def end(self, wire: Wire) -> None:
        self._neighbours.broken(wire)

    def meet(self, home: int) -> None:
        self._neighbours.meet_home(home)
