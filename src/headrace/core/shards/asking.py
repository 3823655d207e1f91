"""Asks other homes for the retained messages of a new subscription, and gives them to the session, a page at a time.

A message that was published to shard P at offset p comes to a new subscription on its own if the stream of P passes it
from the moment on at which everybody looks for the filter. So the other shards are asked behind that moment, when all
that came before it has taken effect; a home answers when it has taken from every P what this shard has. Of its answer is
left out what is still to come from P (`bounds`), and what has come since the subscription began, itself or a newer one of
P (`RecentRetained`). So none is missed, none comes twice, and no older one behind a newer one of the same P.

What a persistent session gets at QoS 1 and 2 is journaled here: the message, and behind it what puts it into the queue.
SUBACK waits for that, but for no home that is away or does not answer: it is asked again when it is there. That a home
does not answer (its disk is full, say) one SUBSCRIBE finds out, which waits; until it answers again nobody else does.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import Call, Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.retained_replay import (
    PAGE_BYTES,
    Inquiry,
    OtherHomes,
    effective_qos,
    holds,
    wanted,
)
from headrace.core.records.event import RetainedQueued, SessionName
from headrace.core.records.message import Copy, Given
from headrace.core.shards.holding import Held, Holding
from headrace.core.shards.retained_frames import ALL, LIVE, STORED, Answered, Asked, Forgotten, More
from headrace.core.shards.routes import is_wide
from headrace.core.state.queue import reference

if TYPE_CHECKING:
    from headrace.core.ports.link import Link, WorkerPort
    from headrace.core.shards.peer import Wire
    from headrace.core.shards.stream_settings import StreamSettings
    from headrace.core.shards.taking import Taker
    from headrace.core.state.retained_homes import RecentRetained
    from headrace.core.state.session import Session, Subscription
    from headrace.core.state.state import Fold

NOTHING: Final = -1  # the part of an inquiry that asks for nothing now
ASKED_AT_ONCE: Final = 32  # pages that one home is asked for: the others wait for them
GIVEN_MAX: Final = 100_000  # topics: more of one home may come again, if it goes away in the middle
LOOKED_AT_ONCE: Final = 1000  # inquiries whose client may be gone, in one call of the timer
PARKED_AT_ONCE: Final = 32  # questions that a home is asked again, in one call of the timer


class _Question:
    """What one home is asked in one part of an inquiry."""

    def __init__(self, number: int, inquiry: _Inquiry, home: int, rows: list[Subscription]) -> None:
        self.number = number
        self.inquiry = inquiry
        self.home = home
        self.rows = rows
        self.bounds: dict[int, int] = {}  # by shard: what is at or behind this offset is still to come
        self.wire: Wire | None = None  # on which it was asked last
        # Hashes of filter, topic and where it was published: on another wire the answer begins anew.
        self.given: set[int] = set()
        self.live = {row.filter for row in rows}  # but for what is asked anew by a later SUBSCRIBE
        self.last = False
        self.done = False

    def claims(self) -> list[tuple[int, int, str]]:
        """Return incarnation, part and filter of what is asked."""
        inquiry = self.inquiry
        return [(inquiry.session.incarnation, inquiry.part, name) for name in self.live]


class _Inquiry(Inquiry):
    """What one SUBSCRIBE asks for: first what is stored, of a persistent session, then what goes straight to its
    connection."""

    def __init__(self, asking: Asking, session: Session, link: Link | None, below: int) -> None:
        self.asking = asking
        self.session = session
        self.link = link
        self.below = below
        self.subscriptions: list[Subscription] = []
        self.part = NOTHING
        self.questions: list[_Question] = []
        self.ended = False
        self.progress_ms = 0  # when it was begun or answered last
        self._then: Deferred | None = None
        self._live: Link | None = None  # to be sent the rest when all is stored

    def add(self, subscription: Subscription) -> None:
        self.subscriptions.append(subscription)

    def stored(self, then: Deferred) -> None:
        if self.ended or not self.session.persistent or not self.asking.homes_of(self):
            then.run()
            self._end_without_link()
            return
        self._then = then
        self.asking.unanswered[self] = None
        self._begin(STORED)

    def live(self, link: Link) -> None:
        if self.part == STORED:
            self._live = link  # SUBACK did not wait for some home
        elif self.ended or self._has_gone(link) or not self.asking.homes_of(self):
            self.end()
        else:
            self._begin(LIVE if self.session.persistent else ALL)

    def _has_gone(self, link: Link) -> bool:
        return link.closed or self.session.link is not link

    def end(self) -> None:
        """Ask for nothing more."""
        self.ended = True
        self.asking.end(self)

    def _begin(self, part: int) -> None:
        self.part = part
        self.asking.fence(self)

    def release(self) -> None:
        """Let whoever waits for what is stored go on."""
        then, self._then = self._then, None
        if then is not None:
            self.asking.unanswered.pop(self, None)
            then.run()

    @property
    def waits(self) -> bool:
        """Return whether somebody waits for what is stored."""
        return self._then is not None

    def finish(self) -> None:
        """Go on when all homes have answered."""
        part, self.part = self.part, NOTHING
        self.questions = []
        if part != STORED:
            self.end()
            return
        self.release()
        link, self._live = self._live, None
        if link is not None:
            self.live(link)
        self._end_without_link()

    def _end_without_link(self) -> None:
        if self.link is None:
            self.end()

    def is_over(self) -> bool:
        """Return whether nobody is left who is to get anything."""
        link = self.link
        return self.session.ended or (link is not None and link.closed and self.part != STORED)

    def takes(self, question: _Question, index: int, copy: Copy, now_us: int) -> bool:
        """Return whether a message of an answer is for the session, and did not come or will not come otherwise."""
        if index >= len(question.rows) or not holds(self.session, question.rows[index]):
            return False
        if question.rows[index].filter not in question.live:
            return False
        bound = question.bounds.get(copy.source)
        if bound is None or copy.source_offset >= bound:
            return False
        if self.asking.recent.has_come(copy, self.below):
            return False
        key = hash((index, copy.topic, copy.source, copy.source_offset))
        if key in question.given:
            return False
        if len(question.given) < GIVEN_MAX:
            question.given.add(key)
        return wanted(self.session, question.rows[index], copy, now_us)


class _Fence(Held):
    """Goes on when everybody looks for the filters of an inquiry."""

    def __init__(self, inquiry: _Inquiry) -> None:
        super().__init__(inquiry.link)
        self._inquiry = inquiry

    def run(self) -> None:
        self.finish()

    def finish(self) -> None:
        inquiry = self._inquiry
        inquiry.asking.defer(Call(inquiry.link, partial(inquiry.asking.ask, inquiry)))


class _Listed(Deferred):
    """Asks for the next page when one is in the queue of its session."""

    def __init__(self, question: _Question, held: int, work: int) -> None:
        super().__init__(question.inquiry.link, held)
        self._question = question
        self._work: i64 = work

    def work(self) -> i64:
        return self._work

    def run(self) -> None:
        self._question.inquiry.asking.listed(self._question)


class _Sending(Deferred):
    """Sends a page straight to a connection, as its socket drains."""

    def __init__(self, question: _Question, link: Link, page: list[tuple[int, Copy]]) -> None:
        super().__init__(link, sum([copy.size for _, copy in page]))
        self._question = question
        self._link = link
        self._page = page
        self._at = 0
        self._work: i64 = 1

    def work(self) -> i64:
        return self._work

    def run(self) -> None:
        link, inquiry = self._link, self._question.inquiry
        asking = inquiry.asking
        if inquiry.ended or link.closed or inquiry.session.link is not link:
            inquiry.end()
            return
        if link.paused:
            asking.commit.when_writable(link, self)
            return
        begun = self._at
        stored = self._send(asking, link)
        self._work = 1 + self._at - begun
        if stored:
            asking.defer(stored)
        if self._at < len(self._page):
            asking.defer(self)
        else:
            asking.next(self._question)

    def _send(self, asking: Asking, link: Link) -> _Storing | None:
        """Send what fits; what is of QoS 1 or 2 is journaled first, since its session's queue refers to it."""
        question = self._question
        session = question.inquiry.session
        storing: _Storing | None = None
        while self._at < len(self._page) and link.buffered() <= PAGE_BYTES:
            index, copy = self._page[self._at]
            self._at += 1
            if not question.inquiry.takes(question, index, copy, asking.now_us):
                continue
            subscription = question.rows[index]
            if effective_qos(copy, subscription) == 0:
                asking.delivery.offer_qos0(session, copy, True, subscription.ids)
                continue
            if storing is None:
                storing = _Storing(asking, session, link)
            given = Given(copy)
            asking.commit.append(given)
            storing.add(given, subscription)
        return storing


