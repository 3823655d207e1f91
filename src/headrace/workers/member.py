"""One worker as its supervisor sees it: a process, what it says of itself, and when it was heard last."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from headrace.backoff import Backoff
from headrace.workers.control import (
    AWAY,
    GO,
    MESSAGE_BYTES_MAX,
    PREPARED,
    READY,
    STARTING,
    STOPPING,
    Report,
    pack_values,
)
from headrace.workers.system import Tally

HUNG_S: Final = 30.0  # without a word of a worker whose loop runs
SHORTEST_S, LONGEST_S = 0.1, 10.0  # between two starts
PAUSE_SHARE: Final = (
    0.1  # of the time that it serves: the next start follows soon where the pause before it is no more
)
_RUNNING: Final = (PREPARED, READY, STOPPING)

# Starts worker `index` for the `run`th time, with its end of the control socket, which is inherited.
Spawn = Callable[[int, int, socket.socket], "subprocess.Popen[bytes]"]


class Member:
    """The worker of one index. `starts` counts its processes, `restarts` those after one that has ended."""

    def __init__(self, index: int, spawn: Spawn, clock: Callable[[], float] = time.monotonic) -> None:
        self.index = index
        self.state = AWAY
        self.trouble = self.degraded = ""
        self.starts = 0
        self.end: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.heard_s = 0.0
        self.silent_s = 0.0  # since then, when the supervisor looked last
        self.owed: signal.Signals | None = None  # this process is to get it once it can take it
        self.tally = Tally()
        self.bridges: Mapping[str, int] = {}  # that it has; 1: up
        self._clock = clock
        self._spawn = spawn
        self._serves_since_s: float | None = None
        self._backoff = Backoff(SHORTEST_S, LONGEST_S)

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    @property
    def serves(self) -> bool:
        """Return whether it accepts clients."""
        return self.state == READY

    @property
    def lives(self) -> bool:
        """Return whether there is a process that has not been waited for."""
        return self.process is not None

    def start(self, run: int) -> None:
        """Start a process. Raises OSError, and then there is none."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = self._spawn(self.index, run, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self.end = ours
        self.starts += 1
        self.state, self.trouble, self.owed = STARTING, "", None
        self.heard_s, self.silent_s = self._clock(), 0.0
        self._serves_since_s = None

    def read(self) -> bool:
        """Take what it has said; what makes no sense is as if it had not been said. Returns False at the end."""
        while self.end is not None:
            try:
                data = self.end.recv(MESSAGE_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            with suppress(ValueError):
                report = Report.unpack(data)
                self.state, self.trouble = report.state, report.trouble
                self.degraded = report.degraded
                self.tally.heard(report.numbers)
                self.bridges = report.bridges
                self.heard_s, self.silent_s = self._clock(), 0.0
                if self.serves and self._serves_since_s is None:
                    self._serves_since_s = self.heard_s
        return False

    def let_serve(self) -> None:
        """Tell it that clients may come."""
        if self.end is not None:
            with suppress(OSError):
                self.end.send(GO)

    def tell(self, values: Mapping[str, str]) -> bool:
        """Tell it what `$SYS` says of the node, if it serves. False if it was not told: it may not read now."""
        if self.end is not None and self.serves:
            with suppress(OSError):
                self.end.send(pack_values(values))
                return True
        return False

    def looked(self) -> None:
        """Note for how long it has been silent."""
        self.silent_s = self._clock() - self.heard_s

    def is_hung(self) -> bool:
        """Return whether one that is prepared, ready or about to end has been silent for HUNG_S. One that recovers may
        take its time."""
        return self.lives and self.state in _RUNNING and self.silent_s > HUNG_S

    def was_not_listened_to(self) -> None:
        """Note that the supervisor stood still: silence until now says nothing."""
        self.heard_s, self.silent_s = self._clock(), 0.0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, if it is there."""
        if self.process is not None:
            self.process.send_signal(number)

    def has_ended(self) -> bool:
        """Return whether there was a process, and it has ended."""
        return self.process is not None and self.process.poll() is not None

    def bury(self) -> int:
        """Forget the process that has ended; returns its exit status, negative for a signal."""
        assert self.process is not None
        status = self.process.wait()
        self.process = None
        self.state, self.trouble = AWAY, ""
        self.tally.ended()
        self.bridges = dict.fromkeys(self.bridges, 0)
        if self.end is not None:
            self.end.close()
            self.end = None
        if self._serves_since_s is not None:
            self._backoff.lasted(PAUSE_SHARE * (self._clock() - self._serves_since_s))
        return status

    def pause_s(self) -> float:
        """Return how long to wait before the next start: longer each time that it ends before it has served for a while,
        however long it took to begin."""
        return self._backoff.next_s()
