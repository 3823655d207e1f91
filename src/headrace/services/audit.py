"""The audit log: who was let in, who was refused and why, and from where. Runs on the loop.

One line for an event of a source within ten seconds; what else happened there is counted and told when they are over, so
that strangers fill no disk. Counters have all of it. Whatever a client chose (names, topics) is written so that it can
neither break a line nor pass for a field.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

INTERVAL_S = 10.0
LINES_MAX = 200  # of an interval
TEXT_MAX = 128  # characters of a name or topic
LEVELS = ("off", "failures", "all")

Tell = Callable[..., object]


class Audit:
    """`tell` writes a line: an event and more about it by name. `level` is one of LEVELS; counters need none."""

    def __init__(
        self, tell: Tell, level: str = "failures", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._level = level
        self._clock = clock
        self.counts: dict[tuple[str, str], int] = {}
        self._began = -INTERVAL_S
        self._untold: dict[
            tuple[str, str], int
        ] = {}  # (event, source) told of in this interval -> how many were not
        self._others: dict[str, int] = {}  # beyond LINES_MAX, by event

    def failure(self, event: str, reason: str, source: str, **more: str) -> None:
        self._note(event, reason, source, more, wanted=self._level != "off")

    def success(self, event: str, reason: str, source: str, **more: str) -> None:
        self._note(event, reason, source, more, wanted=self._level == "all")

    def _note(self, event: str, reason: str, source: str, more: dict[str, str], *, wanted: bool) -> None:
        self.counts[event, reason] = self.counts.get((event, reason), 0) + 1
        if not wanted:
            return
        self.flush()
        key = (event, source)
        if key in self._untold:
            self._untold[key] += 1
        elif len(self._untold) >= LINES_MAX:
            self._others[event] = self._others.get(event, 0) + 1
        else:
            self._untold[key] = 0
            told = {name: clean(value) for name, value in more.items() if value}
            self._tell(event, reason=reason, source=clean(source), **told)

    def flush(self) -> None:
        """Tell what was left out, once the interval is over. To be called now and then."""
        now = self._clock()
        if now - self._began < INTERVAL_S:
            return
        untold, others = self._untold, self._others
        self._untold, self._others, self._began = {}, {}, now
        for (event, source), count in untold.items():
            if count:
                self._tell(event, source=clean(source), suppressed=count)
        for event, count in others.items():
            self._tell(event, source="others", suppressed=count)


def clean(text: str) -> str:
    """A text that a client chose, on one line and not too long; the log puts it in quotes if it is more than one word."""
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX] + "..."
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode() for one in text
    )


class Queue(Protocol):
    """CONNECTs that wait, and how many went away while they did."""

    dropped: int

    @property
    def waiting(self) -> int: ...


class AuditCollector(Collector):
    """What the audit counted, and the queue in front of the password hashes."""

    def __init__(self, audit: Audit, queue: Queue) -> None:
        self._audit = audit
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "headrace_security_events", "Logins, refusals, denials and bans", labels=["event", "reason"]
        )
        for (event, reason), count in sorted(self._audit.counts.items()):
            events.add_metric([event, reason], count)
        yield events
        yield GaugeMetricFamily(
            "headrace_passwords_waiting", "CONNECTs that wait for a password hash", value=self._queue.waiting
        )
        yield CounterMetricFamily(
            "headrace_passwords_abandoned",
            "CONNECTs whose client had gone before its turn",
            value=self._queue.dropped,
        )