class _Storing(Deferred):
    """Gives a transient session messages that are journaled now."""

    def __init__(self, asking: Asking, session: Session, link: Link) -> None:
        super().__init__(link)
        self._asking = asking
        self._session = session
        self._given: list[tuple[Given, Subscription]] = []

    def add(self, given: Given, subscription: Subscription) -> None:
        self._given.append((given, subscription))

    def work(self) -> i64:
        return 1 + len(self._given)

    def run(self) -> None:
        session = self._session
        if session.ended:
            return
        for given, subscription in self._given:
            self._asking.refers_to(given.offset)
            ref = reference(given.offset, subscription.ids_index, True, effective_qos(given, subscription))
            self._asking.delivery.offer_stored(session, given, ref)


class _Home:
    """The questions to one home: those that it was asked, those that wait for their turn, and those that are *parked*:
    the home has given all but what it lacks of a shard that is away."""

    def __init__(self, taker: Taker) -> None:
        self.taker = taker
        self.wire: Wire | None = None
        self.asked: dict[int, _Question] = {}
        self.waiting: OrderedDict[int, _Question] = OrderedDict()
        self.new: list[_Question] = []  # of those that wait: nobody has looked at them yet
        self.parked: OrderedDict[int, _Question] = OrderedDict()
        self.silent = (
            False  # it has given nothing for as long as it is waited for, and nobody waits for it now
        )
        self.answered_ms = 0  # when it has answered last
        # By incarnation, part and filter: the newest of those that wait for somebody who is away, or are parked.
        self._rows: dict[tuple[int, int, str], _Question] = {}

    def keeps_waiting(self, question: _Question) -> bool:
        """Return whether a question is not answered for as long as the home, or a shard that it lacks, is away."""
        return self.wire is None or self.silent or question.number in self.parked

    def notice(self) -> None:
        """Note another wire, or none: what was asked on the one before is to be asked again."""
        if self.taker.wire is not self.wire:
            self.wire = self.taker.wire
            for question in reversed([*self.asked.values(), *self.parked.values()]):
                self.waiting[question.number] = question
                self.waiting.move_to_end(question.number, False)
            self.asked = {}
            self.parked.clear()
            self.new = list(self.waiting.values())

    def put(self, question: _Question) -> list[_Question]:
        """Have a question wait. Returns those that are moot from now on."""
        self.waiting[question.number] = question
        self.new.append(question)
        answers = self.wire is not None and len(self.asked) < ASKED_AT_ONCE
        return [] if answers else self._claim(question)

    def park(self, question: _Question) -> list[_Question]:
        """Have a question wait for a shard that is away. Returns those that are moot from now on."""
        self.parked[question.number] = question
        return self._claim(question)

    def _claim(self, question: _Question) -> list[_Question]:
        """Let the newest question that asks for something be the only one: whoever asks over and over while somebody is
        away is given it once. Returns those that have nothing to ask any more."""
        moot: list[_Question] = []
        for key in question.claims():
            older: _Question | None = self._rows.get(key)
            if older is None or older.number < question.number:
                self._rows[key] = question
            else:
                older = question
            if older is not None:
                older.live.discard(key[2])
                if not older.live:
                    moot.append(older)
        return moot

    def unpark(self) -> bool:
        """Have some that are parked asked again; False if there is none."""
        for _ in range(min(PARKED_AT_ONCE, len(self.parked))):
            number, question = self.parked.popitem(False)
            self.waiting[number] = question
        return len(self.waiting) > 0

    def next(self) -> _Question:
        """Take the question whose turn it is from those that wait."""
        number, question = self.waiting.popitem(False)
        self._release(question)
        self.asked[number] = question
        return question

    def forget(self, question: _Question) -> None:
        """Ask a question no more."""
        number = question.number
        if self.asked.pop(number, None) is None:
            self.waiting.pop(number, None)
            self.parked.pop(number, None)
            self._release(question)

    def _release(self, question: _Question) -> None:
        for key in question.claims():
            if self._rows.get(key) is question:
                del self._rows[key]


