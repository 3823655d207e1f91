"""Connections find their home: what the other workers of this machine take, and what they bring.

Runs on the loop. A connection is accepted by any worker; when its client is known, it goes to the worker that owns its
shard, which handles CONNECT as if it had accepted the connection itself. Plain sockets pass as descriptors (`passing`);
what is behind TLS or a WebSocket is relayed over a channel of the link between the two workers (`relay`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from headrace.core.ports.elsewhere import Departing, Elsewhere
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection
from headrace.peers.channel import Channel
from headrace.peers.departures import Departures, NotNow, Road, parcel_of
from headrace.peers.parcel import BadParcel, Parcel, decode
from headrace.peers.passing import Arrivals, DescriptorRoad, path_of
from headrace.peers.relay import ChannelTransport, Relay
from headrace.services.doors import Doors
from headrace.workers.owners import Owners
from headrace.workers.place import Place

if TYPE_CHECKING:
    from headrace.sockets.plain import PlainTransport

GOODBYE_S: Final = 2.0
# To a worker, with what it begins with; `Peers.open_channel`.
OpenChannel = Callable[[int, bytes], Channel | None]


class RelayRoad(Road):
    """Opens a channel for each connection to one other worker."""

    def __init__(self, worker: int, open_channel: OpenChannel) -> None:
        self._worker = worker
        self._open_channel = open_channel

    def send(self, link: Connection) -> None:
        channel = self._open_channel(self._worker, replace(parcel_of(link), sent=b"").encode())
        if channel is None:
            raise NotNow("there is no link to its worker")
        try:
            Relay(link, channel).begin()
        except BaseException:
            channel.abort()
            raise


class HandOver(Elsewhere):
    """The connections that one worker sends to the others, and gets from them. `is_silent` tells of a worker that stands
    still, `report` takes a line for the log; `relayed_here` and `refused_here` count channels that others have opened."""

    def __init__(
        self,
        place: Place,
        owners: Owners,
        doors: Doors,
        open_channel: OpenChannel,
        is_silent: Callable[[int], bool],
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._owners = owners
        self._doors = doors
        self._loop = loop
        self.arrivals = Arrivals(path_of(place.runtime, place.index), self._arrived, loop, report)
        others = [worker for worker in range(place.workers) if worker != place.index]
        self.passing = {
            worker: Departures(
                DescriptorRoad(path_of(place.runtime, worker), loop, partial(is_silent, worker)), loop
            )
            for worker in others
        }
        self.relaying = {worker: Departures(RelayRoad(worker, open_channel), loop) for worker in others}
        self.relayed_here = 0
        self.refused_here = 0

    def open(self) -> None:
        """Take connections from now on, once the listeners are there. Raises OSError."""
        self.arrivals.open()

    def close(self) -> None:
        """Take none, and refuse those who wait."""
        self.arrivals.close()
        for departures in (*self.passing.values(), *self.relaying.values()):
            departures.close()

    async def drain(self) -> None:
        """Wait a moment for the other workers, who may stop as well, to say goodbye to their clients whose sockets are
        here."""
        until_s = self._loop.time() + GOODBYE_S
        while self._doors.relayed and self._loop.time() < until_s:
            await asyncio.sleep(0.005)

    def take(self, departing: Departing) -> None:
        self._loop.call_soon(self._depart, departing)

    def _depart(self, departing: Departing) -> None:
        link = departing.link
        plain = isinstance(link, Connection) and link.descriptor() >= 0
        ways = self.passing if plain else self.relaying
        way = ways.get(self._owners.of(departing.shard))
        if way is None:
            departing.refuse(ProtocolError(rc.SERVER_UNAVAILABLE, "its shard is nowhere now"))
        else:
            way.add(departing)

    def _arrived(self, descriptor: int, parcel: Parcel) -> None:
        accepted = socket.socket(fileno=descriptor)
        self._doors.take_over(parcel.listener, accepted, parcel.source, parcel.sent, parcel.came_ms)

    def accept(self, channel: Channel, opening: bytes) -> None:
        """Take a channel that another worker has opened for a client who is at home here."""
        try:
            parcel = decode(opening)
        except BadParcel:
            parcel = None
        connect = partial(self._connect, channel, 0 if parcel is None else parcel.came_ms)
        if parcel is None or not self._doors.take_relayed(
            parcel.listener, parcel.source, parcel.name, connect
        ):
            self.refused_here += 1
            channel.abort()
            return
        self.relayed_here += 1

    def _connect(self, channel: Channel, came_ms: int, connection: Connection) -> None:
        connection.came_ms, connection.hearing = came_ms, channel.hearing
        transport = ChannelTransport(channel, connection, self._loop)
        connection.connection_made(cast("PlainTransport", transport))  # as much of one as is used
