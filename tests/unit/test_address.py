"""What all addresses have in common."""

from __future__ import annotations

import pytest

from headrace.address import Location, locate, locate_remote

PORTS = {"tcp": 1, "tls": 2, "ws": 3, "wss": 4, "unix": 0}


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("mqtt://h", Location("tcp", "h", 1, "")),
        ("mqtts://[::1]/", Location("tls", "::1", 2, "")),
        ("ws://h:9/a/b", Location("ws", "h", 9, "/a/b")),
        ("wss://h", Location("wss", "h", 4, "")),
        ("unix:///a%20b", Location("unix", "", 0, "/a b")),
    ],
)
def test_parts(url: str, location: Location) -> None:
    assert locate(url, PORTS) == location
    assert location.encrypted == (location.scheme in ("tls", "wss"))
    assert location.websocket == (location.scheme in ("ws", "wss"))


def test_what_is_refused_is_said_in_the_schemes_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'unix:///a' is no address of the form tcp\|tls://HOST:PORT$"):
        locate("unix:///a", {"tcp": 1, "tls": 2})
    with pytest.raises(ValueError, match=r"tcp\|tls\|ws\|wss://HOST:PORT or unix:///PATH$"):
        locate("udp://h", PORTS)


def test_where_to_connect() -> None:
    assert str(locate_remote("ws://h", PORTS)) == "ws://h:3/mqtt"
    assert str(locate_remote("tcp://[::1]", PORTS)) == "tcp://[::1]:1"
    with pytest.raises(ValueError, match="no options"):
        locate_remote("tcp://h?a=1", PORTS)
