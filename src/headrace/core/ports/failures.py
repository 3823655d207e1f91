"""What was raised where nothing should be: counted by place, told to whoever wants to log it, and never in others' way.

Runs on the loop. A failure costs the connection that it concerns; the next record, timer or connection has its turn
(`Worker.contain`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# journal: a batch is handed over; apply: a durable record takes effect; acknowledge: of it to its publisher; retained:
# of it as a retained message; delivery: to one subscriber; group: to the shared subscriptions; deferred: what waited for
# the journal; flush: a write to a connection; read: packets that were kept back; timer; expiry; events: of `$events/`;
# sweep; unread: reads that are tried
# again; close: of a connection that failed; system: `$SYS`; housekeeping; log: of how connections begin and end;
# latencies: what counts them; peer: what passes between workers; loop: the event loop's own work; store: of long
# queues; sums: over the shards of all workers; cluster: what Kafka's group says, and looks at its topics; drain.
PLACES: Final = (
    "journal",
    "apply",
    "acknowledge",
    "retained",
    "delivery",
    "group",
    "deferred",
    "flush",
    "read",
    "timer",
    "expiry",
    "events",
    "sweep",
    "unread",
    "close",
    "system",
    "housekeeping",
    "log",
    "latencies",
    "peer",
    "loop",
    "store",
    "sums",
    "cluster",
    "drain",
)

Tell = Callable[[str, str, BaseException], None]


class Failures:
    """Counts and tells what was raised where nothing should be. `counts` holds a number for each of PLACES. `tell` is
    called with the place, the client and what was raised."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(PLACES, 0)
        self.tell: Tell | None = None

    def note(self, place: str, client_id: str, error: BaseException) -> None:
        """Count a failure and tell it."""
        self.counts[place] += 1
        tell = self.tell
        if tell is not None:
            try:
                tell(place, client_id, error)
            except Exception:  # noqa: BLE001  who logs has its own trouble; it is counted here all the same
                return
