"""The requests to a store that are not answered: each number is known until its answer comes, or until it is given up."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.ports.queue_store import QueueName
from headrace.core.storing.rows import Extent
from headrace.core.storing.stored_queue import StoredQueue
from headrace.core.storing.windows import Lane

PUT: Final = 0
LOOK: Final = 1
READ: Final = 2
TRIM: Final = 3
DELETE: Final = 4
CONTEXT: Final = 5
SIGHT: Final = 6
SCAN: Final = 7


class Request:
    """What was asked for. `first` and `up_to` are the serial numbers that it is about, where it is about some."""

    def __init__(self, kind: int, number: i64, sent_ms: i64, queue: StoredQueue | None) -> None:
        self.kind = kind
        self.number = number
        self.sent_ms: i64 = sent_ms
        self.queue = queue
        self.stream: Extent | None = None
        self.name: QueueName | None = None
        self.lane: Lane | None = None
        self.first: i64 = 0
        self.up_to: i64 = 0


class Requests:
    """The requests under way, oldest first."""

    def __init__(self) -> None:
        self._next: i64 = 1
        self._under_way: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def make(self, kind: int, now_ms: i64, queue: StoredQueue | None = None) -> Request:
        """Give a new request its number. Numbers are never used again."""
        number = self._next
        self._next += 1
        request = Request(kind, number, now_ms, queue)
        self._under_way[number] = request
        return request

    def take(self, number: i64, kind: int) -> Request | None:
        """Return the request that an answer is for, which is answered now; None if it was answered, or given up."""
        request = self._under_way.get(number)
        if request is None or request.kind != kind:
            return None
        del self._under_way[number]
        return request

    def overdue(self, sent_before_ms: i64) -> list[Request]:
        """Return the requests that were sent before a time. They stay under way until they are taken."""
        found: list[Request] = []
        for request in self._under_way.values():
            if request.sent_ms >= sent_before_ms:
                break
            found.append(request)
        return found
