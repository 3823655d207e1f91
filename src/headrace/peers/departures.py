"""Connections that are to go to one other worker: they wait here, in the order they came and for a bounded time.

Runs on the loop, which never waits. Until a connection is on its way its client is answered here: who waited too long, or
finds too many waiting, is refused and may try again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from headrace.core.ports.elsewhere import Departing
from headrace.errors import HeadraceError, ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection
from headrace.peers.parcel import Parcel

WAIT_S: Final = 5.0  # for a worker that starts again, or takes no more now
WAITING_MAX: Final = 10_000  # connections
WAITING_BYTES_MAX: Final = 32 << 20  # that they have sent
AT_ONCE: Final = 64  # connections in a pass of the loop
RETRY_S: Final = 0.05


class NotNow(HeadraceError):
    """The other worker takes nothing now."""

    retry_helps = True


class Road:
    """A way to the other worker. `departures` is set by them, and told when the road is `open_again`."""

    departures: Departures | None = None

    def send(self, link: Connection) -> None:
        """Send a connection, or go on with the same one as before; when this returns it is no longer here.

        Raises NotNow, and something else, BadParcel or OSError above all, where it cannot be sent at all."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Forget the connection that was sent in part: it will not be sent again."""

    def close(self) -> None:
        """Send nothing more."""


class Departures:
    """The queue before one road. `sent` and `refused` count connections."""

    def __init__(self, road: Road, loop: asyncio.AbstractEventLoop) -> None:
        self._road = road
        self._loop = loop
        self._waiting: deque[tuple[Departing, float, int]] = deque()  # since when, and bytes
        self._bytes = 0
        self._timer: asyncio.Handle | None = None
        self.sent = 0
        self.refused = 0
        road.departures = self

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, departing: Departing) -> None:
        """Take one more, of whom the packet in hand is done with."""
        if departing.link.closed:
            return
        size = len(departing.link.unparsed())
        if len(self._waiting) >= WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
            self._refuse(departing, "too many wait for its worker")
            return
        self._bytes += size
        self._waiting.append((departing, self._loop.time(), size))
        if self._timer is None:
            self._timer = self._loop.call_soon(self._send_some)

    def open_again(self) -> None:
        """Go on at once: the road is open again."""
        self._stop_timer()
        self._send_some()

    def close(self) -> None:
        """Refuse whoever waits; nobody is sent any more."""
        self._stop_timer()
        self._road.close()
        while self._waiting:
            self._refuse(self._done(), "the broker stops")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_some(self) -> None:
        """Send a bounded part of those who wait; the others follow, whatever is raised here."""
        self._timer = None
        wait_s = RETRY_S
        try:
            self._expire()
            for _ in range(min(AT_ONCE, len(self._waiting))):
                self._send_first()
            wait_s = 0.0
        except NotNow:
            return
        finally:
            if self._waiting:
                self._timer = self._loop.call_later(wait_s, self._send_some)

    def _expire(self) -> None:
        """Refuse who has waited for too long; forget who has gone."""
        until_s = self._loop.time() - WAIT_S
        while self._waiting:
            departing, since_s, _ = self._waiting[0]
            gone = departing.link.closed
            if not gone and since_s > until_s:
                return
            self._road.give_up()
            self._done()
            if not gone:
                self._refuse(departing, "its worker does not answer")

    def _send_first(self) -> None:
        """Send the first in the queue, or go on with it. Raises NotNow."""
        departing = self._waiting[0][0]
        link = departing.link
        try:
            if isinstance(link, Connection) and not link.closed:
                self._road.send(link)
                self.sent += 1
            else:
                self._road.give_up()
        except NotNow:
            raise
        except Exception as error:  # noqa: BLE001  it costs this client, and none of those behind it
            self._road.give_up()
            self._done()
            self._refuse(departing, str(error) or type(error).__name__)
            return
        self._done()

    def _done(self) -> Departing:
        departing, _, size = self._waiting.popleft()
        self._bytes -= size
        return departing

    def _refuse(self, departing: Departing, why: str) -> None:
        self.refused += 1
        departing.refuse(ProtocolError(rc.SERVER_UNAVAILABLE, why))


def parcel_of(link: Connection) -> Parcel:
    """Return what goes with a connection."""
    return Parcel(link.listener(), link.peer(), link.certificate_name, link.unparsed(), int(link.came_ms))
