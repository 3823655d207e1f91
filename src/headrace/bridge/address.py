"""Where the remote broker is: `tcp://host:port`, `tls://`, `ws://host:port/path`, `wss://`, `unix:///path`."""

from __future__ import annotations

from headrace.address import Location, locate_remote

PORTS = {"tcp": 1883, "tls": 8883, "ws": 80, "wss": 443, "unix": 0}


def parse(url: str) -> Location:
    """Return the parts of an address. ValueError says what is wrong with it."""
    return locate_remote(url, PORTS)
