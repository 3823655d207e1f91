"""The filters that the sessions of this shard have, each with how many have it: what other shards are told of.

Kept where there are other shards: a shard alone has an `Unasked`. The filter of a shared subscription is among them at
the home of its group, once.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class WantedListener:
    """Hears which filters are wanted from now on, and which no more: this one tells nobody."""

    def wanted(self, tenant: str, topic_filter: str) -> None:
        """Note that the first session has subscribed to a filter."""

    def unwanted(self, tenant: str, topic_filter: str) -> None:
        """Note that the last session that had a filter no longer has it."""


class Unasked:
    """The filters of a shard alone: no other shard asks for them, and none is kept."""

    def add(self, tenant: str, topic_filter: str) -> None:
        """Count one session more that has a filter."""

    def remove(self, tenant: str, topic_filter: str) -> None:
        """Count one session less."""


class Wanted(Unasked):
    """The filters of one shard, each with the number of sessions that have it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self.listener = WantedListener()

    def add(self, tenant: str, topic_filter: str) -> None:
        key = (tenant, topic_filter)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        if count == 0:
            self.listener.wanted(tenant, topic_filter)

    def remove(self, tenant: str, topic_filter: str) -> None:
        key = (tenant, topic_filter)
        count = self._counts.get(key, 0)
        if count > 1:
            self._counts[key] = count - 1
        elif count == 1:
            del self._counts[key]
            self.listener.unwanted(tenant, topic_filter)

    def has(self, tenant: str, topic_filter: str) -> bool:
        """Return whether some session has a filter."""
        return (tenant, topic_filter) in self._counts

    def filters(self) -> list[tuple[str, str]]:
        """Return all wanted filters, with their tenants."""
        return list(self._counts)
