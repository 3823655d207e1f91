"""Which queues the messages of a chunk went into: filters that match are looked up once for each topic.

Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_spark.metrics.packing import NEW_ENTRY, Rows, edges
from headrace_spark.records.chunk import Integers
from headrace_spark.records.message_columns import Messages

UNKNOWN: Final = -1
"""The client of sessions that are not followed."""
# What is remembered of topics, and worked on at once: some ten megabytes.
_REMEMBERED_MAX: Final = 500_000
_HITS_MAX: Final = 500_000
_KEYS_MAX: Final = 1024
_SHAPES_MAX: Final = 16
_NONE: Final = np.empty(0, np.int64)


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
    filters: pa.StringArray
    """Each once for a tenant."""
    filter_tenants: pa.StringArray
    firsts: Integers
    """By filter: the first of its subscriptions, which come after each other; and the end of all."""
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

    def keys_of(self, incarnations: Integers) -> Integers:
        """Return by what the rows of these sessions come together: their client, or some clients where there are
        many."""
        clients, count = self.clients_of(incarnations), self.names.num_rows
        return clients if count <= _KEYS_MAX else clients * _KEYS_MAX // count


@dataclass(frozen=True)
class Shape:
    """Says which levels of a filter are wildcards: of one shape there is one filter that has a topic."""

    levels: int
    """Without `#`."""
    plus: tuple[int, ...]
    is_open: bool
    """Whether it ends with `#`."""

    @classmethod
    def of(cls, topic_filter: str) -> Shape:
        names = topic_filter.split("/")
        is_open = names[-1] == "#"
        plus = tuple(place for place, name in enumerate(names) if name == "+")
        return cls(len(names) - is_open, plus, is_open)

    def filter_for(self, names: Sequence[str]) -> str | None:
        """Return the filter of this shape that has the topic of these levels, None if there can be none (section 4.7 of
        the specification)."""
        if len(names) < self.levels or (len(names) > self.levels and not self.is_open):
            return None
        wanted = list(names[: self.levels])
        for place in self.plus:
            wanted[place] = "+"
        if self.is_open:
            wanted.append("#")
        if names[0].startswith("$") and wanted[0] in ("+", "#"):  # [MQTT-4.7.2-1]
            return None
        return "/".join(wanted)


class Level:
    """A node of the tree: the filters that end here, those that end here with `#`, and what follows."""

    __slots__ = ("following", "here", "many")

    def __init__(self) -> None:
        self.here: list[int] = []
        self.many: list[int] = []
        self.following: dict[str, Level] = {}


class Queues:
    """The queues that each message of a chunk is put into.

    Most filters have one of a few shapes, and are looked up; those of rare shapes are a tree of topic levels.
    """

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._roots: defaultdict[str | None, Level] = defaultdict(Level)
        self._filters: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
        self._found: dict[tuple[str, str], Integers] = {}
        self._remembered = 0
        shapes, is_common = common_shapes(followed.filters)
        self._shapes = shapes
        tenants = followed.filter_tenants.dictionary_encode("encode")
        names = tenants.dictionary.to_pylist()
        for number, (tenant, topic_filter, common) in enumerate(
            zip(tenants.indices.tolist(), followed.filters.to_pylist(), is_common.tolist(), strict=True)
        ):
            if common:
                self._filters[names[tenant]][topic_filter] = number
            else:
                self._add(self._roots[names[tenant]], topic_filter.split("/"), number)

    @staticmethod
    def _add(level: Level, names: Sequence[str], number: int) -> None:
        for name in names:
            if name == "#":
                level.many.append(number)
                return
            level = level.following.setdefault(name, Level())
        level.here.append(number)

    def subscriptions(self, tenant: str, topic: str) -> Integers:
        """Return the subscriptions whose filter matches."""
        key = tenant, topic
        found = self._found.get(key)
        if found is None:
            numbers, firsts = self.filters(tenant, topic), self._followed.firsts
            parts = [np.arange(firsts[number], firsts[number + 1]) for number in numbers]
            found = np.concatenate(parts) if parts else _NONE
            self._remembered += 1 + len(found)
            if self._remembered > _REMEMBERED_MAX:
                self._found.clear()
                self._remembered = 1 + len(found)
            self._found[key] = found
        return found

    def filters(self, tenant: str, topic: str) -> list[int]:
        """Return the filters that match."""
        found = self._match(tenant, topic)
        if known := self._filters.get(tenant):
            names = topic.split("/")
            for shape in self._shapes:
                wanted = shape.filter_for(names)
                if wanted is not None and (number := known.get(wanted)) is not None:
                    found.append(number)
        return found

    def _match(self, tenant: str, topic: str) -> list[int]:
        """Return the filters of rare shapes that match (section 4.7 of the specification)."""
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
            clients = followed.clients[followed.subscribers[subscriptions[local]]]
            own = followed.names["client_id"].take(pa.array(clients)).to_pylist()
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


def common_shapes(filters: pa.StringArray) -> tuple[list[Shape], npt.NDArray[np.bool_]]:
    """Return the most common shapes, and which filters have one of them."""
    outlines = pc.replace_substring_regex(filters, "[^/+#]+", "x").dictionary_encode()
    where = outlines.indices.to_numpy()
    shapes = list(map(Shape.of, outlines.dictionary.to_pylist()))
    counts: Counter[Shape] = Counter()
    for shape, count in zip(shapes, np.bincount(where, minlength=len(shapes)).tolist(), strict=True):
        counts[shape] += count
    common = [shape for shape, _ in counts.most_common(_SHAPES_MAX)]
    is_common = np.array([shape in common for shape in shapes], np.bool_)
    return common, is_common[where]


def _small(numbers: Integers) -> npt.NDArray[Any]:
    """Return numbers in 16 bits where they fit: NumPy sorts those by radix, which is many times as fast."""
    return numbers.astype(np.uint16) if len(numbers) and numbers.max() < 1 << 16 else numbers
