"""One store for several shards of a worker: they share its connections and its batches, and each hears its own answers.

A request's number carries the share that made it, so an answer finds its way back, and one to a share that is closed (its
shard was given up) says nothing to anybody.
"""

from __future__ import annotations

from typing import Final

from headrace.core.ports.queue_store import (
    Context,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreListener,
)

SHARE_SHIFT: Final = 40  # of the number of a share in the number of a request


class StoreShare(QueueStore):
    """A store as one shard has it."""

    def __init__(self, shared: SharedStore, number: int) -> None:
        super().__init__(shared.store.capabilities)
        self._shared = shared
        self._store = shared.store
        self._base = number << SHARE_SHIFT
        self.number = number

    def close(self) -> None:
        """Hear nothing more: what is under way is done, and nobody is told."""
        self._shared.close(self)

    def place(self, name: str, tenant: str, client_id: str) -> str:
        return self._store.place(name, tenant, client_id)

    def room(self) -> int:
        return self._store.room()

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        self._store.put(self._base + number, name, first, entries, begins)

    def look(self, number: int, name: QueueName) -> None:
        self._store.look(self._base + number, name)

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        self._store.read(self._base + number, name, first, count)

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        self._store.trim(self._base + number, name, floor)

    def delete(self, number: int, name: QueueName) -> None:
        self._store.delete(self._base + number, name)

    def sight(self, number: int, primary: Primary) -> None:
        self._store.sight(self._base + number, primary)

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        self._store.keep_context(self._base + number, name, context)

    def scan(self, number: int, cursor: str) -> None:
        self._store.scan(self._base + number, cursor)


class SharedStore(StoreListener):
    """A store and its shares. Every share hears of primaries that are lost and of room; what each asks for is answered
    to it alone."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self._shares: dict[int, StoreShare] = {}
        self._next = 0
        store.listener = self

    def share(self) -> StoreShare:
        """Return the store for one more shard. Numbers of shares are never used again."""
        share = self._shares[self._next] = StoreShare(self, self._next)
        self._next += 1
        return share

    def close(self, share: StoreShare) -> None:
        """Give no answers to a share any more."""
        self._shares.pop(share.number, None)

    def _listener(self, number: int) -> tuple[StoreListener | None, int]:
        """Return who has made a request, None if nobody wants its answer, and the number that they know it by."""
        share = self._shares.get(number >> SHARE_SHIFT)
        return (None if share is None else share.listener), number & ((1 << SHARE_SHIFT) - 1)

    def _listeners(self) -> list[StoreListener]:
        return [share.listener for share in self._shares.values() if share.listener is not None]

    # StoreListener

    def took(self, number: int, outcome: int, primary: Primary | None) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.took(own, outcome, primary)

    def looked(self, number: int, outcome: int, found: Found | None, primary: Primary | None) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.looked(own, outcome, found, primary)

    def read_back(
        self, number: int, outcome: int, up_to: int, serials: list[int], entries: list[bytes]
    ) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.read_back(own, outcome, up_to, serials, entries)

    def finished(self, number: int, outcome: int) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.finished(own, outcome)

    def seen(self, number: int, outcome: int) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.seen(own, outcome)

    def scanned(self, number: int, outcome: int, names: list[QueueName], cursor: str) -> None:
        listener, own = self._listener(number)
        if listener is not None:
            listener.scanned(own, outcome, names, cursor)

    def lost(self, primary: Primary) -> None:
        for listener in self._listeners():
            listener.lost(primary)

    def has_room(self) -> None:
        for listener in self._listeners():
            listener.has_room()