class Asking(OtherHomes):
    """The inquiries of one shard."""

    def __init__(
        self,
        shard: int,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        worker: WorkerPort,
        takers: dict[int, Taker],
        holding: Holding,
        settings: StreamSettings,
    ) -> None:
        self.commit = commit
        self.delivery = delivery
        self._shard = shard
        self._fold = fold
        self._worker = worker
        self._takers = takers
        self._holding = holding
        self._answer_within_ms = settings.answer_within_ms
        self._number = 0
        self._homes: dict[int, _Home] = {}
        self._inquiries: OrderedDict[_Inquiry, None] = OrderedDict()
        self.unanswered: dict[_Inquiry, None] = {}  # those whose SUBACK waits
        self.late = 0  # inquiries whose SUBACK did not wait for all homes

    @property
    def recent(self) -> RecentRetained:
        """Return what has come since somebody began to ask."""
        return self._fold.recent

    @property
    def now_us(self) -> int:
        return self._worker.clock.now_us

    def defer(self, deferred: Deferred) -> None:
        self.commit.defer(deferred)

    def refers_to(self, offset: int) -> None:
        """Note that a queue refers to a record that was journaled before: a snapshot that is being written may not have
        it."""
        self._fold.lowest_listed = min(self._fold.lowest_listed, offset)

    # One inquiry

    def inquire(self, session: Session, link: Link | None, below: int) -> Inquiry:
        inquiry = _Inquiry(self, session, link, below)
        self._inquiries[inquiry] = None
        self._fold.recent.begin(inquiry, below)
        return inquiry

    def end(self, inquiry: _Inquiry) -> None:
        """Forget an inquiry, and have the homes forget it."""
        self._inquiries.pop(inquiry, None)
        self._fold.recent.end(inquiry)
        self.unanswered.pop(inquiry, None)
        for question in inquiry.questions:
            if not question.done:
                self._forget(question)

    def homes_of(self, inquiry: _Inquiry) -> list[int]:
        """Return the other shards that may keep what an inquiry asks for."""
        homes: set[int] = set()
        for subscription in inquiry.subscriptions:
            homes.update(self._homes_of(inquiry.session.tenant.name, subscription.filter))
        return sorted(homes)

    def _homes_of(self, tenant: str, topic_filter: str) -> list[int]:
        shards = self._worker.homes
        if is_wide(topic_filter):
            return [shard for shard in range(shards.shards) if shard != self._shard]
        home = shards.of_topic(tenant, topic_filter)
        return [] if home == self._shard else [home]

    def fence(self, inquiry: _Inquiry) -> None:
        """Begin a part of an inquiry: when everybody looks for its filters, and all before that has taken effect."""
        inquiry.progress_ms = self._worker.clock.mono_ms
        fence = _Fence(inquiry)
        if not self._holding.hold(fence):
            fence.finish()

    def ask(self, inquiry: _Inquiry) -> None:
        """Ask the homes."""
        if inquiry.is_over():
            inquiry.release()
            inquiry.end()
            return
        for taker in self._takers.values():  # or after a crash what is older came again, as something new
            taker.mark(self.now_us)
        tenant = inquiry.session.tenant.name
        rows: dict[int, list[Subscription]] = {}
        for subscription in inquiry.subscriptions:
            for home in self._homes_of(tenant, subscription.filter):
                rows.setdefault(home, []).append(subscription)
        for home, subscriptions in rows.items():
            self._number += 1
            inquiry.questions.append(_Question(self._number, inquiry, home, subscriptions))
        for question in list(inquiry.questions):
            self.next(question)

    def next(self, question: _Question) -> None:
        """Ask for the next page, when it is its turn; the inquiry is at its end when all homes have given their last
        one."""
        inquiry = question.inquiry
        if inquiry.ended:
            return
        if not question.last:
            self._finish(self._home(question.home).put(question))
            self._worker.request_tick()
            return
        question.done = True
        if all(other.done for other in inquiry.questions):
            inquiry.finish()
        else:
            self._release(inquiry)

    def _finish(self, moot: list[_Question]) -> None:
        """Go on as if these were answered: they are asked anew."""
        for question in moot:
            self._forget(question)
            self._let_go(question.inquiry)
            question.last = True
            self.next(question)

    def _forget(self, question: _Question) -> None:
        self._home(question.home).forget(question)
        wire = question.wire
        if wire is not None and wire is self._takers[question.home].wire:
            wire.say(Forgotten(question.number))

    def _home(self, shard: int) -> _Home:
        home = self._homes.get(shard)
        if home is None:
            home = self._homes[shard] = _Home(self._takers[shard])
        return home

    # Answers

    def answered(self, source: int, frame: Answered) -> None:
        """Take a page."""
        home = self._homes.get(source)
        if home is None:
            return
        home.notice()
        home.silent = False
        home.answered_ms = self._worker.clock.mono_ms
        question = home.asked.pop(frame.number, None)
        if question is None or question.inquiry.ended:
            return
        inquiry = question.inquiry
        inquiry.progress_ms = self._worker.clock.mono_ms
        question.last = frame.last
        if not frame.entries and not frame.last:  # it lacks something of a shard that is away
            moot = home.park(question)
            self._release(inquiry)
            self._finish(moot)
        elif inquiry.part == STORED:
            self._list(question, frame.entries)
        elif inquiry.link is not None:
            self.defer(_Sending(question, inquiry.link, frame.entries))

    def _list(self, question: _Question, entries: list[tuple[int, Copy]]) -> None:
        """Journal a page, and what puts it into the queue of its session."""
        inquiry = question.inquiry
        session = inquiry.session
        listed: list[int] = []
        sizes: list[int] = []
        payloads: list[int] = []
        for index, copy in entries:
            if session.ended or not inquiry.takes(question, index, copy, self.now_us):
                continue
            subscription = question.rows[index]
            qos = effective_qos(copy, subscription)
            if qos:
                given = Given(copy)
                listed += [self.commit.append(given), qos, subscription.subscription_id]
                sizes.append(given.size)
                payloads.append(len(given.payload))
        if listed:
            name = SessionName(session.incarnation)
            self.commit.append(RetainedQueued.at(self.now_us, name, listed, sizes, payloads))
        self.defer(_Listed(question, sum(sizes), 1 + len(sizes)))

    def listed(self, question: _Question) -> None:
        """Go on when a page is in the queue of its session."""
        inquiry = question.inquiry
        if inquiry.session.ended:
            inquiry.release()
            inquiry.end()
            return
        if not inquiry.waits:
            self.delivery.pump(inquiry.session)
        self.next(question)

    # Passes of the loop, and time

    def ask_homes(self) -> None:
        """Ask the homes that are there for the next pages."""
        for home in self._homes.values():
            home.notice()
            wire = home.wire
            while wire is not None and home.waiting and len(home.asked) < ASKED_AT_ONCE:
                self._say(wire, home.next())
            if home.new:
                new, home.new = home.new, []
                for question in new if wire is None or home.silent else []:
                    self._release(question.inquiry)

    def _say(self, wire: Wire, question: _Question) -> None:
        positions = [(source, int(taker.settled)) for source, taker in self._takers.items()]
        inquiry = question.inquiry
        if not question.bounds:
            question.bounds = dict(positions)
            question.bounds[self._shard] = inquiry.below
        positions.append((self._shard, int(self.commit.high_watermark)))
        if question.wire is wire:
            wire.say(More(question.number, positions))
            return
        question.wire = wire
        rows = [(subscription.qos, subscription.filter) for subscription in question.rows]
        tenant = inquiry.session.tenant.name
        wire.say(Asked(question.number, inquiry.part, positions, tenant, rows))

    def on_timer(self) -> None:
        """End the inquiries of those who are gone, some at a time; wait for no home that does not answer."""
        late_ms = self._worker.clock.mono_ms - self._answer_within_ms
        for inquiry in list(self.unanswered):
            if inquiry.questions and inquiry.progress_ms <= late_ms:
                self._note_silent(inquiry, late_ms)
                self._let_go(inquiry)
            else:
                self._release(inquiry)
        for _ in range(min(LOOKED_AT_ONCE, len(self._inquiries))):
            inquiry, _ = self._inquiries.popitem(False)
            self._inquiries[inquiry] = None
            if inquiry.is_over():
                inquiry.release()
                inquiry.end()
        for home in self._homes.values():
            if home.parked and home.unpark():
                self._worker.request_tick()

    def _note_silent(self, inquiry: _Inquiry, late_ms: int) -> None:
        """Note which homes have answered nobody since then."""
        for question in inquiry.questions:
            home = self._home(question.home)
            if not question.done and home.answered_ms <= late_ms:
                home.silent = True

    def _release(self, inquiry: _Inquiry) -> None:
        """Let SUBACK go, unless some home that has not answered will."""
        if inquiry.waits and inquiry.questions:
            for question in inquiry.questions:
                if not question.done and not self._home(question.home).keeps_waiting(question):
                    return
            self._let_go(inquiry)

    def _let_go(self, inquiry: _Inquiry) -> None:
        """Let SUBACK go. Homes that have not answered are not waited for, the others are again when they were."""
        if not inquiry.waits:
            return
        self.late += 1
        try:
            inquiry.release()
        except Exception as error:  # noqa: BLE001  the others go on
            self._worker.contain("deferred", inquiry.link, error)
