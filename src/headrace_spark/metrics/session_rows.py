"""Sessions of the job `metrics` as columns: for its workers, into its state, and into its tables. Runs on the driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.mqtt.topics import SHARE_PREFIX
from headrace_spark.lake.tables import BACKLOG, CONNECTIONS, METRICS_STATE, as_dates, as_times
from headrace_spark.metrics.packing import NEW_ENTRY, NO_TIME, Rows, edges
from headrace_spark.metrics.queues import Followed
from headrace_spark.metrics.remembered import OFFLINE, Remembered
from headrace_spark.metrics.sessions import BEFORE, FOREVER, Connection, Session, Sessions, Subscription
from headrace_spark.records.chunk import Integers, Mask

_US: Final = pa.timestamp("us", "UTC")


def in_us(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows with a column of times as numbers."""
    numbers = rows[name].cast(_US).cast(pa.int64())
    return rows.set_column(rows.schema.get_field_index(name), name, numbers)


def followed_of(sessions: Sessions) -> Followed:
    """Return what workers are told: of sessions that no event was about, column by column."""
    known, met = sessions.remembered, sessions.met
    rows = np.flatnonzero(not_met(sessions, known.incarnations))
    incarnations = np.concatenate([known.incarnations[rows], _integers(met)])
    serials = np.concatenate([known.next_serials[rows], _integers(map(_signed, met.values()))])
    ended = (NO_TIME if one.ended_us is None else one.ended_us for one in met.values())
    ended_us = np.concatenate([np.full(len(rows), NO_TIME), _integers(ended)])
    order = np.argsort(incarnations, kind="stable")
    tenants, client_ids = (
        pa.concat_arrays([column.take(pa.array(rows)), met_names]).take(pa.array(order))
        for column, met_names in zip(
            (known.tenants, known.client_ids), _names(_clients(met.values())).values(), strict=True
        )
    )
    clients, names = numbered(tenants, client_ids)
    return Followed(
        incarnations=incarnations[order],
        clients=clients,
        next_serials=np.abs(serials[order]),
        transient=serials[order] < 0,
        ended_us=ended_us[order],
        names=names,
        retained=_retained(sessions),
        **_subscriptions(sessions, incarnations[order], tenants),
    )


def not_met(sessions: Sessions, incarnations: Integers) -> Mask:
    """Return which of these sessions no event was about."""
    return ~np.isin(incarnations, _integers(sessions.met))


