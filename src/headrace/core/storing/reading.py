"""What is read back from a store: entries that the journal need not have any more."""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import ABSENT, DONE, QueueStore
from headrace.core.storing.notes import StoreCounters, StoringSettings
from headrace.core.storing.requests import READ, Requests
from headrace.core.storing.stored_queue import StoredQueue


class Reading:
    """Reads of one store, one of a queue at a time."""

    def __init__(
        self,
        store: QueueStore,
        requests: Requests,
        clock: Clock,
        counters: StoreCounters,
        settings: StoringSettings,
    ) -> None:
        self._store = store
        self._requests = requests
        self._clock = clock
        self._counters = counters
        self._journal = settings.journal

    def read(self, queue: StoredQueue, first: i64, count: i64) -> bool:
        """Read entries back, of which the journal need not have those that it was let go of; others whose records it has
        lost may be in the store, too. Returns False, and asks for nothing, if no stream has the first of them, or
        something is read; else `Waiting.loaded` or `Waiting.not_now` is called once."""
        extent = queue.rows.at(first)
        if extent is None or queue.reading:
            return False
        request = self._requests.make(READ, self._clock.mono_ms, queue)
        request.first = first
        request.up_to = min(first + count - 1, extent.up_to)
        if first <= queue.asked:
            request.up_to = min(request.up_to, queue.asked)
        queue.reading = request.number
        name = queue.name(self._journal, extent.generation)
        self._store.read(request.number, name, first, request.up_to - first + 1)
        return True

    def read_back(
        self, number: i64, outcome: int, up_to: i64, serials: list[int], entries: list[bytes]
    ) -> None:
        """Hand out what was read, and None for what the store should have and has not."""
        request = self._requests.take(number, READ)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.reading = 0
        first = max(request.first, queue.floor)  # what was finished meanwhile is not read
        end = min(up_to, request.up_to) if outcome == DONE else request.up_to
        if outcome not in (DONE, ABSENT) or end < first:
            queue.waiting.not_now()
            return
        there = dict(zip(serials, entries, strict=True)) if outcome == DONE else {}
        found: list[bytes | None] = [there.get(serial) for serial in range(first, end + 1)]
        missing = found.count(None)
        self._counters.read += len(found) - missing
        if end <= queue.asked:
            self._counters.forgotten += missing
        queue.waiting.loaded(first, found)
