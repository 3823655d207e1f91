"""What a client's errors say."""

from __future__ import annotations

from headrace.clients.errors import ConnectionLost, ConnectRefused, NotSupported


def test_messages_and_codes() -> None:
    assert str(ConnectRefused(0x87, "Not authorized")) == "the server refused the connection: Not authorized"
    assert ConnectRefused(0x87, "").reason_code == 0x87
    assert str(ConnectionLost("gone")) == "connection lost: gone"
    assert ConnectionLost("gone", 0x8B).reason_code == 0x8B


def test_whether_a_retry_helps() -> None:
    assert ConnectionLost("x").retry_helps
    assert not ConnectRefused(5, "x").retry_helps
    assert not NotSupported("x").retry_helps
