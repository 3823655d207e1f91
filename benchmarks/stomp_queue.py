"""Reads a queue of ActiveMQ over STOMP to its end: what arrived of what was sent."""

from __future__ import annotations

import socket
import time

QUIET_S, PATIENT_S = 1.0, 10.0


def drain(port: int, queue: str, count: int) -> list[bytes]:
    """The bodies, until none has come for a second and there are as many as were sent, or none has for ten."""
    with socket.create_connection(("127.0.0.1", port), timeout=QUIET_S) as connection:
        connection.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\nheart-beat:0,0\n\n\0")
        connection.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/%s\nack:auto\n\n\0" % queue.encode())
        found: list[bytes] = []
        rest, since = b"", time.monotonic()
        while time.monotonic() - since < (QUIET_S if len(found) >= count else PATIENT_S):
            try:
                rest += connection.recv(1 << 20)
            except TimeoutError:
                continue
            new, rest = frames(rest)
            if new:
                since = time.monotonic()
            found += new
    return found


def frames(data: bytes) -> tuple[list[bytes], bytes]:
    """The bodies of whole MESSAGE frames, by their content-length, and the rest of the bytes."""
    found: list[bytes] = []
    while True:
        data = data.lstrip(b"\n")
        head, end, rest = data.partition(b"\n\n")
        if not end:
            return found, data
        headers = dict(line.split(b":", 1) for line in head.split(b"\n")[1:])
        size = int(headers.get(b"content-length", 0))
        if len(rest) <= size:
            return found, data
        if head.startswith(b"MESSAGE"):
            found.append(rest[:size])
        data = rest[size + 1 :]
