"""What comes again and again while a node runs: its timers, `$SYS`, signs of life. Runs on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.core.ports.failures import Failures


class Repeating:
    """Calls `turn`, waits as many seconds as it returns, and calls it again, until `stop`. A turn that raises is noted
    under `place`, and the next one comes after `otherwise_s`: keep alives, wills and expiries hang on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        failures: Failures,
        place: str,
        turn: Callable[[], float],
        otherwise_s: float,
    ) -> None:
        self._loop = loop
        self._failures = failures
        self._place = place
        self._turn = turn
        self._otherwise_s = otherwise_s
        self._stopped = False

    def start(self) -> None:
        """Take the first turn now."""
        if self._stopped:
            return
        wait_s = self._otherwise_s
        try:
            wait_s = self._turn()
        except Exception as error:  # noqa: BLE001
            self._failures.note(self._place, "", error)
        finally:
            self._loop.call_later(wait_s, self.start)

    def stop(self) -> None:
        """Take no turn any more."""
        self._stopped = True


async def repeat(
    failures: Failures,
    turn: Callable[[], Awaitable[None]],
    interval_s: float,
    expected: Callable[[OSError], None],
) -> None:
    """Wait for `interval_s` and await a turn of housekeeping, until cancelled. `expected` is told each OSError, which
    changes nothing for good; whatever else is raised is noted: retention and snapshots must go on."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await turn()
        except OSError as error:
            expected(error)
        except Exception as error:  # noqa: BLE001
            failures.note("housekeeping", "", error)
