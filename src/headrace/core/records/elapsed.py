"""How long ago something was by the time of day, as far as that can be believed.

A machine without a clock of its own starts in 1970, or in whichever year its firmware names, until somebody sets the
time. What was written down before then was not written decades ago.
"""

from __future__ import annotations

from typing import Final

CLOCK_SET_US: Final = 1_577_836_800_000_000  # 2020: a clock that says less has not been set


def elapsed_us(since_us: int, now_us: int) -> int:
    """Return the microseconds from `since_us` to `now_us`; 0 where the clock was set back, or was only set in
    between."""
    if since_us < CLOCK_SET_US <= now_us:
        return 0
    return max(0, now_us - since_us)
