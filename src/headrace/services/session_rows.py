"""Sessions, and clients that are connected, a page at a time or by name: for somebody who looks.

There may be a million, so each page looks at some of them, with passes of the loop in between, and says where the next
one goes on. A session has a place in its shard's roster for as long as it lives: who is there during the whole walk is
listed once. A shard that was opened again gives its sessions other places, so a page names the run of the broker that it
was made by, and another run refuses it. A row says what was so when the walk came by. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import translate
from typing import Final

from headrace.core.homes import MEMBER_PREFIX
from headrace.core.state.session import OWN_PREFIXES, Session
from headrace.core.state.state import Fold
from headrace.errors import NotThere
from headrace.services.connection_log import VERSIONS
from headrace.services.paging import Place, Rows
from headrace.services.sessions import Details, Summary, details, state_of, summary

WORK: Final = 1000  # in a pass of the loop: one for each session that is looked at, ...
_ROW_WORK: Final = 20  # ... and so much for a row
LOOKED_AT_MAX: Final = 4000  # in a page, whether or not they are wanted


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is connected by MQTT. `user` is "" where nobody was asked; `address` as it was accepted, or as a
    PROXY header has it; `transport` is tcp, tls, ws or wss. `connected_at_us`: when it got its session, in microseconds
    since 1970; `keep_alive_s` 0: none. `in_flight` messages were sent to it and are not acknowledged. Its session is of
    `shard`, which `worker` owns."""

    tenant: str
    client_id: str
    user: str
    address: str
    listener: str
    transport: str
    version: str
    connected_at_us: int
    keep_alive_s: int
    in_flight: int
    shard: int
    worker: int


class SessionRow(Summary):
    """The row of a session, and where it lies."""

    shard: int
    worker: int


class SessionDetails(Details):
    """Everything about a session, and where it lies."""

    shard: int
    worker: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice of sessions: of a tenant, of client ids that match a shell pattern, in one of STATES; "" is any.
    `as_clients`: those that are connected, as such."""

    tenant: str = ""
    pattern: str = ""
    state: str = ""
    as_clients: bool = False

    def judge(self) -> Callable[[Session], bool]:
        """Return what says whether a session is of these. Who stands in for somebody is no client, and has no session."""
        of_pattern = None if not self.pattern else re.compile(translate(self.pattern)).match
        own = OWN_PREFIXES if self.as_clients else (MEMBER_PREFIX,)

        def has(session: Session) -> bool:
            if self.as_clients and session.link is None:
                return False
            if self.tenant and session.tenant.name != self.tenant:
                return False
            if self.state and state_of(session) != self.state:
                return False
            client_id = session.client_id
            if of_pattern is not None and of_pattern(client_id) is None:
                return False
            return not session.ended and not client_id.startswith(own)

        return has


def checked_run(place: Place, run: int) -> None:
    """Raise ValueError for a place that another run of the broker has named: it gave sessions other places."""
    if place.inner not in (-1, run):
        raise ValueError("from: the shard was opened again since that page: begin anew, without `from`")


class SessionRows:
    """Lists the sessions of one shard. `run` is another number each time that the shard is opened."""

    def __init__(self, fold: Fold, shard: int, worker: int, run: int) -> None:
        self._fold = fold
        self._where = shard, worker
        self._run = run

    async def page(self, wanted: Chosen, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None). A page may be short, even
        empty, and not the last one: where much was looked at that is not wanted. Raises ValueError for a place of another
        run."""
        checked_run(place, self._run)
        found: Rows = []
        work, is_wanted = 0, wanted.judge()
        for seen, session in enumerate(self._fold.roster.walk(place.number), 1):
            work += 1
            if session is not None and is_wanted(session):
                found.append(self._client(session) if wanted.as_clients else self._row(session))
                work += _ROW_WORK
            if len(found) >= limit or seen >= LOOKED_AT_MAX:
                return found, Place(place.number + seen, self._run)
            if work >= WORK:
                work = 0
                await asyncio.sleep(0)
        return found, None

    def client(self, tenant: str, client_id: str) -> dict[str, object]:
        """Return the row of a client. Raises NotThere where it is not connected."""
        session = self._find(tenant, client_id)
        if session is None or session.link is None or client_id.startswith(OWN_PREFIXES):
            raise NotThere(f"tenant {tenant} has no client {client_id!r} that is connected")
        return self._client(session)

    def session(self, tenant: str, client_id: str) -> dict[str, object]:
        """Return everything about a session. Raises NotThere."""
        session = self._find(tenant, client_id)
        if session is None:
            raise NotThere(f"tenant {tenant} has no session {client_id!r}")
        return {**details(session), "shard": self._where[0], "worker": self._where[1]}

    def _find(self, tenant: str, client_id: str) -> Session | None:
        of_tenant = self._fold.tenants.get(tenant)
        return None if of_tenant is None else of_tenant.sessions.get(client_id)

    def _row(self, session: Session) -> dict[str, object]:
        return {**summary(session), "shard": self._where[0], "worker": self._where[1]}

    def _client(self, session: Session) -> dict[str, object]:
        link = session.link
        assert link is not None
        listener = link.listener()
        client = Client(
            session.tenant.name,
            session.client_id,
            link.identity.user or "",
            link.peer(),
            listener,
            listener.partition(":")[0],
            VERSIONS.get(int(link.version), ""),
            int(link.since_us),
            link.keep_alive_ms // 1500,  # one and a half times what was agreed on
            int(session.window_used()),
            *self._where,
        )
        return asdict(client)
