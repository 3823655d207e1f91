"""What a read wants of a journal, as far as that can be told before rows are made.

A selection comes from options of the source and, in batch reads, from the filters that Spark pushes down. It
may let through more than was asked for, never less: Spark evaluates its filters again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.journal.selective import TimeRange
from headrace.mqtt.topics import matches

EVER: Final = TimeRange(0, 1 << 63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMPS: Final = ("publish_timestamp", "event_timestamp", "progress_timestamp")
_NEXT: Final = {int: 1, datetime: timedelta(microseconds=1), date: timedelta(days=1)}
_FROM, _BELOW = "from", "below"


@dataclass(frozen=True)
class Selection:
    """Selects records; None and "" mean any. `tenants` and the three on topics are about messages alone."""

    start: int = 0
    end: int = 1 << 63
    times: TimeRange = EVER
    tenants: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    topic_filter: str = ""

    @property
    def is_by_topic(self) -> bool:
        """Return whether only some topics, or some tenants, are wanted."""
        return bool(self.topic_prefix or self.topic_filter) or not (
            self.tenants is None and self.topics is None
        )

    def wants(self, tenant: str, topic: str) -> bool:
        return (
            (self.tenants is None or tenant in self.tenants)
            and (self.topics is None or topic in self.topics)
            and topic.startswith(self.topic_prefix)
            and (not self.topic_filter or matches(self.topic_filter, topic))
        )

    def pushed(self, filters: Iterable[Filter]) -> Selection:
        """Return the selection narrowed by what can be used of the filters, which hold all together."""
        narrowed = self
        for given in filters:
            narrow = _NARROWING.get(type(given))
            attribute: tuple[str, ...] = getattr(given, "attribute", ())
            if narrow is not None and len(attribute) == 1:
                narrowed = narrow(narrowed, attribute[0], getattr(given, "value", None))
        return narrowed

    def between(self, times: TimeRange) -> Selection:
        since_us = max(self.times.since_us, times.since_us)
        return replace(self, times=TimeRange(since_us, min(self.times.until_us, times.until_us)))

    def with_tenants(self, names: Collection[str]) -> Selection:
        known = frozenset(names)
        return replace(self, tenants=known if self.tenants is None else self.tenants & known)

    def with_topics(self, names: Collection[str]) -> Selection:
        known = frozenset(names)
        return replace(self, topics=known if self.topics is None else self.topics & known)


def microseconds(moment: datetime) -> int:
    """Return the time since 1970; one without a zone is UTC, as in our sessions."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _equal(selection: Selection, column: str, value: Any) -> Selection:
    return _one_of(selection, column, (value,)) if value is not None else selection


def _one_of(selection: Selection, column: str, values: Collection[Any]) -> Selection:
    known = [value for value in values if value is not None]
    if column == "tenant":
        return selection.with_tenants(known)
    if column == "topic":
        return selection.with_topics(known)
    if not known:
        return selection
    narrowed = _bounded(selection, column, min(known), _FROM)
    return _bounded(narrowed, column, _after(max(known)), _BELOW)


def _prefix(selection: Selection, column: str, value: Any) -> Selection:
    """Return, of several prefixes, the longest: it is at least as narrow where they can hold together."""
    longer = column == "topic" and len(value) > len(selection.topic_prefix)
    return replace(selection, topic_prefix=value) if longer else selection


def _after(value: Any) -> Any:
    step = _NEXT.get(type(value))
    return None if step is None else value + step


def _bounded(selection: Selection, column: str, bound: Any, side: str) -> Selection:
    """Return the selection narrowed by `bound`, from which on, or below which, `column` lies."""
    if column == "journal_offset" and isinstance(bound, int):
        if side == _FROM:
            return replace(selection, start=max(selection.start, bound))
        return replace(selection, end=min(selection.end, bound))
    if column == "date" and type(bound) is date:
        bound = datetime.combine(bound, time(), UTC)
    elif column not in _TIMESTAMPS:
        return selection
    if not isinstance(bound, datetime):
        return selection
    at_us = max(0, microseconds(bound))
    times = TimeRange(at_us, EVER.until_us) if side == _FROM else TimeRange(0, at_us)
    return selection.between(times)


_NARROWING: Final[dict[type[Filter], Callable[[Selection, str, Any], Selection]]] = {
    EqualTo: _equal,
    In: _one_of,
    StringStartsWith: _prefix,
    GreaterThan: lambda s, column, value: _bounded(s, column, _after(value), _FROM),
    GreaterThanOrEqual: lambda s, column, value: _bounded(s, column, value, _FROM),
    LessThan: lambda s, column, value: _bounded(s, column, value, _BELOW),
    LessThanOrEqual: lambda s, column, value: _bounded(s, column, _after(value), _BELOW),
}
