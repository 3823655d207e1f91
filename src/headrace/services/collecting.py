"""When the garbage collector looks for reference cycles: often at what is new, never at everything.

A look takes as long as there is to look at, and the process stands still meanwhile: seconds with a million sessions, of
which none is garbage. So what has outlived three looks is there to stay and is not looked at again; it goes with its last
reference, as everything of ours does. Garbage in cycles is what libraries leave when something ends before it has begun,
and that is new. What it holds is beyond the collector, which counts objects: the buffers of a TLS handshake that was
broken off are 40 KB, so such ends are counted. Figures: benchmarks/results/collector-*.json.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

# Objects made and not freed between two looks at them; such looks between two at what outlived one; such looks, again,
# between two at what outlived two.
THRESHOLDS: Final = (10_000, 1, 1)
ENDS: Final = 256  # connections, each of which may leave some 40 KB
_OUTLIVED_ONE, _OUTLIVED_TWO = 1, 2


def take_charge() -> None:
    """Set the collector of this process so, for good."""
    gc.set_threshold(*THRESHOLDS)
    if _keep not in gc.callbacks:
        gc.callbacks.append(_keep)


def _keep(phase: str, about: dict[str, int]) -> None:
    """Look no more at what has outlived the look that has just ended, if it was the third."""
    if phase == "stop" and about["generation"] == _OUTLIVED_TWO:
        gc.freeze()


class Endings:
    """Counts connections that ended and may have left garbage, and has the collector look after so many of them."""

    def __init__(self, collect: Callable[[int], object] = gc.collect) -> None:
        self._collect = collect
        self._ends = 0

    def note(self) -> None:
        self._ends += 1
        if self._ends >= ENDS:
            self._ends = 0
            self._collect(_OUTLIVED_ONE)
