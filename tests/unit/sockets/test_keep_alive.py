"""TCP keep-alive on a socket."""

from __future__ import annotations

import socket

from headrace.sockets.keep_alive import ask_silent_peer


def test_the_system_is_told_to_ask_silent_peers() -> None:
    with socket.socket() as one:
        ask_silent_peer(one, 120)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 120
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 30
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
        ask_silent_peer(one, 1)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 1
