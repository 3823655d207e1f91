"""The policy of a queue store: what is put when, what the journal lets go of, and what is made anew.

A pure state machine. Requests go out through the store's port, answers come back as calls, `run` is called with every
tick that has something for it; it knows no time but the clock's.

- One put or look of a session is unanswered at a time. What was put is followed by a *window*, during which the journal
  keeps it too (`windows`); then LET_GO is written. Only when that is durable the journal's floor moves, and only what is
  durably finished is trimmed or deleted.
- Whatever is not certain is looked at: after an answer that did not come, from another primary, after an error, after a
  start. A stream that is dense and reaches far enough is filled up; every other one is made anew under the next
  generation, with all that the journal still has.
- A queue that the store does not take now waits, for longer each time, and costs no other one anything.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    IN_JOURNAL,
    REFUSED,
    SAME,
    THERE,
    UNSURE,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreListener,
)
from headrace.core.storing.notes import StoreCounters, StoreNotes, StoringSettings
from headrace.core.storing.reading import Reading
from headrace.core.storing.removing import CONTEXT_GENERATION, Removing
from headrace.core.storing.requests import LOOK, PUT, READ, SCAN, SIGHT, Request, Requests
from headrace.core.storing.rows import Extent
from headrace.core.storing.stored_queue import StoredQueue
from headrace.core.storing.turns import Turns
from headrace.core.storing.windows import RIPE, TO_COMPARE, Windows

PATIENCE_MS: Final = 30_000  # without an answer: it will not come
REQUESTS_MAX: Final = 256  # under way
RIPE_AT_ONCE: Final = 500  # windows that are looked at in one pass
TURNS_AT_ONCE: Final = (
    500  # queues that are looked at in one pass, most of which have nothing to ask after a start
)
ALWAYS: Final = -1  # a window that never ends


class Storing(StoreListener):
    """What a shard's sessions have in one store."""

    def __init__(self, store: QueueStore, notes: StoreNotes, clock: Clock, settings: StoringSettings) -> None:
        self.counters = StoreCounters()
        self._store = store
        self._notes = notes
        self._clock = clock
        self._journal = settings.journal
        self._base: i64 = settings.base
        self._least: i64 = max(settings.base, settings.least)
        capabilities = store.capabilities
        window_ms: i64 = settings.window_ms
        if window_ms != ALWAYS:
            window_ms = max(window_ms, capabilities.forgets_ms)
        self._windows = Windows(window_ms, capabilities.tells_primary)
        requests = self._requests = Requests()
        turns = self._turns = Turns(clock)
        self.reading = Reading(store, requests, clock, self.counters, settings)
        self.removing = Removing(store, requests, turns, clock, notes, self.counters, settings)
        store.listener = self

    # What core says

    def adopt(self, queue: StoredQueue) -> None:
        """Take over a queue of which the journal says that it has something in this store."""
        queue.adopt(self._base)
        self._turns.give(queue)

    def begin(self, queue: StoredQueue) -> None:
        """Put what waits in a queue into the store: its client is away, or it is long. Said again when more waits."""
        self._turns.give(queue)

    def consumed(self, queue: StoredQueue, floor: i64) -> None:
        """Note that everything below a serial number is finished, and that this is durable."""
        queue.floor = max(queue.floor, floor)
        if not queue.pending:
            self._settle(queue)

    def let_go_is_durable(self, queue: StoredQueue, up_to: i64) -> None:
        """Note that LET_GO is durable: from now on the journal may be without these entries."""
        if queue.ended:
            return
        self.counters.let_go += max(0, up_to - queue.rows.let_go)
        queue.rows.note_let_go(up_to)
        self.removing.keep_context(queue)

    def end(self, queue: StoredQueue) -> None:
        """Delete all that a session has in the store: its end is durable."""
        queue.ended = True
        self._windows.void(queue)
        self.removing.delete_all(queue)

    def release(self, queue: StoredQueue) -> bool:
        """Forget a queue of which the store has nothing, and delete what it has of the client beside it; return False if
        something of it is under way. Where more waits for the client later, that is another queue."""
        stream = queue.stream
        if queue.pending or queue.reading or queue.trimming or queue.compares or queue.rows.extents:
            return False
        if queue.asked != queue.rows.let_go or (stream is not None and not stream.is_empty()):
            return False
        queue.ended = True
        queue.rows.tried = max(queue.rows.tried, queue.used)  # a delete of one of these may still wait
        self._windows.void(queue)
        if self._store.capabilities.keeps_context:
            self.removing.delete(queue, CONTEXT_GENERATION)
        return True

    def takes(self) -> bool:
        """Return whether the store can be asked for something now."""
        return self._store.room() > 0

    def has_work(self) -> bool:
        """Return whether `run` would do something now, whatever the time."""
        return bool(len(self._turns) or len(self.removing)) and self._may_ask()

    def run(self) -> None:
        """Do what is due: give up what is not answered, look at primaries, put."""
        now_ms: i64 = self._clock.mono_ms
        self._give_up(now_ms)
        self._ripen(now_ms)
        self._turns.wake(TURNS_AT_ONCE)
        turns = min(len(self._turns), TURNS_AT_ONCE)
        while turns and self._may_ask():
            turns -= 1
            queue = self._turns.take()
            if not queue.ended:
                self.removing.trim(queue)
                self._step(queue)
        while len(self.removing) and self._may_ask():
            self.removing.send_next()

    def _may_ask(self) -> bool:
        """Return whether another request may be made now."""
        return len(self._requests) < REQUESTS_MAX and self._store.room() > 0

    # One queue

    def _step(self, queue: StoredQueue) -> None:
        """Ask for what comes next, unless something is unanswered."""
        if queue.pending:
            return
        stream = queue.stream
        if stream is not None and queue.compares:
            request = self._ask(LOOK, queue, stream)
            request.up_to, queue.compared_for = queue.compared_for, 0
            self.counters.compared += 1
            self._store.look(request.number, queue.name(self._journal, stream.generation))
            return
        queue.compares = False
        if stream is not None and stream.up_to + 1 < queue.floor:
            self._make_anew(queue)  # between what is there and what comes next something is finished
            stream = None
        if stream is None:
            if queue.rows.is_full() or max(queue.asked + 1, queue.floor) > queue.waiting.newest():
                return
            stream = queue.begin(self._least)
        self._put(queue, stream)

    def _put(self, queue: StoredQueue, stream: Extent) -> None:
        """Put what comes next into a stream, as much as one put takes."""
        capabilities = self._store.capabilities
        first = stream.up_to + 1
        count = min(queue.waiting.newest() - first + 1, capabilities.put_entries_max)
        if count <= 0:
            return
        found = queue.waiting.entries(first, count, capabilities.put_bytes_max)
        if not found:
            self._turns.try_later(queue)
            return
        entry_bytes_max = capabilities.entry_bytes_max
        entries = [entry if len(entry) <= entry_bytes_max else IN_JOURNAL for entry in found]
        request = self._ask(PUT, queue, stream)
        request.first = first
        request.up_to = first + len(entries) - 1
        name = queue.name(self._journal, stream.generation)
        self._store.put(request.number, name, first, entries, stream.is_empty())
        self.counters.put += len(entries)
        self.counters.put_bytes += sum([len(entry) for entry in entries])

    def _ask(self, kind: int, queue: StoredQueue, stream: Extent) -> Request:
        """Make the one request of a queue that is unanswered."""
        request = self._requests.make(kind, self._clock.mono_ms, queue)
        request.stream = stream
        queue.pending = request.number
        return request

    def took(self, number: i64, outcome: int, primary: Primary | None) -> None:
        request = self._requests.take(number, PUT)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.pending = 0
        if outcome == DONE and primary is not None:
            self._took(queue, request, primary)
        elif outcome == ABSENT:
            self._make_anew(queue)
            self._turns.try_soon(queue)
        elif outcome == REFUSED:
            self.counters.refused += 1
            self._turns.try_later(queue)
        else:
            if outcome != THERE:
                self.counters.unsure += 1
            self._windows.void(queue)
            queue.compares = True
            self._turns.try_soon(queue)
        self._settle(queue)

    def _took(self, queue: StoredQueue, request: Request, primary: Primary) -> None:
        """Handle a put that was done: what was there before is known to be there only if the same primary has it."""
        stream = request.stream
        assert stream is not None
        queue.failures = 0
        self._turns.give(queue)
        if not stream.is_empty() and primary is not queue.primary:
            self._windows.void(queue)
            queue.compares = True
            return
        self._note_stored(queue, stream, request.up_to, primary)

    def _note_stored(self, queue: StoredQueue, stream: Extent, up_to: i64, primary: Primary) -> None:
        """Note what is in the newest stream, and begin the window of it."""
        queue.primary = primary
        stream.up_to = up_to
        generation, first = stream.generation, stream.first
        for extent in queue.rows.stored(generation, first, up_to):
            self.removing.delete(queue, extent.generation)
        self._notes.stored(queue, generation, first, up_to)
        if up_to > queue.asked:
            self._windows.begin(queue, primary, up_to, self._clock.mono_ms)

    def looked(self, number: i64, outcome: int, found: Found | None, primary: Primary | None) -> None:
        request = self._requests.take(number, LOOK)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.pending = 0
        stream = request.stream
        if stream is None or outcome in (UNSURE, REFUSED):
            self._turns.try_later(queue)
        else:
            self._windows.void(queue)
            queue.compares = False
            self._compare(queue, stream, found, primary, request.up_to)
            self._turns.try_soon(queue)
        self._settle(queue)

    def _compare(
        self, queue: StoredQueue, stream: Extent, found: Found | None, primary: Primary | None, aged: i64
    ) -> None:
        """Go on with a stream as far as it is there and whole, or make it anew. What had outlasted its window when the
        look was begun, up to the serial number `aged`, is let go of if the same connection still has it."""
        if (
            found is not None
            and primary is not None
            and _is_whole(queue, stream, found, self._store.capabilities.entry_bytes_max)
        ):
            same = primary is queue.primary
            if found.last > stream.up_to or (aged and same):
                queue.failures = 0
            self._note_stored(queue, stream, found.last, primary)
            if aged and same:
                self._let_go(queue, min(aged, found.last))
        elif not stream.is_empty() or (found is not None and max(found.count, found.last) > 0):
            self._make_anew(queue)

    def _make_anew(self, queue: StoredQueue) -> None:
        """Leave the newest stream: what the journal still has goes into the next one. What it has let go of is read
        from the old one, as far as it is there."""
        stream = queue.stream
        self._windows.void(queue)
        queue.stream = None
        queue.compares = False
        self.counters.made_anew += 1
        if stream is not None and all(
            extent.generation != stream.generation for extent in queue.rows.extents
        ):
            self.removing.delete(queue, stream.generation)

    # Windows

    def _ripen(self, now_ms: i64) -> None:
        """Look at primaries where windows are over, and handle those of which it is known what became of them."""
        for lane in self._windows.due(now_ms):
            request = self._requests.make(SIGHT, now_ms)
            request.lane = lane
            self._store.sight(request.number, lane.primary)
        for outcome in self._windows.take(now_ms, RIPE_AT_ONCE):
            queue = outcome.queue
            if outcome.what == RIPE:
                self._let_go(queue, outcome.up_to)
                continue
            if outcome.what == TO_COMPARE:
                queue.compared_for = outcome.up_to
            else:
                self._windows.void(queue)
            queue.compares = True
            self._turns.give(queue)

    def _let_go(self, queue: StoredQueue, up_to: i64) -> None:
        """Let the journal let go of what is ripe. What is too large for the store stays, and so does what is behind it
        until that is finished."""
        queue.ripe = max(queue.ripe, up_to)
        first = max(queue.asked + 1, queue.floor)
        large = queue.waiting.large_between(first, queue.ripe, self._store.capabilities.entry_bytes_max)
        end = large - 1 if large else queue.ripe
        if end > queue.asked:
            queue.asked = end
            self._notes.let_go(queue, end)

    def seen(self, number: i64, outcome: int) -> None:
        request = self._requests.take(number, SIGHT)
        if request is None or request.lane is None:
            return
        if outcome == SAME:
            self._windows.saw_same(request.lane)
        elif outcome == ANOTHER:
            self._windows.saw_another(request.lane)
        else:
            self._windows.saw_nothing(request.lane, self._clock.mono_ms)

    def lost(self, primary: Primary) -> None:
        self._windows.lost(primary)

    def has_room(self) -> None:
        """Do nothing: whoever has work is asked with the next tick."""

    # What is finished

    def _settle(self, queue: StoredQueue) -> None:
        """Delete streams in which nothing waits, trim the oldest, and let go of what only waited for what is finished."""
        if queue.ended:
            return
        was_full = queue.rows.is_full()
        for extent in queue.rows.consumed(queue.floor):
            self.removing.delete(queue, extent.generation)
            stream = queue.stream
            if stream is not None and stream.generation == extent.generation:
                self._windows.void(queue)
                queue.stream = None
                queue.compares = False
        if was_full and not queue.rows.is_full():
            self._turns.give(queue)
        if queue.ripe > queue.asked:
            self._let_go(queue, queue.ripe)
        self.removing.trim(queue)

    def finished(self, number: i64, outcome: int) -> None:
        self.removing.finished(number, outcome)

    def read_back(
        self, number: i64, outcome: int, up_to: i64, serials: list[int], entries: list[bytes]
    ) -> None:
        self.reading.read_back(number, outcome, up_to, serials, entries)

    def scanned(self, number: i64, outcome: int, names: list[QueueName], cursor: str) -> None:
        self.removing.scanned(number, outcome, names, cursor)

    def _give_up(self, now_ms: i64) -> None:
        """Handle requests without an answer as if it were not known what became of them."""
        for request in self._requests.overdue(now_ms - PATIENCE_MS):
            kind, number = request.kind, request.number
            if kind == PUT:
                self.took(number, UNSURE, None)
            elif kind == LOOK:
                self.looked(number, UNSURE, None, None)
            elif kind == READ:
                self.read_back(number, UNSURE, 0, [], [])
            elif kind == SIGHT:
                self.seen(number, -1)
            elif kind == SCAN:
                self.scanned(number, UNSURE, [], "")
            else:
                self.finished(number, UNSURE)


def _is_whole(queue: StoredQueue, stream: Extent, found: Found, entry_bytes_max: i64) -> bool:
    """Return whether a stream holds without a gap what the journal has let go of, ends where the next entry can
    follow, and holds nothing that we have not, nor something else under our numbers: what a journal that was put back
    from an older copy knows nothing of, has other messages under the same numbers by now."""
    return (
        found.is_dense()
        and found.first <= max(stream.first, queue.floor)
        and max(queue.asked, queue.floor - 1) <= found.last <= queue.waiting.newest()
        and _agrees(queue, found, entry_bytes_max)
    )


def _agrees(queue: StoredQueue, found: Found, entry_bytes_max: i64) -> bool:
    """Return whether the end of a stream is ours, which says the same of all before it: it only grows, and whoever
    follows an entry has looked at it, or has put it."""
    entry = found.entry
    if entry is None or found.last < queue.floor or found.last <= queue.asked:
        return True  # nothing is read of what is behind what we know
    return queue.waiting.agrees(found.last, entry, entry_bytes_max)
