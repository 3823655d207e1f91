"""Which queues the messages of a chunk went into: subscriptions as a tree of topic levels, asked once for each topic.

Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace_spark.metrics.packing import NEW_ENTRY, Rows, edges
from headrace_spark.records.chunk import Integers
from headrace_spark.records.message_columns import Messages

UNKNOWN: Final = -1
"""The client of sessions that are not followed."""
# What is remembered of topics, and worked on at once: some ten megabytes.
_REMEMBERED_MAX: Final = 2_000_000
_HITS_MAX: Final = 500_000


@dataclass(frozen=True)
class Followed:
    """The sessions of one range, ordered by incarnation, and their subscriptions; the same for every worker."""

    incarnations: Integers
    clients: Integers
    """By session: which row of `names`. Sessions of one client come after each other and have one number."""
    next_serials: Integers
    transient: npt.NDArray[np.bool_]
    """By session: whether it ends with its connection, and its acknowledgements are nowhere."""
    ended_us: Integers
    """NO_TIME for sessions that are left at the end."""
    names: pa.Table
    """tenant, client_id."""
    filters: pa.Array
    subscribers: Integers
    """By subscription: which session."""
    begins: Integers
    untils: Integers
    """By subscription: its offsets."""
    no_local: npt.NDArray[np.bool_]
    retained: Rows
    """NEW_ENTRY rows: retained messages that were put into queues."""

    def sessions_of(self, incarnations: Integers) -> Integers:
        """Return which session has each of these incarnations; UNKNOWN where none of them has."""
        if not len(self.incarnations):
            return np.full(len(incarnations), UNKNOWN)
        at = np.minimum(np.searchsorted(self.incarnations, incarnations), len(self.incarnations) - 1)
        return np.where(self.incarnations[at] == incarnations, at, UNKNOWN)

    def clients_of(self, incarnations: Integers) -> Integers:
        sessions = self.sessions_of(incarnations)
        return (
            np.where(sessions == UNKNOWN, UNKNOWN, self.clients[sessions]) if len(self.clients) else sessions
        )


class Level:
    """A node of the tree: the subscriptions that end here, those that end here with `#`, and what follows."""

    __slots__ = ("following", "here", "many")

    def __init__(self) -> None:
        self.here: list[int] = []
        self.many: list[int] = []
        self.following: dict[str, Level] = {}


class Queues:
    """The queues that each message of a chunk is put into."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._roots: defaultdict[str | None, Level] = defaultdict(Level)
        self._found: dict[tuple[str, str], Integers] = {}
        self._remembered = 0
        clients = followed.clients[followed.subscribers]
        tenants = followed.names["tenant"].take(pa.array(clients)).to_pylist()
        self._client_ids = followed.names["client_id"].take(pa.array(clients)).to_pylist()
        for number, (tenant, topic_filter) in enumerate(
            zip(tenants, followed.filters.to_pylist(), strict=True)
        ):
            self._add(self._roots[tenant], topic_filter.split("/"), number)

    @staticmethod
    def _add(level: Level, names: Sequence[str], number: int) -> None:
        for name in names:
            if name == "#":
                level.many.append(number)
                return
            level = level.following.setdefault(name, Level())
        level.here.append(number)

    def subscriptions(self, tenant: str, topic: str) -> Integers:
        """Return the subscriptions whose filter matches (section 4.7 of the specification)."""
        key = tenant, topic
        found = self._found.get(key)
        if found is None:
            found = np.array(self._match(tenant, topic), np.int64)
            self._remembered += 1 + len(found)
            if self._remembered > _REMEMBERED_MAX:
                self._found.clear()
                self._remembered = 1 + len(found)
            self._found[key] = found
        return found

    def _match(self, tenant: str, topic: str) -> list[int]:
        if tenant not in self._roots:
            return []
        found: list[int] = []
        levels = [self._roots[tenant]]
        hidden = topic.startswith("$")  # [MQTT-4.7.2-1]
        for name in topic.split("/"):
            if not hidden:
                found += [number for level in levels for number in level.many]
            wanted = (name,) if hidden else (name, "+")
            levels = [level.following[one] for level in levels for one in wanted if one in level.following]
            hidden = False
        for level in levels:
            found += level.here
            found += level.many  # `a/#` is for `a` too
        return found

    def entries(self, messages: Messages) -> Iterator[Rows]:
        """Yield NEW_ENTRY rows: each message once in each queue. In several parts, where messages have many
        receivers."""
        names, where = messages.topic_pairs
        counts = np.array([len(self.subscriptions(*name)) for name in names], np.int64)
        rows = np.flatnonzero((messages.qos > 0) & (counts[where] > 0))
        parts = np.cumsum(counts[where[rows]]) // _HITS_MAX
        for first, last in pairwise(edges(parts).tolist()):
            yield self._put(messages, *self._hits(messages, rows[first:last]))

    def _hits(self, messages: Messages, rows: Integers) -> tuple[Integers, Integers]:
        """Return the messages as often as a filter matches; and whose filter it is."""
        names, where = messages.topic_pairs
        topics, which = np.unique(where[rows], return_inverse=True)
        found = [self.subscriptions(*names[topic]) for topic in topics.tolist()]
        counts = np.array([len(some) for some in found], np.int64)
        times, begins = counts[which], (np.cumsum(counts) - counts)[which]
        within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return np.repeat(rows, times), np.concatenate(found)[np.repeat(begins, times) + within]

    def _put(self, messages: Messages, rows: Integers, subscriptions: Integers) -> Rows:
        """Put the entries in order: by session, then by offset."""
        followed = self._followed
        offsets = messages.offsets[rows]
        wanted = (offsets >= followed.begins[subscriptions]) & (offsets < followed.untils[subscriptions])
        local = np.flatnonzero(wanted & followed.no_local[subscriptions])
        if len(local):
            publishers = messages.client_ids.take(pa.array(rows[local])).to_pylist()
            own = [self._client_ids[n] for n in subscriptions[local].tolist()]
            wanted[local] = [one != other for one, other in zip(publishers, own, strict=True)]
        rows, sessions = rows[wanted], followed.subscribers[subscriptions[wanted]]
        order = np.argsort(_small(sessions), kind="stable")
        rows, sessions = rows[order], sessions[order]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:] != rows[:-1]) | (sessions[1:] != sessions[:-1])
        rows, sessions = rows[first], sessions[first]
        made = np.zeros(len(rows), NEW_ENTRY)
        made["incarnation"] = followed.incarnations[sessions]
        made["offset"] = messages.offsets[rows]
        made["publish_us"] = messages.timestamps_us[rows]
        made["payload_bytes"] = messages.payload_lengths[rows]
        return made


def _small(numbers: Integers) -> npt.NDArray[Any]:
    """Return numbers in 16 bits where they fit: NumPy sorts those by radix, which is many times as fast."""
    return numbers.astype(np.uint16) if len(numbers) and numbers.max() < 1 << 16 else numbers
