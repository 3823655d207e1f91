"""The audit log: who came and went, who was refused and why, and from where. Runs on the loop.

Failures are told whatever the log's level is; how connections and sessions begin and end is told as any other news. One
line for an event of a source, or of a client, within ten seconds; what else happened there is counted and told when they
are over, so that strangers fill no disk. Counters have all of it. Whatever a client chose (names, topics) is written so
that it can neither break a line nor pass for a field.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

INTERVAL_S = 10.0
LINES_MAX = 200  # of an interval
TEXT_MAX = 128  # characters of a name or topic
LEVELS = ("off", "failures", "all")

Tell = Callable[..., object]
Heard = Callable[[str, str, str, Mapping[str, str]], None]  # event, reason, source, and more about it by name


class Audit:
    """The audit log. `tell` writes a line: an event and more about it by name; `tell_news` one about a connection that
    begins or ends as it should, None where nobody wants those. `level` is one of LEVELS; counters need none."""

    def __init__(
        self,
        tell: Tell,
        level: str = "failures",
        clock: Callable[[], float] = time.monotonic,
        tell_news: Tell | None = None,
    ) -> None:
        self._level = level
        self.counts: dict[tuple[str, str], int] = {}
        self.heard: Heard | None = None  # is told of each failure
        self._lines = Lines(tell, "source", clock)
        self._news = None if tell_news is None else Lines(tell_news, "client", clock)

    def failure(self, event: str, reason: str, source: str, **more: str) -> None:
        self._note(event, reason, source, more, wanted=self._level != "off")
        if self.heard is not None:
            self.heard(event, reason, source, more)

    def success(self, event: str, reason: str, source: str, **more: str) -> None:
        self._note(event, reason, source, more, wanted=self._level == "all")

    def _note(self, event: str, reason: str, source: str, more: dict[str, str], *, wanted: bool) -> None:
        self.counts[event, reason] = self.counts.get((event, reason), 0) + 1
        if wanted and self._lines.takes(event, source):
            self._lines.tell(event, source, {"reason": reason, "source": source, **more})

    def takes_news(self, event: str, client: str) -> bool:
        """Return whether `news` is to be called for this event: otherwise it is counted as left out, if anybody
        listens."""
        return self._news is not None and self._news.takes(event, client)

    def news(self, event: str, client: str, **more: str) -> None:
        if self._news is not None:
            self._news.tell(event, client, {"client": client, **more})

    def flush(self) -> None:
        """Tell what was left out, once the interval is over. To be called now and then."""
        self._lines.flush()
        if self._news is not None:
            self._news.flush()


class Lines:
    """Lines of one kind: one for an event of a key in an interval, LINES_MAX of all, then how many were left out.

    `key_name`: what the key is called in a line."""

    def __init__(self, tell: Tell, key_name: str, clock: Callable[[], float]) -> None:
        self._tell = tell
        self._key_name = key_name
        self._clock = clock
        self._began = -INTERVAL_S
        self._untold: dict[
            tuple[str, str], int
        ] = {}  # (event, key) told of in this interval -> how many were not
        self._others: dict[str, int] = {}  # beyond LINES_MAX, by event

    def takes(self, event: str, key: str) -> bool:
        """Return whether there is a line for it now; it is counted if there is none."""
        self.flush()
        if (event, key) in self._untold:
            self._untold[event, key] += 1
            return False
        if len(self._untold) >= LINES_MAX:
            self._others[event] = self._others.get(event, 0) + 1
            return False
        return True

    def tell(self, event: str, key: str, fields: dict[str, str]) -> None:
        """Write a line of the fields that have a value."""
        self._untold[event, key] = 0
        self._tell(event, **{name: clean(value) for name, value in fields.items() if value})

    def flush(self) -> None:
        """Tell what was left out, once the interval is over. To be called now and then."""
        now = self._clock()
        if now - self._began < INTERVAL_S:
            return
        untold, others = self._untold, self._others
        self._untold, self._others, self._began = {}, {}, now
        for (event, source), count in untold.items():
            if count:
                self._tell(event, **{self._key_name: clean(source)}, suppressed=count)
        for event, count in others.items():
            self._tell(event, **{self._key_name: "others"}, suppressed=count)


def clean(text: str) -> str:
    """Return a text that a client chose, on one line and not too long; the log puts it in quotes if it is more than one
    word."""
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
