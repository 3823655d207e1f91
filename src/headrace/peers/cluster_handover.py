"""Connections find their home in a cluster: whoever dials a node whose client is at home elsewhere is relayed.

Runs on the loop. Nothing is decided where the connection came in, as between workers (`handover`); but a descriptor does
not pass between machines, so the bytes of all go over channels of the links between nodes. Who owns a shard may change
while somebody waits for it: so a connection waits for a shard and not for a node, five seconds at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.core.ports.elsewhere import Departing
from headrace.net.connection import Connection
from headrace.peers.channel import Channel
from headrace.peers.departures import Departures, NotNow
from headrace.peers.handover import HandOver, OpenChannel, RelayRoad
from headrace.peers.parcel import BadParcel, Parcel, decode
from headrace.services.doors import Doors
from headrace.workers.owners import NOBODY, Owners
from headrace.workers.place import Place


class ShardRoad(RelayRoad):
    """Opens a channel for each connection to whichever node owns one shard."""

    def __init__(self, shard: int, run: int, owners: Owners, open_channel: OpenChannel) -> None:
        super().__init__(NOBODY, open_channel)
        self._shard = shard
        self._run = run
        self._owners = owners

    def send(self, link: Connection) -> None:
        self._worker = self._owners.of(self._shard)
        if self._worker == self._run:
            raise ConnectionError("its shard has just come to this node")
        if self._worker == NOBODY:
            raise NotNow("its shard is nowhere now")
        super().send(link)


class ClusterHandOver(HandOver):
    """The connections that one node relays to the others, and gets from them."""

    def __init__(
        self,
        run: int,
        owners: Owners,
        doors: Doors,
        open_channel: OpenChannel,
        is_silent: Callable[[int], bool],
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
    ) -> None:
        """Begin as the node of this run."""
        super().__init__(Place.alone(owners.shards), owners, doors, open_channel, is_silent, loop, report)
        self._report = report
        self.say_leaving: Callable[[], None] = _nothing  # set by whoever has the links
        self.relaying = {
            shard: Departures(ShardRoad(shard, run, owners, open_channel), loop)
            for shard in range(owners.shards)
        }

    def open(self) -> None:
        """Do nothing: channels come over the links."""

    async def drain(self) -> None:
        """Have the homes of clients whose sockets are here say goodbye to them, and wait for that a moment: they need not
        stop with this node."""
        self.say_leaving()
        await super().drain()

    def moved(self, shard: int) -> None:
        """Go on with whoever waits for a shard: its owner is another one now."""
        departures = self.relaying[shard]
        if len(departures):
            departures.open_again()

    def _depart(self, departing: Departing) -> None:
        self.relaying[departing.shard].add(departing)

    def accept(self, channel: Channel, opening: bytes) -> None:
        """Take a channel that another node has opened for a client who is at home here: as of a listener of ours of the
        same kind, since the others have addresses of their own."""
        try:
            parcel = decode(opening)
        except BadParcel as error:
            self._turn_away(channel, str(error))
            return
        url = self._doors.like(parcel.listener)
        if url is None:
            self._turn_away(channel, f"no listener here is like {parcel.listener}")
            return
        self._take(channel, replace(parcel, listener=url))

    def _take(self, channel: Channel, parcel: Parcel) -> None:
        # CLOCK_MONOTONIC is each machine's own. A device that speaks frames has none.
        came_ms = time.monotonic_ns() // 1_000_000 if parcel.came_ms else 0
        connect = partial(self._connect, channel, came_ms)
        if self._doors.take_relayed(parcel.listener, parcel.source, parcel.name, connect):
            self.relayed_here += 1
        else:
            self._turn_away(channel, "")

    def _turn_away(self, channel: Channel, why: str) -> None:
        self.refused_here += 1
        if why:
            self._report(f"a connection from another node was not taken: {why}")
        channel.abort()


def _nothing() -> None:
    """Do nothing."""
