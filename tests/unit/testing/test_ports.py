"""Ports for brokers that keep theirs while they are down."""

from __future__ import annotations

import socket

from headrace.testing.ports import HOST, LOWEST, _outgoing_from, free_port, with_port


def test_no_port_is_given_twice_nor_one_that_an_outgoing_connection_may_get() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert min(ports) >= LOWEST
    assert max(ports) < max(LOWEST + 1000, _outgoing_from())


def test_the_port_is_free() -> None:
    with socket.create_server((HOST, free_port())):
        """Nobody had it."""


def test_only_port_0_is_replaced() -> None:
    assert with_port("ws://127.0.0.1:8083") == "ws://127.0.0.1:8083"
    assert with_port("unix:///tmp/x:0") == "unix:///tmp/x:0"
    url = with_port("tls://127.0.0.1:0?cert=/a:0.pem")
    assert url.startswith("tls://127.0.0.1:")
    assert url.endswith("?cert=/a:0.pem")
    assert ":0?" not in url
