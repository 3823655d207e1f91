"""What a client may have in flight: the server's Receive Maximum, and packet ids that are not in use.

Runs on the loop. Who waits for a place gets it in the order of asking, so messages keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque

_IDS = 65_535


class Window:
    """Gives `limit` places to what a client has in flight. A packet id is taken with a place (`enter`) or without one
    (`take_id`, for SUBSCRIBE)."""

    def __init__(self) -> None:
        self._limit = 0
        self._in_flight = 0
        self._last_id = 0
        self._ids: set[int] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def open(self, limit: int) -> None:
        """Note how much the server said that it takes [MQTT-3.3.4-9]."""
        self._limit = limit

    async def enter(self) -> int:
        """Wait for a place and take it; the packet id that goes with it."""
        if self._in_flight < self._limit and not self._waiting:
            self._in_flight += 1
            return self.take_id()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._pass_on()
            raise
        return self.take_id()

    def leave(self, packet_id: int) -> None:
        """Free the place of this packet id, whose flow is over. Without one (QoS 0) there was no place either."""
        if packet_id:
            self.free_id(packet_id)
            self._pass_on()

    def take_id(self) -> int:
        if len(self._ids) == _IDS:
            raise OverflowError("all packet ids are in use")
        while True:
            self._last_id = self._last_id % _IDS + 1
            if self._last_id not in self._ids:
                self._ids.add(self._last_id)
                return self._last_id

    def free_id(self, packet_id: int) -> None:
        self._ids.discard(packet_id)

    def fail(self, why: Exception) -> None:
        """Tell all who wait that nobody will get a place any more."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(why)

    def _pass_on(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._in_flight -= 1
