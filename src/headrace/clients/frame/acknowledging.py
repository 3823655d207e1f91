"""The acknowledgements of a consumer: many ids in a frame, one frame at a time. Runs on the loop.

What was not answered when the connection ended is said again on the next one: the broker takes an id from any connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.clients.frame.connection import FrameConnection
from headrace.clients.frame.errors import refused
from headrace.mqtt import reason_codes as rc

_IDS_MAX: Final = 1000  # of one frame


class Acknowledging:
    """Sends the acknowledgements of a consumer. `acknowledged` counts the ids that the broker has answered, `unknown`
    the frames with one that it did not know: acknowledged before, or dropped by a limit of the queue."""

    def __init__(self, topic: bytes, cluster: bytes) -> None:
        self._topic = topic
        self._cluster = cluster
        self._ids: list[bytes] = []
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self.acknowledged = 0
        self.unknown = 0

    def add(self, message_id: bytes) -> None:
        """Say at the next opportunity that this one is done with."""
        self._ids.append(message_id)
        self._none.clear()
        self._some.set()

    async def run(self, connection: FrameConnection) -> None:
        """Send what is there and what comes. Raises Refused, or what the connection ended with."""
        while True:
            await self._some.wait()
            ids = self._ids[:_IDS_MAX]
            code = await connection.acknowledge(self._topic, self._cluster, ids)
            if code not in (rc.SUCCESS, rc.PACKET_IDENTIFIER_NOT_FOUND):
                raise refused("the broker refused an acknowledgement", code)
            self.unknown += code != rc.SUCCESS
            self.acknowledged += len(ids)
            del self._ids[: len(ids)]
            if not self._ids:
                self._some.clear()
                self._none.set()

    async def wait_until_said(self) -> None:
        """Wait until the broker has answered all."""
        await self._none.wait()
