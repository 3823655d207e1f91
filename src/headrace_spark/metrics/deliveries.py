"""Which message a serial number stands for, and what became of it.

Progress says "serial 7 of this session was acknowledged", not which message that was. A session numbers the QoS 1 and
2 messages that match its subscriptions 1, 2, 3, ... in journal order (decision 7), so the number is worked out
again: what went into its queue (`queues`), in order, from where an earlier range left off. The queues of many clients
are worked on together, column by column. Outcomes of sessions that are not followed are counted without a latency.
A transient session's acknowledgements are not journaled: what it is sent is `not_recorded` at once, and waits nowhere.
Runs on Spark's Python workers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.core.records.record import DROP_REASONS, DROP_SESSION_ENDED
from headrace_spark.metrics.packing import (
    ACKNOWLEDGED,
    DRAWN,
    DRAWN_GONE,
    GONE,
    KNOWN_ENTRY,
    NO_TIME,
    NOT_DRAWN,
    NOT_RECORDED,
    OUT_OF_GROUP,
    TO_MEMBER,
    UNNAMED,
    WAITING,
    Rows,
    edges,
)
from headrace_spark.metrics.queues import UNKNOWN, Followed
from headrace_spark.metrics.traffic import SECOND_US
from headrace_spark.records.chunk import Integers, Mask

# Of a group the journal does not say why: `not_drawn` is what no member got to acknowledge, because it was dropped from
# the queue, or because its member takes QoS 0.
_OUTCOMES: Final = DROP_REASONS | {
    ACKNOWLEDGED: "acked",
    NOT_DRAWN: "not_drawn",
    NOT_RECORDED: "not_recorded",
    UNNAMED: None,
}
# Each bound is a sixth above the one before, from a tenth of a millisecond on.
_GROWTH: Final = 7 / 6
_LEAST_MS: Final = 0.1
_NO_STEP: Final = -1
_KEYS_MAX: Final = 1 << 62
_GROUPS: Final = ["window_us", "client", "outcome", "step"]


@dataclass(frozen=True)
class Settled:
    """What is known of deliveries after a range. `delivered`: window_us, tenant, client_id, outcome, latency_ms,
    messages, payload_bytes; `left`: KNOWN_ENTRY rows for the next range; `changes`: those of them that are new, and GONE
    or DRAWN_GONE for what is known and not left; `waiting`: WAITING rows of the sessions that had anything in their
    queues."""

    delivered: pa.Table
    left: Rows
    changes: Rows
    waiting: Rows


@dataclass(frozen=True)
class Queued:
    """Entries of queues, or what became of them, as columns: session (by number here), serial, and more by place."""

    sessions: Integers
    serials: Integers
    times_us: Integers
    values: Integers
    """Payload bytes, or what became of it."""

    def only(self, which: Mask | Integers) -> Queued:
        return Queued(*(getattr(self, field.name)[which] for field in fields(self)))


class Queues:
    """The sessions of some clients, numbered from 0 on."""

    def __init__(self, followed: Followed, incarnations: Integers) -> None:
        self.incarnations = incarnations
        self.followed = followed
        self.which = followed.sessions_of(incarnations)
        is_known = self.which != UNKNOWN
        self.clients = np.full(len(incarnations), UNKNOWN)
        self.clients[is_known] = followed.clients[self.which[is_known]]
        self.next_serials = np.ones(len(incarnations), np.int64)
        self.next_serials[is_known] = followed.next_serials[self.which[is_known]]
        self.transient = np.zeros(len(incarnations), np.bool_)
        self.transient[is_known] = followed.transient[self.which[is_known]]
        self.ended_us = np.full(len(incarnations), NO_TIME)
        self.ended_us[is_known] = followed.ended_us[self.which[is_known]]

    def of(self, rows: Rows) -> Integers:
        return np.searchsorted(self.incarnations, rows["incarnation"])

    def numbered(self, new: Rows) -> Queued:
        """Return NEW_ENTRY rows with their serials; the sessions' next serials move on."""
        sessions = self.of(new)
        later, offsets = sessions[1:], new["offset"]
        if ((later < sessions[:-1]) | ((later == sessions[:-1]) & (offsets[1:] < offsets[:-1]))).any():
            order = np.lexsort((new["item"], offsets, sessions))
            sessions, new = sessions[order], new[order]
        bounds = edges(sessions)
        begins, counts = bounds[:-1], np.diff(bounds)
        serials = np.arange(len(new)) + np.repeat(self.next_serials[sessions[begins]] - begins, counts)
        self.next_serials[sessions[begins]] += counts
        return Queued(sessions, serials, new["publish_us"], new["payload_bytes"].astype(np.int64))


