"""Sessions that somebody drops, who operates the broker.

Runs on the loop. A dropped session ends as an expired one does: by one `ended` record, behind the will if there is one,
which is published since the session ends [MQTT-3.1.2-8]. A connected client is told first, by DISCONNECT with reason code
0x98 (Administrative action). From the record on its way the client id is free: who connects has a new session behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.homes import MEMBER_PREFIX
from headrace.core.state.session import BRIDGE_PREFIX
from headrace.errors import BrokersOwn
from headrace.mqtt import reason_codes as rc

if TYPE_CHECKING:
    from headrace.core.inbound.connect import Sessions
    from headrace.core.state.session import Session
    from headrace.core.state.state import Fold

DROPPED: Final = "dropped"  # why it ended, in its record and in the log


class SessionDrop(Deferred):
    """A session that is dropped. `over`: its end is durable, or where there is no such session (not `found`) that is:
    one that ended just before may still be on its way. `messages` waited in it, `was_connected` says that its client had
    a connection."""

    def __init__(self, session: Session | None) -> None:
        super().__init__()
        self.found = session is not None
        self.was_connected = session is not None and session.link is not None
        queue = None if session is None or not session.persistent else session.queue
        self.messages = 0 if queue is None else int(queue.unfinished())
        self.over = False

    def run(self) -> None:
        self.over = True


class Dropping:
    """Drops sessions of one shard."""

    def __init__(self, fold: Fold, commit: GroupCommit, sessions: Sessions) -> None:
        self._fold = fold
        self._commit = commit
        self._sessions = sessions

    def drop(self, tenant: str, client_id: str) -> SessionDrop:
        """Begin to end the session of a client id that is at home here. Raises BrokersOwn."""
        refuse_own(client_id)
        of_tenant = self._fold.tenants.get(tenant)
        session = None if of_tenant is None else self._sessions.absences.present(of_tenant, client_id)
        drop = SessionDrop(session)
        if session is not None:
            self._end(session)
        self._commit.defer(drop)
        return drop

    def _end(self, session: Session) -> None:
        link = session.link
        if link is not None:
            self._sessions.partings.put_out(link, rc.ADMINISTRATIVE_ACTION, DROPPED)
        if not session.ended:
            self._sessions.absences.end(session, DROPPED, rc.ADMINISTRATIVE_ACTION)


def refuse_own(client_id: str) -> None:
    """Refuse a client id that no client can have. Raises BrokersOwn, with what to do instead."""
    if client_id.startswith(BRIDGE_PREFIX):
        name = client_id.removeprefix(BRIDGE_PREFIX)
        raise BrokersOwn(
            f"{client_id} is the broker's own session of a bridge: take the [[bridge]] with name {name!r} out of the "
            "configuration instead"
        )
    if client_id.startswith(MEMBER_PREFIX):
        raise BrokersOwn(
            f"{client_id} stands in for a member of a shared subscription in another shard: drop that client's session"
        )
