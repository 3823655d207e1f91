"""What a worker and its supervisor say to each other, over a socket that keeps messages apart (SOCK_SEQPACKET).

    worker -> supervisor    {"state": STATE, "trouble": "why it is not ready, or empty", "numbers": {NAME: NUMBER},
                            "bridges": {NAME: 1 or 0}}, now and every HEARTBEAT_S; numbers, for `$SYS`, once it serves;
                            the bridges that it has, 1 for those that are up
    supervisor -> worker    b"go": all workers are prepared, clients may come
                            {NAME: VALUE}: what `$SYS` says of the node

Each message says everything, so one that is lost costs nothing. The end of the socket is the end of the other side: a
worker without a supervisor stops cleanly, since nobody would end it and the next start needs its locks.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

HEARTBEAT_S: Final = 1.0
MESSAGE_BYTES_MAX: Final = 32 << 10
TROUBLE_CHARACTERS_MAX: Final = 500
BRIDGES_BYTES_MAX: Final = 16 << 10  # of the names of bridges: of those beyond the other workers hear nothing
GO: Final = b"go"

AWAY: Final = "away"  # there is no process
STARTING: Final = "starting"  # it reads its configuration and opens its journals
RECOVERING: Final = "recovering"  # configuration and journals are good
PREPARED: Final = "prepared"  # it has recovered, and waits for the others
READY: Final = "ready"
STOPPING: Final = "stopping"
STATES: Final = (STARTING, RECOVERING, PREPARED, READY, STOPPING)


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself."""

    state: str
    trouble: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    bridges: Mapping[str, int] = field(default_factory=dict)
    degraded: str = ""

    def pack(self) -> bytes:
        trouble, bridges = self.trouble[:TROUBLE_CHARACTERS_MAX], _as_many_as_fit(self.bridges)
        degraded = self.degraded[:TROUBLE_CHARACTERS_MAX]
        fields = {**asdict(self), "trouble": trouble, "bridges": bridges, "degraded": degraded}
        return json.dumps(fields).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Return what `pack` has written. Raises ValueError for what it has not."""
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("state") not in STATES:
            raise ValueError(f"{data!r} is no report of a worker")
        numbers, bridges = _numbers(found.get("numbers")), _numbers(found.get("bridges"))
        trouble, degraded = str(found.get("trouble", "")), str(found.get("degraded", ""))
        return cls(found["state"], trouble, numbers, bridges, degraded)


def _numbers(found: object) -> dict[str, int]:
    """Return numbers by name; nothing where it is something else."""
    if not isinstance(found, dict) or not all(isinstance(number, int) for number in found.values()):
        return {}
    return found


def _as_many_as_fit(bridges: Mapping[str, int]) -> dict[str, int]:
    """Return the first of them: a report is one message."""
    fit: dict[str, int] = {}
    left = BRIDGES_BYTES_MAX
    for name, up in bridges.items():
        left -= len(name) + len('"": 1, ')
        if left < 0:
            break
        fit[name] = up
    return fit


def pack_values(values: Mapping[str, str]) -> bytes:
    """Return what tells a worker the values of `$SYS`."""
    return json.dumps(values).encode()


def unpack_values(data: bytes) -> dict[str, str]:
    """Return what `pack_values` has written. Raises ValueError for what it has not."""
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{data!r} is no values of $SYS")
    return found


class Control:
    """The worker's end. Runs on the loop, so that a loop which hangs is silent. `may_serve` is set once clients may come;
    `trouble` says why the worker is not ready, `degraded` what does not work though it is, `numbers` what `$SYS` is made
    of, `bridges` which are up; `told` is called with the values of `$SYS`, `lost` when the supervisor is gone."""

    def __init__(self, end: socket.socket) -> None:
        self.may_serve = asyncio.Event()
        self.is_lost = False
        self.trouble: Callable[[], str] = str
        self.degraded: Callable[[], str] = str
        self.numbers: Callable[[], Mapping[str, int]] = dict
        self.bridges: Callable[[], Mapping[str, int]] = dict
        self.told: Callable[[Mapping[str, str]], None] | None = None
        self.lost: Callable[[], None] = self.may_serve.set
        self._end = end
        self._state = STARTING
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        end.setblocking(False)
        self._loop.add_reader(end, self._read)
        self._beat()

    def tell(self, state: str) -> None:
        """Tell the supervisor how far this worker is."""
        self._state = state
        self.say()

    def close(self) -> None:
        """Say nothing more; the supervisor sees the end."""
        if self._next is not None:
            self._next.cancel()
        self._loop.remove_reader(self._end)
        self._end.close()

    def _beat(self) -> None:
        self._next = self._loop.call_later(HEARTBEAT_S, self._beat)  # first: a want of memory is over by then
        self.say()

    def say(self) -> None:
        """Say everything now."""
        with suppress(OSError):  # one that does not read is told later; of one that is gone we hear
            said = Report(self._state, self.trouble(), self.numbers(), self.bridges(), self.degraded())
            self._end.send(said.pack())

    def _read(self) -> None:
        try:
            data = self._end.recv(MESSAGE_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data == GO:
            self.may_serve.set()
        elif not data:
            self._loop.remove_reader(self._end)
            self.is_lost = True
            self.lost()
        elif self.told is not None:
            with suppress(ValueError):
                self.told(unpack_values(data))
