"""Free ports of this machine for brokers that keep theirs while they are down."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

LOWEST = 25_000
OUTGOING_FROM = (
    32_768  # where the system takes the ports of outgoing connections from, unless it says otherwise
)
HOST = "127.0.0.1"

_given: set[int] = set()


def free_port() -> int:
    """Return a port that nobody listens on, and that no outgoing connection will be given while the broker is down."""
    highest = max(LOWEST + 1000, min(_outgoing_from(), 65_536))
    while True:
        port = random.randrange(LOWEST, highest)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            _given.add(port)
            return port


def with_port(url: str) -> str:
    """Return the listener's URL, with a free port where it has port 0."""
    parts = urlsplit(url)
    if parts.scheme == "unix" or parts.port != 0:
        return url
    return url.replace(":0", f":{free_port()}", 1)


def _outgoing_from() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return OUTGOING_FROM
