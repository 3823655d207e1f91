"""Which sessions are slow or behind, the worst of them: for somebody who looks.

There may be a million, so they are walked some at a time with passes of the loop in between, and only when asked. What a
row says is as of the moment at which the walk came by.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from headrace.core.state.session import Session
from headrace.core.state.state import Fold

LOOKED_AT = 1000  # sessions in a pass
LIMIT_MAX = 200


@dataclass(frozen=True, slots=True)
class Laggard:
    """A session that is slow or behind. `slow`: its socket takes no more, so it is sent nothing. `in_flight` was sent
    and is not acknowledged, `messages` and `bytes` wait behind it."""

    tenant: str
    client_id: str
    address: str
    connected: bool
    slow: bool
    in_flight: int
    messages: int
    bytes: int


class Laggards:
    """Finds the laggards of all shards of a worker. Runs on the loop."""

    def __init__(self, folds: Sequence[Fold]) -> None:
        self._folds = folds

    async def worst(self, limit: int) -> list[dict[str, object]]:
        """Return at most `limit` rows: those with the most bytes first, and before all the ones whose socket is full."""
        found: list[tuple[bool, int, int, int, Laggard]] = []
        sessions = chain.from_iterable(fold.roster.walk() for fold in self._folds)
        for seen, session in enumerate(sessions, 1):
            if session is not None and not session.ended:
                _weigh(found, seen, session, limit)
            if seen % LOOKED_AT == 0:
                await asyncio.sleep(0)
        return [asdict(row[-1]) for row in sorted(found, key=lambda row: row[:3], reverse=True)]


def _weigh(found: list[tuple[bool, int, int, int, Laggard]], seen: int, session: Session, limit: int) -> None:
    """Keep a session if it is among the worst so far; `seen` tells equal ones apart."""
    queue, link = session.queue, session.link
    slow = link is not None and link.paused
    messages = 0 if queue is None else int(queue.backlog.count)
    if not slow and not messages:
        return
    size = 0 if queue is None else int(queue.backlog.bytes)
    if len(found) >= limit and (slow, size, messages) <= found[0][:3]:
        return
    row = Laggard(
        session.tenant.name,
        session.client_id,
        "" if link is None else link.peer(),
        link is not None,
        slow,
        0 if queue is None else int(queue.inflight.count),
        messages,
        size,
    )
    entry = (slow, size, messages, -seen, row)
    if len(found) < limit:
        heapq.heappush(found, entry)
    else:
        heapq.heapreplace(found, entry)
