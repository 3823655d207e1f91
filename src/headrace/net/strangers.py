"""Who has not been let in yet, in the order they came: where there is no room, the oldest of them makes it.

Otherwise as many connections as there may be, which say nothing until the deadline for CONNECT, would keep out everybody
else. Who says CONNECT at once is a stranger for a moment only. Runs on the loop.
"""

from __future__ import annotations

import contextlib
import socket
from collections import OrderedDict
from itertools import islice
from typing import Final

from headrace.net.connection import Connection

CROWDED_OUT: Final = "crowded_out"
_FORGOTTEN: Final = (
    2  # of the oldest, with each newcomer, if they are strangers no more: so that few are remembered
)


class Strangers:
    """Keeps the strangers of one listener, each with its socket, which must outlive it here; None: another worker has
    it."""

    def __init__(self) -> None:
        # A plain dictionary would look again and again at the places of those who have gone from its front.
        self._waiting: OrderedDict[Connection, socket.socket | None] = OrderedDict()

    def __len__(self) -> int:
        """Return how many strangers there may be: some have said CONNECT meanwhile."""
        return len(self._waiting)

    def came(self, connection: Connection, accepted: socket.socket | None) -> None:
        for other in list(islice(self._waiting, _FORGOTTEN)):
            if not _is_stranger(other):
                del self._waiting[other]
        self._waiting[connection] = accepted

    def gone(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def give_up_oldest(self) -> bool:
        """End the oldest one, soon. False if there is none."""
        while self._waiting:
            connection = next(iter(self._waiting))
            accepted = self._waiting.pop(connection)
            if not _is_stranger(connection):
                continue
            connection.turn_away(CROWDED_OUT)
            if not connection.made and accepted is not None:
                with contextlib.suppress(OSError):
                    accepted.shutdown(socket.SHUT_RDWR)  # whoever reads the handshake sees its end
            return True
        return False


def _is_stranger(connection: Connection) -> bool:
    return connection.is_stranger() and not connection.closed
