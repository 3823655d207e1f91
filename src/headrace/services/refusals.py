"""Who was refused lately, and why: for somebody who asks why a client does not come in. Runs on the loop.

One row for an event with its reason, of a source and a client id, which counts how often it was: so a client that tries
again every second is one row, and pushes out nobody. Of more than `ROWS_MAX` the one that was longest ago goes. What a
client chose is cut off, so that the rows take a known amount of memory. Counters and the log have all of it.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import translate
from typing import Final

from headrace.services.audit import TEXT_MAX

ROWS_MAX: Final = 1000  # of a worker
# What the audit log calls the end of a connection, or that there is none, for somebody who wanted one.
EVENTS: Final = frozenset(
    {"refused", "turned away", "login failed", "banned", "put out", "packet rejected", "too many messages"}
)


@dataclass(slots=True)
class Refusal:
    """A client that was refused, `count` times between `first_us` and `last_us`, microseconds since 1970. `event` and
    `reason` are those of the audit log; `address`, `listener` and `detail` of the last time. What is not known is ""."""

    event: str
    reason: str
    client_id: str
    user: str
    source: str
    address: str
    listener: str
    detail: str
    count: int
    first_us: int
    last_us: int
    worker: int


class Refusals:
    """The refusals of one worker. `clock` gives seconds since 1970."""

    def __init__(self, worker: int, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._clock = clock
        self._rows: OrderedDict[tuple[str, str, str, str], Refusal] = OrderedDict()

    def note(self, event: str, reason: str, source: str, more: Mapping[str, str]) -> None:
        """Note a failure that the audit log is told of, if it is that of a client who wanted to be let in or to stay."""
        if event not in EVENTS:
            return
        client_id, user, address, listener, detail = (
            more.get(name, "")[:TEXT_MAX] for name in ("client", "user", "address", "listener", "detail")
        )
        now_us = int(self._clock() * 1_000_000)
        key = event, reason, source, client_id
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self._rows.popitem(last=False)
            self._rows[key] = Refusal(
                event,
                reason,
                client_id,
                user,
                source,
                address,
                listener,
                detail,
                1,
                now_us,
                now_us,
                self._worker,
            )
            return
        self._rows.move_to_end(key)
        row.count += 1
        row.user, row.address, row.listener, row.detail, row.last_us = user, address, listener, detail, now_us

    def rows(self, pattern: str, limit: int) -> list[dict[str, object]]:
        """Return at most `limit` of them, the last one first: those of client ids that a shell pattern matches; "" is
        any."""
        judge = None if not pattern else re.compile(translate(pattern)).match
        found: list[dict[str, object]] = []
        for row in reversed(self._rows.values()):
            if len(found) >= limit:
                break
            if judge is None or judge(row.client_id) is not None:
                found.append(asdict(row))
        return found
