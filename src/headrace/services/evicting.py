"""Who may not stay after a reload, or a change of the directory: their connections are ended, some in each pass of the
loop. Runs on the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection
from headrace.net.remote import source_of
from headrace.services.audit import Audit

LOOKED_AT_MAX = 200  # connections in a pass
BY_SOMEBODY = ("banned", "tenant_disabled", "user_disabled")
Judge = Callable[[Connection], str]  # why it must go, "" if it may stay


class Evicting:
    """Looks at connections one by one. Who connects meanwhile was let in under the new rules."""

    def __init__(self, audit: Audit, judge: Judge, soon: Callable[..., object]) -> None:
        self._audit = audit
        self._judge = judge
        self._soon = soon
        self._left: deque[Connection] = deque()
        self._next: Callable[[], Iterable[Connection]] | None = None  # whom to look at after those

    def begin(self, connections: Iterable[Connection]) -> None:
        """Look at all of these, instead of those of an earlier reload that are left."""
        idle = not self._left
        self._left = deque(connections)
        if idle and self._left:
            self._soon(self._look)

    def begin_after(self, connections: Callable[[], Iterable[Connection]]) -> None:
        """Look at all of these once those who are left were looked at: changes that follow each other quickly must not
        keep the last ones from being looked at at all."""
        if self._left:
            self._next = connections
        else:
            self.begin(connections())

    def _look(self) -> None:
        for _ in range(min(LOOKED_AT_MAX, len(self._left))):
            connection = self._left.popleft()
            why = "" if connection.closed else self._judge(connection)
            if why:
                self._put_out(connection, why)
        if not self._left and self._next is not None:
            following, self._next = self._next, None
            self._left = deque(following())
        if self._left:
            self._soon(self._look)

    def _put_out(self, connection: Connection, why: str) -> None:
        peer, user, client = connection.peer(), connection.identity.user or "", connection.client_id
        listener = connection.listener()
        self._audit.failure(
            "put out", why, source_of(peer), user=user, client=client, address=peer, listener=listener
        )
        code = rc.ADMINISTRATIVE_ACTION if why in BY_SOMEBODY else rc.NOT_AUTHORIZED
        connection.broker.put_out(connection, code, why.replace("_", " "))
