"""Who is at the other end."""

from __future__ import annotations

import socket

import pytest

from headrace.net.remote import has_hung_up, host_of, source_of


@pytest.mark.parametrize(
    ("peer", "host", "source"),
    [
        ("192.0.2.1:1234", "192.0.2.1", "192.0.2.1"),
        ("[2001:db8:1:2:3::4]:1234", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("[::ffff:192.0.2.1]:1234", "192.0.2.1", "192.0.2.1"),
        ("[fe80::1%eth0]:1234", "fe80::1", "fe80::/64"),
        ("unix", "unix", "unix"),
        ("", "", ""),
    ],
)
def test_hosts_and_networks(peer: str, host: str, source: str) -> None:
    assert host_of(peer) == host
    assert source_of(peer) == source


@pytest.mark.parametrize("unread", [b"", b"more"])
@pytest.mark.parametrize("half", [False, True])
def test_a_peer_that_hung_up_is_seen_without_reading(unread: bytes, half: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not has_hung_up(ours)
        theirs.sendall(b"x" + unread)
        assert not has_hung_up(ours)
        if half:
            theirs.shutdown(socket.SHUT_WR)
        else:
            theirs.close()
        assert has_hung_up(ours)
    assert has_hung_up(ours)  # closed on our side
    assert has_hung_up(None)
