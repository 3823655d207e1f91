"""Subscriptions of sessions, a page at a time: for somebody who asks who gets what.

The sessions are walked as they are for their own list (`session_rows`). One of them may have ten thousand subscriptions,
so a page may end within a session: its subscriptions come in the order of a checksum of their filters, which stays theirs
while others come and go. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final
from zlib import crc32

from headrace.core.state.session import Session, Subscription
from headrace.core.state.state import Fold
from headrace.mqtt.topics import matches
from headrace.services.paging import Place, Rows
from headrace.services.session_rows import LOOKED_AT_MAX, WORK, Chosen, checked_run
from headrace.services.sessions import state_of

_ROW_WORK: Final = 20
_SUM_BITS: Final = 32
_SUMS: Final = 1 << _SUM_BITS


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription as the client made it (`$share/GROUP/FILTER` for a shared one), of a session that is `connected` or
    `away`. `subscription_id` 0: none. Its session is of `shard`, which `worker` owns."""

    tenant: str
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscription_id: int
    state: str
    shard: int
    worker: int


@dataclass(frozen=True, slots=True)
class Sought:
    """A choice of subscriptions: of these sessions, with this very filter, with one that matches a topic; "" is any."""

    of: Chosen
    filter: str = ""
    topic: str = ""

    def judge(self) -> Callable[[Subscription], bool]:
        """Return what says whether a subscription of such a session is wanted."""
        exact, topic = self.filter, self.topic

        def has(subscription: Subscription) -> bool:
            if exact and subscription.filter != exact:
                return False
            return not topic or matches(subscription.filter, topic)

        return has


class SubscriptionRows:
    """Lists the subscriptions of one shard. `run` is another number each time that the shard is opened."""

    def __init__(self, fold: Fold, shard: int, worker: int, run: int) -> None:
        self._fold = fold
        self._where = shard, worker
        self._run = run

    async def page(self, wanted: Sought, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (rows from `place` on, where the next page goes on or None). There are at most `limit`, and a few more
        where filters of one session have one checksum; a page may be short, even empty, and not the last one. Raises
        ValueError for a place of another run."""
        checked_run(place, self._run)
        first, checksum = divmod(place.number, _SUMS)
        is_of, is_wanted = wanted.of.judge(), wanted.judge()
        found: Rows = []
        work = looked_at = 0
        for at, session in enumerate(self._fold.roster.walk(first), first):
            of_it = 0 if session is None else len(session.subscriptions or ())
            work, looked_at = work + 1 + of_it, looked_at + 1 + of_it
            if session is not None and is_of(session):
                rows, going_on = self._of(session, is_wanted, limit - len(found), checksum)
                found += rows
                work += _ROW_WORK * len(rows)
                if going_on:
                    return found, Place(at * _SUMS + going_on, self._run)
            checksum = 0
            if len(found) >= limit or looked_at >= LOOKED_AT_MAX:
                return found, Place((at + 1) * _SUMS, self._run)
            if work >= WORK:
                work = 0
                await asyncio.sleep(0)
        return found, None

    def _of(
        self, session: Session, is_wanted: Callable[[Subscription], bool], room: int, checksum: int
    ) -> tuple[Rows, int]:
        """Return (rows of a session from this checksum on, the checksum where the next page goes on or 0)."""
        mine = [each for each in (session.subscriptions or {}).values() if is_wanted(each)]
        if checksum == 0 and len(mine) <= room:
            return [self._row(session, each) for each in mine], 0
        sums = sorted((crc32(each.filter.encode("utf-8")), each.filter) for each in mine)
        rest = [(of, name) for of, name in sums if of >= checksum]
        until = len(rest)
        if until > room:
            until = next((n for n in range(room, until) if rest[n][0] != rest[n - 1][0]), until)
        by_filter = {each.filter: each for each in mine}
        rows = [self._row(session, by_filter[name]) for _, name in rest[:until]]
        return rows, rest[until][0] if until < len(rest) else 0

    def _row(self, session: Session, subscription: Subscription) -> dict[str, object]:
        return asdict(
            SubscriptionRow(
                session.tenant.name,
                session.client_id,
                subscription.filter,
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                subscription.retain_handling,
                subscription.subscription_id,
                state_of(session),
                *self._where,
            )
        )
