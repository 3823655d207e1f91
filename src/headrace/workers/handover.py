"""Connections find their home: what the other workers of this machine take, and what they bring.

Runs on the loop. A connection is accepted by any worker; when its client is known, it goes to the worker that owns its
shard, which handles CONNECT as if it had accepted the connection itself. Plain sockets pass as descriptors (`passing`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from headrace.core.ports.elsewhere import Departing, Elsewhere
from headrace.services.doors import Doors
from headrace.workers.departures import Departures
from headrace.workers.parcel import Parcel
from headrace.workers.passing import Arrivals, DescriptorRoad, path_of
from headrace.workers.place import Place


class HandOver(Elsewhere):
    """The connections that one worker sends to the others, and gets from them. `report` takes a line for the log."""

    def __init__(
        self, place: Place, doors: Doors, loop: asyncio.AbstractEventLoop, report: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._place = place
        self._doors = doors
        self._loop = loop
        self.arrivals = Arrivals(path_of(place.runtime, place.index), self._arrived, loop, report)
        others = [worker for worker in range(place.workers) if worker != place.index]
        self.passing = {
            worker: Departures(DescriptorRoad(path_of(place.runtime, worker), loop), loop)
            for worker in others
        }

    def open(self) -> None:
        """Take connections from now on, once the listeners are there. Raises OSError."""
        self.arrivals.open()

    def close(self) -> None:
        """Take none, and refuse those who wait."""
        self.arrivals.close()
        for departures in self.passing.values():
            departures.close()

    def take(self, departing: Departing) -> None:
        self._loop.call_soon(self._depart, departing)

    def _depart(self, departing: Departing) -> None:
        self.passing[self._place.owner_of(departing.shard)].add(departing)

    def _arrived(self, descriptor: int, parcel: Parcel) -> None:
        accepted = socket.socket(fileno=descriptor)
        self._doors.take_over(parcel.listener, accepted, parcel.source, parcel.sent)
