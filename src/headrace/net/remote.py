"""Who is at the other end of a connection: its address, the network it stands for, and whether it is still there."""

from __future__ import annotations

import functools
import ipaddress
import select
from typing import Any, Final

UNIX: Final = "unix"
_V6_PREFIX: Final = 64  # what one customer gets: whoever has one address of it has them all
# A peer that has closed, or shut down its side, is seen even while nothing is read from it.
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def peer_of(address: object) -> str:
    """Return `host:port` or `[host]:port` of a socket address; UNIX for one that is none of the internet's."""
    if not isinstance(address, tuple):
        return UNIX
    return f"[{address[0]}]:{address[1]}" if len(address) == 4 else f"{address[0]}:{address[1]}"


@functools.lru_cache(4096)
def host_of(peer: str) -> str:
    """Return the address of `host:port` or `[host]:port`; an IPv4 address written as IPv6 is IPv4's. Anything else is
    returned as it is."""
    host = peer.rpartition(":")[0].strip("[]") or peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


@functools.lru_cache(4096)
def source_of(peer: str) -> str:
    """Return whom to be fair to: an IPv4 address, or the /64 of an IPv6 address."""
    host = host_of(peer)
    if ":" not in host:
        return host
    return str(ipaddress.ip_network(f"{host}/{_V6_PREFIX}", strict=False))


def has_hung_up(connected: Any) -> bool:
    """Return whether the peer of a socket has closed it or will send no more; None is the socket of a transport
    without one."""
    if connected is None:
        return True
    try:
        look = select.poll()
        look.register(connected.fileno(), _GONE)
        return bool(look.poll(0))
    except (OSError, ValueError):
        return True
