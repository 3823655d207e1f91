"""The message at which the remote broker closes the connection, if it does so each time it gets it.

A connection that ends may have any reason, and what was under way is sent again, as it must be. Where the remote broker
has closed it twice with the same message as the oldest without an answer, messages go one at a time, so that it is known
which one it was, and nothing is sent at QoS 0. After `GIVEN_UP_AFTER` connections that ended at this
one it is given up, and what waits behind it goes on. Retained messages of QoS 0, which go out at every connection, are
left out after so many that ended as soon as they were sent.
Compiled with the link that uses it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.mqtt import reason_codes as rc

ALONE_AFTER: Final = 2
GIVEN_UP_AFTER: Final = 6
SOON_MS: Final = 5000
# DISCONNECT codes that tell of the connection, not of a message on it.
PASSING: Final = frozenset(
    (
        rc.NORMAL_DISCONNECTION,
        rc.SERVER_BUSY,
        rc.BANNED,
        rc.SERVER_SHUTTING_DOWN,
        rc.KEEP_ALIVE_TIMEOUT,
        rc.SESSION_TAKEN_OVER,
        rc.RECEIVE_MAXIMUM_EXCEEDED,
        rc.MESSAGE_RATE_TOO_HIGH,
        rc.QUOTA_EXCEEDED,
        rc.ADMINISTRATIVE_ACTION,
        rc.USE_ANOTHER_SERVER,
        rc.SERVER_MOVED,
        rc.CONNECTION_RATE_EXCEEDED,
        rc.MAXIMUM_CONNECT_TIME,
    )
)


class Suspect:
    """Remembers that message over all connections of a bridge, by its serial number in the session, 0 for none."""

    def __init__(self) -> None:
        self.serial: i64 = 0
        self.times: i64 = 0
        self.topic = b""
        self.early: i64 = 0  # connections in a row that ended soon, with nothing to be answered

    @property
    def is_alone(self) -> bool:
        """Return whether nothing is sent beside it until it has its answer."""
        return self.times >= ALONE_AFTER

    @property
    def is_given_up(self) -> bool:
        return self.times >= GIVEN_UP_AFTER

    def closed_at(self, serial: i64, topic: bytes) -> None:
        """Note that the remote broker closed the connection, and this is the oldest message that it did not answer."""
        if serial != self.serial:
            self.serial = serial
            self.times = 0
            self.topic = topic
        self.times += 1

    def closed_idle(self, up_ms: i64) -> None:
        """Note that the remote broker closed the connection after that time, and had answered everything."""
        self.early = self.early + 1 if up_ms < SOON_MS else 0

    def spares_retained(self) -> bool:
        """Return whether retained messages of QoS 0 stay here."""
        return self.is_alone or self.early >= GIVEN_UP_AFTER

    def clear(self) -> None:
        """Note that it was answered, or given up."""
        self.serial = 0
        self.times = 0