def numbered(tenants: pa.StringArray, client_ids: pa.StringArray) -> tuple[Integers, pa.Table]:
    """Return a number for each client, in the order in which they first come, and their names by number."""
    codes = [names.dictionary_encode("encode") for names in (tenants, client_ids)]
    pairs = codes[0].indices.to_numpy().astype(np.int64) * (len(codes[1].dictionary) + 1)
    _, first, where = np.unique(pairs + codes[1].indices.to_numpy(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    firsts = pa.array(first[order])
    return numbers[where], pa.table({"tenant": tenants.take(firsts), "client_id": client_ids.take(firsts)})


def _subscriptions(sessions: Sessions, incarnations: Integers, tenants: pa.StringArray) -> dict[str, Any]:
    """Return the columns of `Followed` about subscriptions: those of one filter come after each other."""
    known = sessions.remembered
    # Members of a group take from its queue, and have none of their own for it.
    shared = pc.starts_with(known.filters, SHARE_PREFIX).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(not_met(sessions, known.subscribers) & ~shared)
    own = [one for one in sessions.subscriptions if not one.is_shared]
    filters = pa.concat_arrays(
        [known.filters.take(pa.array(rows)), pa.array([one.topic_filter for one in own], pa.string())]
    )
    subscribers = np.searchsorted(
        incarnations,
        np.concatenate([known.subscribers[rows], _integers(one.incarnation for one in own)]),
    )
    groups, unique = numbered(tenants.take(pa.array(subscribers)), filters)
    order = np.argsort(groups, kind="stable")
    begins = [np.full(len(rows), BEFORE), _integers(one.begin for one in own)]
    untils = [np.full(len(rows), FOREVER), _integers(one.until for one in own)]
    no_local = [known.no_local[rows], np.array([one.no_local for one in own], np.bool_)]
    return {
        "filters": unique["client_id"].combine_chunks(),
        "filter_tenants": unique["tenant"].combine_chunks(),
        "firsts": edges(groups[order]),
        "subscribers": subscribers[order],
        "begins": np.concatenate(begins)[order],
        "untils": np.concatenate(untils)[order],
        "no_local": np.concatenate(no_local)[order],
    }


def _retained(sessions: Sessions) -> Rows:
    retained = np.zeros(len(sessions.retained), NEW_ENTRY)
    for place, name in enumerate(("incarnation", "offset", "item", "payload_bytes")):
        retained[name] = [one[place] for one in sessions.retained]
    retained["publish_us"] = NO_TIME  # published long ago: no latency to speak of
    return retained


def connection_rows(sessions: Sessions, journal_uuid: str) -> pa.RecordBatch:
    """Return rows of `connections`: those that began or ended in this range."""
    changed = [one for one in sessions.connections if one.is_new or one.disconnected_us is not None]
    parts = [_of_connections(changed), *_of_those_cut_off(sessions)]
    rows = pa.concat_tables(parts).combine_chunks()
    times = rows["connected_us"].to_numpy()
    return CONNECTIONS.rows(
        journal_uuid,
        **{
            name: _whole(rows, name)
            for name in ("tenant", "client_id", "incarnation", "connected_offset", "end")
        },
        connected_timestamp=as_times(times),
        disconnected_timestamp=_whole(rows, "disconnected_us").cast(_US),
        date=as_dates(times),
    )


def _of_connections(connections: Collection[Connection]) -> pa.Table:
    kinds = (
        ("incarnation", pa.int64()),
        ("connected_offset", pa.int64()),
        ("connected_us", pa.int64()),
        ("disconnected_us", pa.int64()),
        ("end", pa.string()),
    )
    names = _names((one.tenant, one.client_id) for one in connections)
    return pa.table(
        names | {name: pa.array([getattr(one, name) for one in connections], kind) for name, kind in kinds}
    )


def _of_those_cut_off(sessions: Sessions) -> Iterator[pa.Table]:
    """Yield the connections that ended because the broker started again, of sessions that are not met."""
    known = sessions.remembered
    for rows, at_us in sessions.cut_off:
        places = pa.array(rows)
        columns = {"tenant": known.tenants.take(places), "client_id": known.client_ids.take(places)}
        columns["incarnation"] = pa.array(known.incarnations[rows])
        columns["connected_offset"] = pa.array(known.connected_offsets[rows])
        columns["connected_us"] = pa.array(known.connected_us[rows])
        columns["disconnected_us"] = pa.array(np.full(len(rows), at_us))
        columns["end"] = pa.repeat("broker_started", len(rows))
        yield pa.table(columns)


def backlog_rows(followed: Followed, waiting: Rows, as_of_us: int, journal_uuid: str) -> pa.RecordBatch:
    """Return rows of `backlog`, from WAITING rows."""
    some = waiting[waiting["messages"] > 0]
    clients = followed.clients_of(some["incarnation"])
    columns = {"client": clients, "messages": some["messages"]}
    columns["oldest"] = pa.array(some["oldest_us"], mask=some["oldest_us"] == NO_TIME)
    groups = pa.table(columns).group_by("client", use_threads=False)
    found = groups.aggregate([("messages", "sum"), ("oldest", "min")])
    names = followed.names.take(found["client"])
    as_of = pa.scalar(None if as_of_us == NO_TIME else as_of_us, pa.int64()).cast(_US)
    return BACKLOG.rows(
        journal_uuid,
        tenant=_whole(names, "tenant"),
        client_id=_whole(names, "client_id"),
        messages=_whole(found, "messages_sum"),
        oldest_timestamp=_whole(found, "oldest_min").cast(_US),
        as_of_timestamp=pa.repeat(as_of, found.num_rows),
    )


def state_rows(
    sessions: Sessions, waiting: Rows, journal_uuid: str, up_to_offset: int, whole: bool
) -> Iterator[pa.RecordBatch]:
    """Yield rows of `metrics_state` about sessions and subscriptions: what changed, or the whole."""
    for rows in (
        _known_rows(sessions, waiting, whole),
        _met_rows(sessions, waiting, whole),
        *(_known_subscriptions(sessions) if whole else ()),
        _met_subscriptions(sessions, whole),
    ):
        count = len(rows["incarnation"])
        if count:
            written = pa.array(np.full(count, up_to_offset))
            yield METRICS_STATE.rows(journal_uuid, **rows, up_to_offset=written)


def _known_rows(sessions: Sessions, waiting: Rows, whole: bool) -> dict[str, pa.Array]:
    """Return rows of sessions that no event was about: they changed if something went into their queues, or if they
    were cut off."""
    known = sessions.remembered
    changed = np.full(len(known.incarnations), whole)
    serials, connected = known.next_serials.copy(), known.connected_offsets.copy()
    at, is_known = places(known, waiting["incarnation"])
    signs = np.where(serials[at] < 0, -1, 1)
    moved = waiting["next_serial"][is_known] * signs
    changed[at] |= serials[at] != moved
    serials[at] = moved
    for rows, _ in sessions.cut_off:
        connected[rows] = OFFLINE
        changed[rows] = True
    rows = np.flatnonzero(changed & not_met(sessions, known.incarnations))
    taken, offline = pa.array(rows), connected[rows] == OFFLINE
    return {
        "kind": pa.repeat("session", len(rows)),
        "incarnation": pa.array(known.incarnations[rows]),
        "tenant": known.tenants.take(taken),
        "client_id": known.client_ids.take(taken),
        "next_serial": pa.array(serials[rows]),
        "connected_offset": pa.array(connected[rows], mask=offline),
        "connected_timestamp": as_times(known.connected_us[rows], offline),
    }


def places(known: Remembered, incarnations: Integers) -> tuple[Integers, Mask]:
    """Return the places of those incarnations that are known, and which ones are."""
    if not len(known.incarnations):
        return np.empty(0, np.int64), np.zeros(len(incarnations), np.bool_)
    at = np.minimum(np.searchsorted(known.incarnations, incarnations), len(known.incarnations) - 1)
    is_known = known.incarnations[at] == incarnations
    return at[is_known], is_known


def _met_rows(sessions: Sessions, waiting: Rows, whole: bool) -> dict[str, pa.Array]:
    """Return rows of sessions that events were about; those that ended are gone, if they were known."""
    order = np.argsort(waiting["incarnation"], kind="stable")
    incarnations, serials = waiting["incarnation"][order], waiting["next_serial"][order]
    rows: list[tuple[int, Session]] = [
        (incarnation, one)
        for incarnation, one in sessions.met.items()
        if one.ended_us is None or not (whole or sessions.remembered.row_of(incarnation) is None)
    ]
    own = _integers(incarnation for incarnation, _ in rows)
    next_serials = _integers(_signed(one) for _, one in rows)
    if len(incarnations):
        at = np.minimum(np.searchsorted(incarnations, own), len(incarnations) - 1)
        signs = np.where(next_serials < 0, -1, 1)
        next_serials = np.where(incarnations[at] == own, serials[at] * signs, next_serials)
    online = [sessions.online(incarnation) for incarnation, _ in rows]
    return {
        "kind": pa.repeat("session", len(rows)),
        "incarnation": pa.array(own),
        "next_serial": pa.array(next_serials),
        "connected_offset": pa.array([one and one.connected_offset for one in online], pa.int64()),
        "connected_timestamp": pa.array([one and one.connected_us for one in online], pa.int64()).cast(_US),
        "gone": pa.array([one.ended_us is not None for _, one in rows], pa.bool_()),
        **_names(_clients(one for _, one in rows)),
    }


def _known_subscriptions(sessions: Sessions) -> Iterator[dict[str, pa.Array]]:
    known = sessions.remembered
    rows = np.flatnonzero(not_met(sessions, known.subscribers))
    yield {
        "kind": pa.repeat("subscription", len(rows)),
        "incarnation": pa.array(known.subscribers[rows]),
        "topic_filter": known.filters.take(pa.array(rows)),
        "no_local": pa.array(known.no_local[rows]),
    }


def _met_subscriptions(sessions: Sessions, whole: bool) -> dict[str, pa.Array]:
    """Return rows of subscriptions of sessions that events were about and that are left."""
    left = sessions.left
    begun: dict[tuple[int, str], Subscription] = {}
    ended: set[tuple[int, str]] = set()
    for one in sessions.subscriptions:
        key = one.incarnation, one.topic_filter
        if one.incarnation in left and one.until == FOREVER and (whole or one.begin != BEFORE):
            begun[key] = one
        if one.incarnation in left and one.until != FOREVER and one.begin == BEFORE and not whole:
            ended.add(key)
    rows = [(key, one.no_local, False) for key, one in begun.items()]
    current = {(one.incarnation, one.topic_filter) for one in sessions.subscriptions if one.until == FOREVER}
    rows += [(key, False, True) for key in ended - current]
    return {
        "kind": pa.repeat("subscription", len(rows)),
        "incarnation": pa.array([key[0] for key, _, _ in rows], pa.int64()),
        "topic_filter": pa.array([key[1] for key, _, _ in rows], pa.string()),
        "no_local": pa.array([no_local for _, no_local, _ in rows], pa.bool_()),
        "gone": pa.array([gone for _, _, gone in rows], pa.bool_()),
    }


def _signed(session: Session) -> int:
    """Return the number of its next message as the state has it."""
    return -session.next_serial if session.is_transient else session.next_serial


def _clients(sessions: Iterable[Session]) -> Iterator[tuple[str | None, str | None]]:
    return ((one.tenant, one.client_id) for one in sessions)


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _names(names: Iterable[tuple[str | None, str | None]]) -> dict[str, pa.Array]:
    """Return the columns tenant and client_id."""
    pairs = list(names)
    return {
        name: pa.array([pair[place] for pair in pairs], pa.string())
        for place, name in enumerate(("tenant", "client_id"))
    }


def _whole(rows: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece."""
    column = rows[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
