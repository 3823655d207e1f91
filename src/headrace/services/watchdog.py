"""What held the loop up: counts everything that ran longer than LIMIT_S at a stretch, by what it was.

Runs on the loop, with two readings of the clock per tick, batch, timer or slice and none per message. It measures what
others wait for, so a machine that takes the processor away counts too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

LIMIT_S = 0.005
# reads: from the first packet of a pass to its tick, all connections; tick: append and writes; apply: a durable batch
# takes effect; timer: expiry, wills, keep-alive; system: $SYS; snapshot and references: one slice.
KINDS = ("reads", "tick", "apply", "timer", "system", "snapshot", "references")
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")


class Watchdog:
    """Counts what held the loop up. `stalls` and `stalled_s` hold a number for each of KINDS; `longest_s` is the
    longest of all."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.stalls = dict.fromkeys(KINDS, 0)
        self.stalled_s = dict.fromkeys(KINDS, 0.0)
        self.longest_s = 0.0

    def note(self, kind: str, taken_s: float) -> None:
        """Note that something of this kind took so long."""
        if taken_s > LIMIT_S:
            self.stalls[kind] += 1
            self.stalled_s[kind] += taken_s
            self.longest_s = max(self.longest_s, taken_s)

    def watched(self, kind: str, call: Callable[Arguments, None]) -> Callable[Arguments, None]:
        """Return `call` with a watch on the time that it takes."""

        def watched_call(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
            began = self.clock()
            call(*arguments, **named)
            self.note(kind, self.clock() - began)

        return watched_call

    def steps(self, kind: str, slices: Iterable[Item]) -> Iterator[Item]:
        """Yield the slices of a long task, each of which is one stretch on the loop."""
        rest = iter(slices)
        while True:
            began = self.clock()
            try:
                part = next(rest)
            except StopIteration:
                return
            finally:
                self.note(kind, self.clock() - began)
            yield part
