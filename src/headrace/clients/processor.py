"""The CPU time of the broker's processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


class Processor:
    """User and system time of some processes together, all threads. Raises OSError when one of them is not there."""

    def __init__(self, pids: list[int]) -> None:
        self._files = [Path(f"/proc/{pid}/stat") for pid in pids]
        self.seconds()

    def seconds(self) -> float:
        ticks = 0
        for file in self._files:
            fields = file.read_text(encoding="ascii").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")
