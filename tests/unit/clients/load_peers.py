"""The end of a turn and a transport, which write down what a client of `headrace bench` does with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.clients.load import LoadClient


class Later:
    """What is to be done when everything that is ready has been read."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def end_turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Wire(asyncio.Transport):
    """The writes, one by one."""

    def __init__(self, client: LoadClient) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        client.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))


CONNACK = b"\x20\x02\x00\x00"
CONNACK_5 = b"\x20\x03\x00\x00\x00"


def connected(client: LoadClient) -> Wire:
    """The transport of a client that has sent CONNECT and got its CONNACK."""
    wire = Wire(client)
    client.hello()
    client.data_received(CONNACK_5 if client.version == 5 else CONNACK)
    return wire
