"""What is deleted in a store: entries that are finished, streams of which nothing is needed, and those of nobody.

Everything that is deleted was durably of no use before, and the journal was known to be still ours after it was found to
be: a node of a cluster that stood still and was replaced deletes nothing that the next owner goes on with. What a store
does not do now is asked for again; what is forgotten at a crash is found by a scan.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from mypy_extensions import i64

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import DONE, REFUSED, UNSURE, QueueName, QueueStore
from headrace.core.storing.notes import StoreCounters, StoreNotes, StoringSettings
from headrace.core.storing.requests import CONTEXT, DELETE, SCAN, TRIM, Requests
from headrace.core.storing.stored_queue import StoredQueue
from headrace.core.storing.turns import Turns

DELETES_MAX: Final = 100_000  # streams that wait to be deleted; a scan finds the others
CONTEXT_GENERATION: Final = 0  # in the name of a context, which has none; streams begin with 1


class Removing:
    """Trims and deletes of one store, and the contexts beside its streams."""

    def __init__(
        self,
        store: QueueStore,
        requests: Requests,
        turns: Turns,
        clock: Clock,
        notes: StoreNotes,
        counters: StoreCounters,
        settings: StoringSettings,
    ) -> None:
        self._store = store
        self._requests = requests
        self._turns = turns
        self._clock = clock
        self._notes = notes
        self._counters = counters
        self._journal = settings.journal
        self._trim_step: i64 = settings.trim_step
        self._deletes: deque[QueueName] = deque()
        self._decided: deque[QueueName] = deque()  # to be deleted, if the journal is still ours
        self._is_asking = False  # whether it is

    def __len__(self) -> int:
        """Return how many streams wait to be deleted."""
        return len(self._deletes)

    def trim(self, queue: StoredQueue) -> None:
        """Delete what is finished of the oldest stream, where it is enough."""
        extents = queue.rows.extents
        if not extents or queue.trimming or self._store.room() == 0:
            return
        oldest = extents[0]
        if queue.floor - max(queue.trimmed, oldest.first) < self._trim_step:
            return
        request = self._requests.make(TRIM, self._clock.mono_ms, queue)
        request.up_to = queue.floor
        queue.trimming = request.number
        self._store.trim(request.number, queue.name(self._journal, oldest.generation), queue.floor)

    def delete(self, queue: StoredQueue, generation: i64) -> None:
        """Delete a stream of which nothing is needed, as soon as the store takes it."""
        self._delete_name(queue.name(self._journal, generation))

    def delete_all(self, queue: StoredQueue) -> None:
        """Delete all that a session has in the store: its end is durable."""
        for extent in queue.rows.extents:
            self.delete(queue, extent.generation)
        if queue.stream is not None and queue.rows.generation < queue.stream.generation:
            self.delete(queue, queue.stream.generation)
        self.delete(queue, CONTEXT_GENERATION)

    def _delete_name(self, name: QueueName) -> None:
        """Delete what has a name, as soon as the store takes it."""
        if len(self._deletes) + len(self._decided) >= DELETES_MAX:
            self._counters.deletes_dropped += 1
            return
        self._decided.append(name)
        if not self._is_asking:
            self._ask_whether_ours()

    def _ask_whether_ours(self) -> None:
        self._is_asking = True
        self._notes.behind(partial(self._is_ours, len(self._decided)))

    def _is_ours(self, count: i64) -> None:
        """Delete the first of what was decided: behind that the journal was still ours."""
        self._is_asking = False
        for _ in range(count):
            self._deletes.append(self._decided.popleft())
        if self._decided:
            self._ask_whether_ours()

    def send_next(self) -> None:
        """Ask for the next deletion."""
        request = self._requests.make(DELETE, self._clock.mono_ms)
        request.name = name = self._deletes.popleft()
        if name.generation == CONTEXT_GENERATION:
            self._store.keep_context(request.number, name, None)
        else:
            self._store.delete(request.number, name)

    def keep_context(self, queue: StoredQueue) -> None:
        """Keep what is known of a client beside its queue; whoever reads it knows that it may be old."""
        if self._store.room() > 0:
            request = self._requests.make(CONTEXT, self._clock.mono_ms)
            name = queue.name(self._journal, CONTEXT_GENERATION)
            self._store.keep_context(request.number, name, queue.waiting.context())

    def finished(self, number: i64, outcome: int) -> None:
        """Handle the answer to a trim, a deletion or a context."""
        request = self._requests.take(number, TRIM)
        if request is not None and request.queue is not None:
            queue = request.queue
            queue.trimming = 0
            if outcome == DONE:
                queue.trimmed = max(queue.trimmed, request.up_to)
            else:
                self._turns.try_later(queue)
            return
        request = self._requests.take(number, DELETE)
        if request is not None and request.name is not None and outcome in (UNSURE, REFUSED):
            self._deletes.append(request.name)
            return
        self._requests.take(number, CONTEXT)

    # Streams of nobody

    def sweep(self) -> None:
        """Look for streams and contexts of sessions that are no more, and delete them."""
        self._store.scan(self._requests.make(SCAN, self._clock.mono_ms).number, "")

    def scanned(self, number: i64, outcome: int, names: list[QueueName], cursor: str) -> None:
        """Delete those of the names that are of nobody, and go on with the scan."""
        if self._requests.take(number, SCAN) is None or outcome != DONE:
            return
        for name in names:
            if name.journal == self._journal and self._is_orphan(name):
                self._counters.orphans += 1
                self._delete_name(name)
        if cursor:
            self._store.scan(self._requests.make(SCAN, self._clock.mono_ms).number, cursor)

    def _is_orphan(self, name: QueueName) -> bool:
        """Return whether a stream of this journal is of no session, or of a generation that its session has left: what a
        crash cut off before the journal had heard of it."""
        if name.generation == CONTEXT_GENERATION:
            return not self._notes.has_queue(name.tenant, name.client_id)
        queue = self._notes.queue_of(name.incarnation)
        if queue is None:
            return self._notes.gives_up(name.incarnation, name.generation)
        return not queue.uses(name.generation)
