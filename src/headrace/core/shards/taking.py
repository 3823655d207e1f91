"""The taking side of a stream: copies of another shard's messages on their way into this one's journal.

The position is the offset in the other journal below which everything is appended here, or was never for this shard. A
copy takes effect when it is durable (`broker`), and moves the durable position then; after a crash the stream goes on
from that one, after a wire has broken from the appended one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.routing import Router
from headrace.core.records.message import Copy, Message
from headrace.core.records.record import DROP_RETAINED_LIMIT, FLAG_RETAIN
from headrace.core.records.stream_record import (
    STARTED,
    TAKEN,
    StreamRecord,
    stream_record,
    stream_record_of,
)
from headrace.core.shards.intake import Intake
from headrace.core.shards.peer import (
    Announced,
    Durable,
    Follow,
    Frame,
    Granted,
    Hello,
    Started,
    Unwanted,
    Wanted,
    Wire,
    weight_of,
)
from headrace.core.state.state import Fold
from headrace.core.state.streams import NO_START

ANNOUNCED_AT_ONCE: Final = 1000  # filters of one frame


class Taker:
    """The stream from one shard, over all the wires that it comes on, one after another."""

    def __init__(
        self,
        source: int,
        fold: Fold,
        commit: GroupCommit,
        router: Router,
        window: i64,
        step: i64,
        intake: Intake,
    ) -> None:
        """Take the stream of the shard `source`. `window`: bytes that may be on their way to take effect, less on a full
        disk; `step`: how many offsets of the other journal may hold nothing for this shard before the position is
        journaled all the same; `intake`: of all streams of this shard."""
        self.source = source
        self.inbox: deque[Frame] = deque()  # what has come and has to wait
        self.wire: Wire | None = None
        self.confirmed = 0  # the number of the last filter that the other side looks for
        self.asked_ms: i64 = (
            -1
        )  # when the oldest filter that it has not confirmed was announced; -1: there is none
        self.copies = 0  # appended
        self.window: i64 = window
        self.answered = False  # the source has begun to send on the newest wire
        self.follows = True  # all filters are announced on it
        self.position: i64 = fold.streams.taken_of(source)
        self._start = fold.streams.sources.get(source, NO_START)  # of the owner that was heard last
        self._unsaid: StreamRecord | None = None  # it, if the journal does not have it
        self._fold = fold
        self._commit = commit
        self._router = router
        self._step: i64 = step
        self._intake = intake
        self._noted: i64 = self.position  # as the journal has it, or will have
        self._told: i64 = 0  # the durable position that the other side knows
        # Filters, of which as many as `_announced` are said on the newest wire.
        self._announcing: list[tuple[str, str]] = []
        self._announced = 0
        self._withdrawn: dict[tuple[str, str], None] = {}  # meanwhile: to be taken back once all are said
        self._asked: i64 = -1  # it wants to know when this one is durable; -1: it has not asked
        self._pending = 0  # copies and messages that have not taken effect
        self._newest: Copy | None = None  # the last copy among them: each knows the offset of the next one
        self._oldest: i64 = 0  # the offset of the first one, if there is one
        self._taking: i64 = 0  # their bytes, on this wire and before
        self._received: i64 = 0  # bytes that came on this wire
        self._granted: i64 = 0

    def begin(self, wire: Wire, hello: Hello, filters: list[tuple[str, str]], number: int) -> None:
        """Ask on a new wire for what follows the position, once all filters are announced, as the wire takes that.
        `number`: of the last filter among these."""
        self.end()
        self.wire = wire
        self.confirmed = number
        self._received = 0
        self._told = 0
        self._asked = -1
        self.answered = False
        self._granted = max(0, self.window - self._taking)
        wire.say(hello)
        self._announcing, self._announced = filters, 0
        self._withdrawn = {}
        self.follows = False
        self.announce()

    def announce(self) -> None:
        """Go on with announcing all filters, unless so much waits on the wire that the rest can wait too. Then the stream
        begins: what is announced behind that has been asked for by itself."""
        wire = self.wire
        while wire is not None and not self.follows and not wire.full:
            part = self._announcing[self._announced : self._announced + ANNOUNCED_AT_ONCE]
            if part:
                self._announced += len(part)
                wire.say(Announced(part))
            elif self._withdrawn:
                wire.say(Unwanted(*self._withdrawn.popitem()[0]))
            else:
                self._announcing, self.follows = [], True
                wire.say(Follow(self.position, self._granted, self._start))

    def end(self) -> None:
        """Take nothing more from the wire there is: the stream is cut."""
        wire, self.wire = self.wire, None
        self._announcing, self.follows = [], True
        self._withdrawn = {}
        self.inbox.clear()
        self.asked_ms = -1
        if wire is not None:
            wire.cut()

    def ask(self, frame: Wanted, now_ms: i64) -> None:
        """Announce one filter more."""
        if self.wire is None:
            return
        key = (frame.tenant, frame.topic_filter)
        if not self.follows:
            self.confirmed = frame.number  # it is looked for before anything is taken
            if key in self._withdrawn:
                del self._withdrawn[key]  # it is among those that are announced
                return
        elif self.asked_ms < 0:
            self.asked_ms = now_ms
        self.wire.say(frame)

    def withdraw(self, frame: Unwanted) -> None:
        """Take a filter back that is announced, or will be: each is announced once before that."""
        if self.wire is None:
            return
        if self.follows:
            self.wire.say(frame)
        else:
            self._withdrawn[frame.tenant, frame.topic_filter] = None

    def confirm(self, number: int, last: int, now_ms: i64) -> None:
        """Note that the other side looks for the filters up to `number`; `last` is that of the newest one."""
        self.confirmed = max(self.confirmed, number)
        self.asked_ms = -1 if self.confirmed >= last else now_ms

    def has(self, number: int) -> bool:
        """Return whether the filter of this number is looked for, or will be before anything more is taken."""
        return self.wire is None or self.confirmed >= number

    # What comes

    def started(self, frame: Started, now_us: int) -> None:
        """Note of which owner comes what is taken from now on. It is journaled before the position moves."""
        self.answered = True
        start = (int(frame.offset), int(frame.timestamp_us))
        if start != self._start:
            self._start = start
            self._unsaid = stream_record_of(STARTED, now_us, [self.source, *start, 0])

    def _say_start(self, record: StreamRecord) -> None:
        self._commit.append(record)
        self._unsaid = None

    def copied(self, copy: Copy) -> None:
        """Append the next copy, unless it is here. Raises what the journal does."""
        weight = weight_of(copy)
        self._received += weight
        offset: i64 = copy.source_offset
        if offset < self.position:
            return
        if self._unsaid is not None:
            self._say_start(self._unsaid)
        if copy.flags & FLAG_RETAIN:
            self._append_retained(copy)
        else:
            self._commit.append(copy)
        newest, self._newest = self._newest, copy
        if newest is None:
            self._oldest = offset
        else:
            newest.next_offset = offset
        self.position = self._noted = offset + 1
        self.copies += 1
        self._pending += 1
        self._intake.pending += 1
        self._taking += weight

    def _append_retained(self, copy: Copy) -> None:
        """Append a retained message; above the limits it is delivered and not kept, as its publisher's home does with
        its own."""
        tenant = self._fold.make(copy.tenant)
        limits = tenant.limits
        kept = tenant.retained.has_room(copy, limits.retained_messages_max, limits.retained_bytes_max)
        if not kept:
            copy.flags &= ~FLAG_RETAIN
            tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        self._commit.append(copy)
        if kept:
            tenant.retained.arrive(copy)

    def looked(self, offset: i64) -> None:
        """Note that nothing below `offset` is to come."""
        self.position = max(self.position, offset)

    def passed(self, message: Message) -> None:
        """Give a message at QoS 0 to its sessions, behind the copies before it."""
        weight = weight_of(message)
        self._received += weight
        if self._pending:
            self._pending += 1
            self._intake.pending += 1
            self._taking += weight
            self._commit.defer(_Later(self, message, weight))
        else:
            self.route(message)

    def route(self, message: Message) -> i64:
        """Give a message at QoS 0 to its sessions."""
        return self._router.route(self._fold.make(message.tenant), message, None)

    @property
    def settled(self) -> i64:
        """Return the offset in the other journal below which all that is for this shard has taken effect."""
        return self.position if self._newest is None else self._oldest

    def applies(self, copy: Copy) -> None:
        """Note that the oldest copy on its way takes effect."""
        if copy is self._newest:
            self._newest = None
        else:
            self._oldest = copy.next_offset
        self.took(weight_of(copy))

    def took(self, weight: i64) -> None:
        """Note that a copy or a message has taken effect."""
        self._pending -= 1
        self._intake.took()
        self._taking -= weight

    # What is told, and written, now and then

    def tell(self) -> None:
        """Grant what has taken effect, once it is much of the window."""
        wire = self.wire
        granted: i64 = self._received + max(0, self.window - self._taking)
        if wire is not None and granted - self._granted >= max(1, self.window // 4):
            self._granted = granted
            wire.say(Granted(granted))

    def mark(self, now_us: int) -> None:
        """Journal the position, if the journal does not say it."""
        if self.position > self._noted:
            if self._unsaid is not None:
                self._say_start(self._unsaid)
            self._commit.append(stream_record(TAKEN, now_us, [(self.source, self.position)]))
            self._noted = self.position

    def kept(self, now_us: int) -> None:
        """Journal the position, since the other side keeps its journal for what is not durable here, and have it told
        of that."""
        self._asked = self.position
        self.mark(now_us)

    def note(self, now_us: int) -> None:
        """Journal the position over a long stretch that held nothing, and tell the other side of what is durable."""
        if self.position >= self._noted + self._step:
            self.mark(now_us)
        wire = self.wire
        durable = self._fold.streams.taken_of(self.source)
        answers = 0 <= self._asked <= durable
        if wire is not None and (answers or durable >= self._told + self._step):
            self._told = durable
            wire.say(Durable(durable))
        if answers:
            self._asked = -1


class _Later(Deferred):
    """Passes on a message at QoS 0 that came behind copies of its stream, once those are durable."""

    def __init__(self, taker: Taker, message: Message, weight: i64) -> None:
        super().__init__()
        self._taker = taker
        self._message = message
        self._weight: i64 = weight
        self._work: i64 = 1

    def run(self) -> None:
        self._taker.took(self._weight)
        self._work = self._taker.route(self._message)

    def work(self) -> i64:
        return self._work
