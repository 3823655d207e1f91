"""TCP keep-alive: the system asks a silent peer whether it is still there, and ends the connection if it is not."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

PROBES = 4


def ask_silent_peer(connected: socket.socket | TransportSocket, idle_s: int) -> None:
    """Have the system ask after `idle_s` of silence, and four times in as long again. Raises OSError."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", max(1, idle_s // PROBES)),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
