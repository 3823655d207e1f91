"""Which of a server and its replicas is to be believed when it says that a message is gone.

All of them are named in one address, and whoever is the primary among them is asked. A primary that was replaced while
it was away may come back as a primary, until somebody tells it otherwise, and lacks what its successor has taken. So what
a server lacks counts as gone only where that server is known to go on from the one that was believed before: Redis gives
each line of replication an id, and whoever is promoted keeps the one that it followed as `master_replid2`. Where nothing
proves it (a start, two failovers at once), a server is believed when all others follow it, or when it was the only
primary for `DOUBT_S`. In a cluster nobody needs this: a master that comes back serves nothing before it has heard from
the others. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.stores.redis.address import Place
from headrace.stores.redis.replies import Server

DOUBT_S: Final = 60.0  # longer than a failover takes, and telling the primary of before


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a server: what it said of itself last, None if it is away, and since when it is used as a
    primary, -1 if it is not."""

    place: Place
    server: Server | None
    since_s: float

    @property
    def is_used(self) -> bool:
        return self.since_s >= 0


class Succession:
    """Remembers who was believed last, by place and line of replication."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._line = ""

    def choose(self, servers: Iterable[Standing]) -> Place | None:
        """Return which of the primaries is to be asked, None if there is none: one that no other has followed and taken
        over from, and of those the one that was believed last."""
        used = [one for one in servers if one.is_used]
        newest = [one for one in used if not any(_succeeds(other, one) for other in used)] or used
        if not newest:
            return None
        return next((one.place for one in newest if one.place == self._place), newest[0].place)

    def doubt(self, one: Standing, others: Iterable[Standing], now_s: float) -> str:
        """Return why a server that is used is not to be believed when it lacks something; "" if it is, which is
        remembered."""
        if one.server is None or not one.is_used:
            return "away"
        rest = [other for other in others if not _is_same(other, one)]
        rivals = [other for other in rest if other.server is not None and other.server.is_primary]
        if any(not _succeeds(one, rival) for rival in rivals):
            return "two primaries"
        goes_on = one.place == self._place or (self._line and self._line in _lines(one.server))
        if not goes_on and not all(_follows(other, one) for other in rest) and now_s - one.since_s < DOUBT_S:
            return "unknown primary"
        self._place, self._line = one.place, one.server.line
        return ""


def _lines(server: Server) -> tuple[str, str]:
    return (server.line, server.line_before)


def _is_same(one: Standing, other: Standing) -> bool:
    """Return whether two places are of one server."""
    return one.server is not None and other.server is not None and one.server.history == other.server.history


def _succeeds(one: Standing, other: Standing) -> bool:
    """Return whether a server has followed another one, and taken over."""
    if one.server is None or other.server is None or one.place == other.place:
        return False
    return bool(one.server.line_before) and one.server.line_before == other.server.line


def _follows(one: Standing, primary: Standing) -> bool:
    """Return whether a server is a replica with the history of a primary."""
    if one.server is None or primary.server is None:
        return False
    return not one.server.is_primary and one.server.line == primary.server.line