def settle(followed: Followed, known: Rows, new: Rows, outcomes: Rows, window_s: int) -> Settled:
    """Settle all that there is of some clients: rows of KNOWN_ENTRY, NEW_ENTRY and OUTCOME."""
    known = standing(known)
    given = [np.unique(rows["incarnation"]) for rows in (known, new, outcomes)]
    queues = Queues(followed, np.unique(np.concatenate(given)))
    numbered = queues.numbered(new)
    before = Queued(queues.of(known), known["serial"], known["publish_us"], known["payload_bytes"])
    was_drawn, to_member = before.values == DRAWN, outcomes["what"] == TO_MEMBER
    finished = _each(queues, outcomes[~to_member])
    member = outcomes[to_member]
    draws = _joined(
        before.only(was_drawn),
        Queued(queues.of(member), member["serial"], member["settled_us"], member["what"]),
    )
    entries = _joined(before.only(~was_drawn), numbered)
    entry_keys, finished_keys, draw_keys = _keys(len(queues.incarnations), entries, finished, draws)
    entries, entry_keys = _ordered(entries, entry_keys)
    finished, finished_keys = _first(finished, finished_keys)
    draws, draw_keys = _first(draws, draw_keys)
    at, is_there = _find(entry_keys, finished_keys)
    is_left = np.ones(len(entry_keys), np.bool_)
    is_left[at[is_there]] = False
    publish_us = np.where(is_there, _taken(entries.times_us, at, NO_TIME), NO_TIME)
    payload_bytes = np.where(is_there, _taken(entries.values, at, 0), 0)
    had = _find(draw_keys, finished_keys)[1]
    of_group = np.where(had, ACKNOWLEDGED, NOT_DRAWN)
    what = np.where(finished.values == OUT_OF_GROUP, of_group, finished.values)
    # What sessions that ended left behind; what a member of a group has in flight completes with the member.
    not_recorded = queues.transient[entries.sessions] & (entries.times_us != NO_TIME)
    over_us = np.where(not_recorded, entries.times_us, queues.ended_us[entries.sessions])
    behind = np.flatnonzero(is_left & (over_us != NO_TIME) & ~_find(draw_keys, entry_keys)[1])
    why = np.where(not_recorded[behind], NOT_RECORDED, DROP_SESSION_ENDED)
    delivered = _delivered(
        queues,
        np.concatenate([finished.sessions, entries.sessions[behind]]),
        np.concatenate([what, why]),
        np.concatenate([finished.times_us, over_us[behind]]),
        np.concatenate([publish_us, entries.times_us[behind]]),
        np.concatenate([payload_bytes, entries.values[behind]]),
        window_s,
    )
    left = entries.only(is_left & (over_us == NO_TIME) & (queues.which[entries.sessions] != UNKNOWN))
    in_flight = draws.only(~_find(finished_keys, draw_keys)[1])
    in_flight = Queued(
        in_flight.sessions, in_flight.serials, in_flight.times_us, np.full(len(in_flight.serials), DRAWN)
    )
    rows = _rows(queues, _joined(left, in_flight))
    return Settled(delivered, rows, _changes(known, rows), _waiting(queues, left))


def standing(known: Rows) -> Rows:
    """Return entries that nothing has taken away, each once: the state may have them twice, and in any order."""
    is_gone = np.isin(known["payload_bytes"], (GONE, DRAWN_GONE))
    if not is_gone.any():
        return known
    order = _by_entry(known, ~is_gone)
    first = edges(_runs(known[order]))[:-1]
    kept = order[first]
    return known[np.sort(kept[~is_gone[kept]])]


def _changes(known: Rows, left: Rows) -> Rows:
    """Return what a state needs that has the known entries, to have those that are left."""
    both = np.concatenate([known, left])
    is_left = np.arange(len(both)) >= len(known)
    order = _by_entry(both, is_left)
    runs = _runs(both[order])
    bounds = edges(runs)
    alone = order[bounds[:-1]][np.diff(bounds) == 1]
    new, gone = both[alone[is_left[alone]]], both[alone[~is_left[alone]]]
    gone["payload_bytes"] = np.where(gone["payload_bytes"] == DRAWN, DRAWN_GONE, GONE)
    return np.concatenate([new, gone])


def _by_entry(rows: Rows, then: Mask) -> Integers:
    """Return the order in which rows of one entry come together."""
    order: Integers = np.lexsort((then, _of_draws(rows), rows["serial"], rows["incarnation"]))
    return order


def _runs(rows: Rows) -> Integers:
    """Return the number of the entry that each row is about."""
    is_first: Mask = np.zeros(len(rows), np.bool_)
    for values in (rows["incarnation"], rows["serial"], _of_draws(rows)):
        is_first[1:] |= values[1:] != values[:-1]
    numbers: Integers = np.cumsum(is_first)
    return numbers


def _of_draws(rows: Rows) -> Mask:
    return np.isin(rows["payload_bytes"], (DRAWN, DRAWN_GONE))


