"""A worker stays within reach of the others, whatever becomes of the files under which they find it. Runs on the loop.

Programs that clean up in /tmp remove sockets and tables of a node that runs. Links, connections and mappings live on, but
nobody new would find this worker, and tables would be shared with nobody who is started later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from headrace.api.admin import Admin
from headrace.api.app import bind_unix
from headrace.peers.handover import HandOver
from headrace.peers.peers import Peers
from headrace.workers.overview import socket_of
from headrace.workers.place import Place
from headrace.workers.runtime import identity

INTERVAL_S: Final = 1.0


class Table(Protocol):
    """A file that all workers share."""

    def renew(self) -> None:
        """Share it anew if another program has removed it. Raises OSError."""


class Reaching:
    """Looks whether what others find this worker by is there, every INTERVAL_S (`services.repeating`). `admin`: None
    where it has no socket of its own; `report` takes a line for the log."""

    def __init__(
        self,
        place: Place,
        peers: Peers,
        handover: HandOver,
        admin: Admin | None,
        tables: Sequence[Table],
        report: Callable[[str], None],
    ) -> None:
        self._peers = peers
        self._handover = handover
        self._admin = admin
        self._tables = tables
        self._report = report
        self._path = socket_of(place.runtime, place.index)
        self._identity = identity(self._path)
        self._told = ""

    async def look(self) -> None:
        """Make anew what is gone. The directory itself is the supervisor's: without it nothing is done. Raises
        OSError."""
        with suppress(FileNotFoundError):
            self._handover.arrivals.keep()
            self._keep_admin()
            await self._peers.keep()
            for table in self._tables:
                table.renew()
        self._told = ""

    def failed(self, error: OSError) -> None:
        """Tell once what cannot be made anew; it is tried again."""
        said = f"what others find this worker by cannot be made again: {error}"
        if said != self._told:
            self._report(said)
        self._told = said

    def _keep_admin(self) -> None:
        if self._admin is not None and identity(self._path) != self._identity:
            self._admin.move(bind_unix(self._path))
            self._identity = identity(self._path)
