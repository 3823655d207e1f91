"""Drains a node before it is stopped: no client is let in any more, and those that are here are asked away, so many a
second, so that they come to other nodes one after another. Runs on the loop.

The workers of a node are told by a file of their runtime directory, `drain`, which one of them writes and all of them
read every second, one that was started again too:

    {"rate": 200, "reason": "use_another_server"}      clients of the node that are asked in a second; 0: no drain

It is there from the start, with spaces that say nothing, and is written in place.

Asked is whose socket is in this process: a client that came in at another node, and is at home here, is served on. So are
bridges and shards.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection
from headrace.services.doors import Doors

RATE_MAX: Final = 10_000
ASKED_MAX: Final = 200  # in a pass of the loop
TURN_S: Final = 0.02
LOOK_S: Final = 1.0
FILE: Final = "drain"
_FILE_BYTES: Final = (
    96  # filled up with spaces: whoever drains a node whose disk is full needs no room for that
)
DRAINED: Final = "drained"  # why the connection ended, in its record and in the log
REASONS: Final = {
    "use_another_server": rc.USE_ANOTHER_SERVER,
    "server_shutting_down": rc.SERVER_SHUTTING_DOWN,
}


class Wish(msgspec.Struct, frozen=True):
    """What somebody wants of a node: how many clients are asked away in a second, 0 where none are, and what they are
    told."""

    rate: int = 0
    reason: str = "use_another_server"


class Progress(msgspec.Struct, frozen=True):
    """Says how far a drain is: clients that were `asked` since it began `seconds` ago, and that are `left`. `unanswered`
    workers have not said."""

    draining: bool
    rate: int
    reason: str
    seconds: float
    asked: int
    left: int
    unanswered: list[int] = []


class Draining:
    """Drains one process of `workers`. `told`: the file in which the wish for all of them is, None where there is one
    process; `now_s` is the clock, which never goes back."""

    def __init__(
        self, doors: Doors, now_s: Callable[[], float], workers: int = 1, told: Path | None = None
    ) -> None:
        self._doors = doors
        self._now_s = now_s
        self._workers = workers
        self._told = told
        self._text = b""  # of the file, as it was read last
        self._looked_s = 0.0
        self._wish = Wish()
        self._began_s = 0.0
        self._asked = 0
        self._left: deque[Connection] = deque()
        self._told_so: set[Connection] = set()  # who was asked, and may have something to read before it ends
        self._found_s = -math.inf  # when those who are here were looked for
        self._credit = 0.0  # clients that may be asked now
        self._turned_s = 0.0
        if told is not None:
            with suppress(OSError):
                _write(told, b"", os.O_CREAT | os.O_EXCL)

    @property
    def trouble(self) -> str:
        """Return why the node is not ready, "" where nobody drains it."""
        return "draining: no client is let in" if self._wish.rate else ""

    def begin(self, rate: int, reason: str) -> None:
        """Drain the node, or go on with another rate or reason. Raises OSError."""
        self._become(Wish(rate, reason))

    def end(self) -> None:
        """Let clients in again. Raises OSError."""
        self._become(Wish())

    def progress(self) -> Progress:
        """Return how far this process is."""
        wish = self._wish
        seconds = self._now_s() - self._began_s if wish.rate else 0.0
        reason = wish.reason if wish.rate else ""
        left = len(self._here())
        return Progress(wish.rate > 0, wish.rate, reason, round(seconds, 1), self._asked, left)

    def turn(self) -> float:
        """Ask those away who are due. Returns the seconds until the next turn."""
        now_s = self._now_s()
        if self._told is not None and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look(self._told)
        if not self._wish.rate:
            return LOOK_S
        rate = self._wish.rate / self._workers
        since_s, self._turned_s = now_s - self._turned_s, now_s
        self._credit = min(
            self._credit + rate * since_s, 1.0 + rate * 2 * TURN_S
        )  # not at once what was slept over
        if now_s - self._found_s >= LOOK_S:
            self._found_s = now_s
            self._told_so = {one for one in self._told_so if not one.closed}
            if not self._left:
                self._left.extend(one for one in self._here() if one not in self._told_so)
        self._ask(min(int(self._credit), ASKED_MAX))
        return TURN_S

    def _ask(self, most: int) -> None:
        code = REASONS[self._wish.reason]
        while most > 0 and self._left:
            connection = self._left.popleft()
            if not connection.closed:
                most -= 1
                self._credit -= 1
                self._asked += 1
                self._told_so.add(connection)
                connection.broker.put_out(connection, code, DRAINED)

    def _here(self) -> list[Connection]:
        """Return the connections whose sockets are in this process."""
        return [one for one in self._doors.sockets() if not one.closed]

    def _become(self, wish: Wish) -> None:
        if self._told is not None:
            text = msgspec.json.encode(wish)
            _write(self._told, text, os.O_CREAT)
            self._text = text
        self._take(wish)

    def _look(self, told: Path) -> None:
        """Take over what another worker was told. A file that is not there says nothing, and is made again with what this
        one was told: somebody cleans up in /tmp."""
        text = b""
        try:
            text = told.read_bytes().strip()
        except FileNotFoundError:
            with suppress(OSError):  # as that of a directory that is not made again yet
                _write(told, self._text, os.O_CREAT | os.O_EXCL)
        except OSError:
            pass
        if text and text != self._text:
            self._text = text
            self._take(msgspec.json.decode(text, type=Wish))

    def _take(self, wish: Wish) -> None:
        now_s = self._now_s()
        if wish.rate and not self._wish.rate:
            self._asked, self._began_s, self._turned_s, self._credit = 0, now_s, now_s, 1.0
        if not wish.rate:
            self._told_so.clear()
        self._wish = wish
        self._left.clear()
        self._found_s = -math.inf
        self._doors.refuse_all(wish.rate > 0)


def _write(told: Path, text: bytes, flags: int) -> None:
    """Write the wish in place. Raises OSError."""
    descriptor = os.open(told, os.O_WRONLY | flags, 0o600)
    try:
        os.pwrite(descriptor, text.ljust(_FILE_BYTES), 0)
    finally:
        os.close(descriptor)