def _each(queues: Queues, outcomes: Rows) -> Queued:
    """Return a row for each serial of the outcomes."""
    counts = outcomes["count"]
    if (counts > 1).any():
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        outcomes = np.repeat(outcomes, counts)
        serials = outcomes["serial"] + within
    else:
        serials = outcomes["serial"]
    return Queued(queues.of(outcomes), serials, outcomes["settled_us"], outcomes["what"])


def _joined(one: Queued, other: Queued) -> Queued:
    return Queued(
        *(np.concatenate([getattr(one, field.name), getattr(other, field.name)]) for field in fields(Queued))
    )


def _keys(sessions: int, *some: Queued) -> list[Integers]:
    """Return session and serial in one number, in that order."""
    serials = [each.serials for each in some]
    whole = np.concatenate(serials)
    least, greatest = int(whole.min(initial=0)), int(whole.max(initial=0))
    if least < 0 or sessions * (greatest + 1) > _KEYS_MAX:  # of a damaged journal
        ranks = np.unique(whole, return_inverse=True)[1]
        serials = np.split(ranks, np.cumsum([len(each) for each in serials])[:-1])
        greatest = len(whole)
    return [each.sessions * (greatest + 1) + serial for each, serial in zip(some, serials, strict=True)]


def _ordered(queued: Queued, keys: Integers) -> tuple[Queued, Integers]:
    if (keys[1:] > keys[:-1]).all():
        return queued, keys
    order = np.argsort(keys, kind="stable")
    return queued.only(order), keys[order]


def _first(queued: Queued, keys: Integers) -> tuple[Queued, Integers]:
    """Return the first outcome of each message: it is finished once, whatever is written about it later."""
    if (keys[1:] > keys[:-1]).all():
        return queued, keys
    order = np.lexsort((queued.times_us, keys))
    order = order[edges(keys[order])[:-1]]
    return queued.only(order), keys[order]


def _find(keys: Integers, wanted: Integers) -> tuple[Integers, Mask]:
    """Return where each wanted key is among keys in order, and whether it is there at all."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return at, keys[at] == wanted


def _taken(values: Integers, at: Integers, default: int) -> Integers:
    return values[at] if len(values) else np.full(len(at), default)


def _delivered(
    queues: Queues,
    sessions: Integers,
    what: Integers,
    settled_us: Integers,
    publish_us: Integers,
    payload_bytes: Integers,
    window_s: int,
) -> pa.Table:
    steps = np.full(len(sessions), _NO_STEP)
    known = np.flatnonzero((what == ACKNOWLEDGED) & (publish_us != NO_TIME))
    latency_ms = (settled_us[known] - publish_us[known]) / 1000
    steps[known] = np.ceil(np.log(np.maximum(latency_ms, _LEAST_MS) / _LEAST_MS) / np.log(_GROWTH))
    columns = {
        "window_us": settled_us - settled_us % (window_s * SECOND_US),
        "client": queues.clients[sessions],
        "outcome": what,
        "step": steps,
        "payload_bytes": payload_bytes,
    }
    groups = pa.table(columns).group_by(_GROUPS, use_threads=False)
    found = groups.aggregate([([], "count_all"), ("payload_bytes", "sum")])
    clients = found["client"].to_numpy()
    names = queues.followed.names.take(pa.array(clients, mask=clients == UNKNOWN))
    return pa.table(
        {
            "window_us": found["window_us"],
            "tenant": names["tenant"],
            "client_id": names["client_id"],
            "outcome": pa.array([_OUTCOMES[one] for one in found["outcome"].to_pylist()], pa.string()),
            "latency_ms": pa.array([_bound(step) for step in found["step"].to_pylist()], pa.float64()),
            "messages": found["count_all"],
            "payload_bytes": found["payload_bytes_sum"],
        }
    )


def _bound(step: int) -> float | None:
    return None if step == _NO_STEP else round(_GROWTH**step * _LEAST_MS, 3)


def _rows(queues: Queues, left: Queued) -> Rows:
    made = np.empty(len(left.serials), KNOWN_ENTRY)
    made["incarnation"] = queues.incarnations[left.sessions]
    made["serial"] = left.serials
    made["publish_us"] = left.times_us
    made["payload_bytes"] = left.values
    return made


def _waiting(queues: Queues, left: Queued) -> Rows:
    counts = np.bincount(left.sessions, minlength=len(queues.incarnations))
    latest = np.iinfo(np.int64).max
    oldest = np.full(len(queues.incarnations), latest)
    bounds = edges(left.sessions)[:-1]
    if len(bounds):
        times = np.where(left.times_us == NO_TIME, latest, left.times_us)
        oldest[left.sessions[bounds]] = np.minimum.reduceat(times, bounds)
    found: Rows = np.empty(len(counts), WAITING)
    found["incarnation"], found["next_serial"] = queues.incarnations, queues.next_serials
    found["messages"], found["oldest_us"] = counts, np.where(oldest == latest, NO_TIME, oldest)
    is_followed: Mask = queues.which != UNKNOWN
    followed: Rows = found[is_followed]
    return followed
