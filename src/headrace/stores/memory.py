"""The store in memory: what a process keeps beside its journal for as long as it lives. It passes the contract of all
stores, serves tests, and shows what the policy does without an engine.

Answers come when `deliver` is called, as those of an engine come with a later event of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    SAME,
    THERE,
    Context,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreCapabilities,
)


class MemoryStream:
    """One stream: entries by serial number, in order, and the highest number that was ever put."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.last = 0

    def put(self, first: int, entries: list[bytes]) -> bool:
        """Append entries. Returns False, and appends nothing, if the first number is not above all before it."""
        if first <= self.last:
            return False
        for serial, entry in enumerate(entries, first):
            self.entries[serial] = entry
        self.last = first + len(entries) - 1
        return True

    def trim(self, floor: int) -> None:
        """Delete what is below a number."""
        for serial in [serial for serial in self.entries if serial < floor]:
            del self.entries[serial]

    def found(self) -> Found:
        """Return what a look finds."""
        return Found(next(iter(self.entries), 0), self.last, len(self.entries), self.entries.get(self.last))


class MemoryStore(QueueStore):
    """Streams in memory. `bytes_max`: of all entries; beyond it puts are refused, so that it costs a known amount.
    `forgets_ms`: what it says that it may lose, for tests."""

    def __init__(self, bytes_max: int = 64 << 20, forgets_ms: int = 0) -> None:
        super().__init__(
            StoreCapabilities(
                "memory",
                atomic_put=True,
                dense_ids=True,
                tells_primary=True,
                waits_for_replicas=False,
                forgets_ms=forgets_ms,
                entry_bytes_max=64 << 20,
                put_bytes_max=1 << 20,
                put_entries_max=256,
            )
        )
        self.streams: dict[QueueName, MemoryStream] = {}
        self.contexts: dict[tuple[str, str, str], Context] = {}
        self.bytes_max = bytes_max
        self.bytes = 0
        self.primary = Primary("memory")
        self._answers: deque[Callable[[], None]] = deque()

    def room(self) -> int:
        return max(1, self.bytes_max - self.bytes)

    def deliver(self) -> int:
        """Give the answers that are due, and those to what is asked for meanwhile; return how many there were."""
        count = 0
        while self._answers:
            self._answers.popleft()()
            count += 1
        return count

    def drop_answers(self) -> None:
        """Give none of the answers that are due, as a connection does that ends."""
        self._answers.clear()

    def wipe(self) -> None:
        """Forget everything, as an engine does that starts without its files."""
        listener, before = self.listener, self.primary
        self.streams, self.contexts, self.bytes = {}, {}, 0
        self.primary = Primary("memory")
        if listener is not None:
            self._answers.append(lambda: listener.lost(before))

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        outcome = self._put(name, first, entries, begins)
        listener, primary = self.listener, self.primary
        assert listener is not None
        self._answers.append(lambda: listener.took(number, outcome, primary))

    def _put(self, name: QueueName, first: int, entries: list[bytes], begins: bool) -> int:
        """Return the outcome of a put that is done if it can be."""
        stream = self.streams.get(name)
        size = sum(map(len, entries))
        if self.bytes + size > self.bytes_max:
            return REFUSED
        if stream is None:
            if not begins:
                return ABSENT
            stream = self.streams[name] = MemoryStream()
        elif begins and stream.last:
            return THERE
        if not stream.put(first, entries):
            return THERE
        self.bytes += size
        return DONE

    def look(self, number: int, name: QueueName) -> None:
        stream = self.streams.get(name)
        found = None if stream is None else stream.found()
        outcome = ABSENT if found is None else DONE
        listener, primary = self.listener, self.primary
        assert listener is not None
        self._answers.append(lambda: listener.looked(number, outcome, found, primary))

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        stream = self.streams.get(name)
        entries = {} if stream is None else stream.entries
        serials = [serial for serial in range(first, first + count) if serial in entries]
        values = [entries[serial] for serial in serials]
        outcome = ABSENT if stream is None else DONE
        listener = self.listener
        assert listener is not None
        self._answers.append(lambda: listener.read_back(number, outcome, first + count - 1, serials, values))

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        stream = self.streams.get(name)
        if stream is not None:
            before = sum(map(len, stream.entries.values()))
            stream.trim(floor)
            self.bytes -= before - sum(map(len, stream.entries.values()))
        self._finished(number)

    def delete(self, number: int, name: QueueName) -> None:
        stream = self.streams.pop(name, None)
        if stream is not None:
            self.bytes -= sum(map(len, stream.entries.values()))
        self._finished(number)

    def sight(self, number: int, primary: Primary) -> None:
        outcome = SAME if primary is self.primary else ANOTHER
        listener = self.listener
        assert listener is not None
        self._answers.append(lambda: listener.seen(number, outcome))

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        key = (name.tenant, name.client_id, name.journal)
        if context is None:
            self.contexts.pop(key, None)
        else:
            self.contexts[key] = context
        self._finished(number)

    def scan(self, number: int, cursor: str) -> None:
        names = [*self.streams, *(QueueName(*whose, 0, 0) for whose in self.contexts)]
        listener = self.listener
        assert listener is not None
        self._answers.append(lambda: listener.scanned(number, DONE, names, ""))

    def _finished(self, number: int) -> None:
        """Have a trim, a delete or a context answered."""
        listener = self.listener
        assert listener is not None
        self._answers.append(lambda: listener.finished(number, DONE))
