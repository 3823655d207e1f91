"""The progress of a job on stderr: one line that is redrawn on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.status import Status

PLAIN_INTERVAL_S: Final = 5.0
RATE_WINDOW_S: Final = 5.0


@dataclass(frozen=True)
class Progress:
    """Says where a job stands: rows of this run, the next offset to read, what lies between it and the present end.

    `offset` is the journal's where a job reads a journal; else the number of the batch, or of the row.
    """

    rows: int
    """That were read."""
    offset: int
    lag: int
    elapsed_s: float
    durations_s: tuple[float, ...] = ()
    """What each batch took that was finished since the last report."""
    written: int | None = None
    """Rows that were written or sent; None: all that were read."""
    lag_bytes: int | None = None
    lag_s: float | None = None
    """The age of the oldest that `lag` counts. None: it is not known here, as with a job that reads a journal, or nothing
    is due, as with a replay."""

    ends: Mapping[str, int] = field(default_factory=dict)
    """Where a job reads journals: by uuid the next offset to read, of which `offset` is the sum."""

    @property
    def rows_written(self) -> int:
        return self.rows if self.written is None else self.written


Report = Callable[[Progress], None]


class Rate:
    """Rows a second over the last few seconds."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, int]] = deque([(0.0, 0)])

    def of(self, progress: Progress) -> float:
        """Take the next report, and return the rate up to it."""
        self._history.append((progress.elapsed_s, progress.rows))
        while len(self._history) > 2 and self._history[1][0] < progress.elapsed_s - RATE_WINDOW_S:
            self._history.popleft()
        since, rows = self._history[0]
        return (progress.rows - rows) / (progress.elapsed_s - since) if progress.elapsed_s > since else 0.0


class ProgressLine:
    """Shows the progress of a job in one line. Use as a context manager; `show` may be called as often as one likes."""

    def __init__(self, job: str, console: Console | None = None) -> None:
        self._job = job
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._status = Status("", console=self._console) if self._console.is_terminal else None
        self._rate = Rate()
        self._plain_at = float("-inf")  # `monotonic` may start at 0 with the machine
        self._last: Progress | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if self._last is not None and kind is None:
            last = self._last
            average = last.rows / last.elapsed_s if last.elapsed_s else 0.0
            self._print(f"done: {last.rows:,} rows, {average:,.0f} rows/s, lag {last.lag:,}")

    def say(self, text: str) -> None:
        if self._status is None:
            self._print(text)
        else:
            self._status.update(f"{self._job}: {text}")

    def show(self, progress: Progress) -> None:
        self._last = progress
        rate = self._rate.of(progress)
        if self._status is None and monotonic() - self._plain_at < PLAIN_INTERVAL_S:
            return
        self._plain_at = monotonic()
        self.say(f"{progress.rows:,} rows, {rate:,.0f} rows/s, lag {progress.lag:,}")

    def _print(self, text: str) -> None:
        self._console.print(f"{self._job}: {text}", soft_wrap=True)
