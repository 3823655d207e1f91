"""A shard is given up: the connections of its clients end, and what was sent to them is noted as exactly as at a stop.

Runs on the loop, a bounded part at a time, so that the other shards of the process go on meanwhile. The sessions stay
open in the journal: whoever takes the shard next treats them as after a start. Where the journal has failed nothing is
noted, and whoever takes the shard sends again what may have been sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.core.commit import GroupCommit
from headrace.core.inbound.connect import Sessions
from headrace.core.inbound.devices import Devices
from headrace.core.ports.link import Link
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.mqtt import reason_codes as rc

WHY: Final = "the shard is given up"


class Leaving:
    """Ends the connections of one shard."""

    def __init__(self, fold: Fold, commit: GroupCommit, sessions: Sessions, devices: Devices) -> None:
        """Begin with the first session. No client may come to the shard any more."""
        self._commit = commit
        self._sessions = sessions
        self._devices = devices
        self._walk: Iterator[Session | None] = fold.roster.walk()
        self._begun = False

    def end_connections(self, most: int) -> bool:
        """End those of at most so many sessions; True if there are more."""
        if not self._begun:
            self._begun = True
            if self._commit.failed is None:
                self._devices.consuming.clusters.stop()
        for session in self._walk:
            if session is not None and session.link is not None:
                self._end(session.link, session)
            most -= 1
            if most <= 0:
                return True
        clients = self._devices.clients
        for client in list(clients)[:most]:
            del clients[client]
            end_unbound(client.link)
        return len(clients) > 0

    def _end(self, link: Link, session: Session) -> None:
        try:
            link.disconnect(rc.SERVER_SHUTTING_DOWN)
            queue = session.queue
            if queue is not None and session.persistent and self._commit.failed is None:
                self._commit.progress.sent_limit(session.incarnation, queue.last_sent())
                queue.close(queue.last_sent())
                session.changed = True
            session.detach()
            self._sessions.partings.connected -= 1
            session.tenant.counters.disconnects += 1
            self._sessions.testimony.disconnected(link, session.client_id, True, WHY, rc.SERVER_SHUTTING_DOWN)
        finally:
            link.unbind()
            link.close()


def end_unbound(link: Link) -> None:
    """End a connection of a shard that has no session: it signs in, or is a device's."""
    link.disconnect(rc.SERVER_SHUTTING_DOWN)
    link.unbind()
    link.close()
