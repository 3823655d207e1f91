"""The CPU time of the broker's processes, from /proc: of those that are named, and of all that they have started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TIMES = slice(
    11, 15
)  # behind the name in `stat`: user and system, and the same of children that were waited for


class Processor:
    """User and system time of some processes and their descendants together, each counted once, all threads. What a
    descendant used stays when it has ended. Raises OSError when a process that was named is not there."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.seconds()

    def seconds(self) -> float:
        ticks = dict[int, int]()
        for pid in self._pids:
            if pid not in ticks:
                ticks[pid] = _ticks(pid)
            _add_descendants(pid, ticks)
        return sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(field) for field in fields[_TIMES])


def _add_descendants(pid: int, ticks: dict[int, int]) -> None:
    """Add what is below a process and still there."""
    for child in _children(pid):
        if child not in ticks:
            with suppress(OSError):  # it has ended since
                ticks[child] = _ticks(child)
                _add_descendants(child, ticks)


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text(encoding="ascii").split()]
    return found
