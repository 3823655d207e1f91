"""Sessions of the job `metrics` as rows and columns: out of its state, for its workers, and into its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_spark.lake.tables import BACKLOG, CONNECTIONS, METRICS_STATE, as_dates
from headrace_spark.metrics.deliveries import Waiting
from headrace_spark.metrics.packing import NEW_ENTRY, NO_TIME
from headrace_spark.metrics.queues import Followed
from headrace_spark.metrics.sessions import FOREVER, Connection, Sessions
from headrace_spark.records.chunk import Integers

_LOADED: Final = [
    "kind", "incarnation", "tenant", "client_id", "next_serial", "connected_offset", "connected_timestamp",
    "topic_filter", "no_local",
]  # fmt: skip
_US: Final = pa.timestamp("us", "UTC")


def state_of(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield sessions and subscriptions in files of `metrics_state`, times in microseconds."""
    wanted = [("kind", "in", ["session", "subscription"])]
    for file in files:
        rows = pq.read_table(file, columns=_LOADED, filters=wanted, partitioning=None)
        yield from in_us(rows, "connected_timestamp").to_pylist()


def in_us(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows with a column of times as numbers."""
    numbers = rows[name].cast(_US).cast(pa.int64())
    return rows.set_column(rows.schema.get_field_index(name), name, numbers)


def followed_of(sessions: Sessions) -> Followed:
    """Return what workers are told."""
    everyone = sorted(sessions.all.items())
    numbers: dict[tuple[str | None, str | None], int] = {}
    clients = [numbers.setdefault((one.tenant, one.client_id), len(numbers)) for _, one in everyone]
    places = {incarnation: place for place, (incarnation, _) in enumerate(everyone)}
    # Members of a group take from its queue, and have none of their own for it.
    subscriptions = [one for one in sessions.subscriptions if not one.is_shared]
    retained = np.zeros(len(sessions.retained), NEW_ENTRY)
    for place, name in enumerate(("incarnation", "offset", "item")):
        retained[name] = [one[place] for one in sessions.retained]
    retained["publish_us"] = NO_TIME  # published long ago: no latency to speak of
    return Followed(
        incarnations=_integers(incarnation for incarnation, _ in everyone),
        clients=_integers(clients),
        next_serials=_integers(one.next_serial for _, one in everyone),
        transient=np.array([one.is_transient for _, one in everyone], np.bool_),
        ended_us=_integers(NO_TIME if one.ended_us is None else one.ended_us for _, one in everyone),
        names=pa.table(_names(numbers)),
        filters=pa.array([one.topic_filter for one in subscriptions], pa.string()),
        subscribers=_integers(places[one.incarnation] for one in subscriptions),
        begins=_integers(one.begin for one in subscriptions),
        untils=_integers(one.until for one in subscriptions),
        no_local=np.array([one.no_local for one in subscriptions], np.bool_),
        retained=retained,
    )


def connection_rows(connections: Sequence[Connection], journal_uuid: str) -> pa.RecordBatch:
    """Return rows of `connections`."""
    times = _integers(one.connected_us for one in connections)
    return CONNECTIONS.rows(
        journal_uuid,
        **_names([(one.tenant, one.client_id) for one in connections]),
        incarnation=pa.array([one.incarnation for one in connections], pa.int64()),
        connected_offset=pa.array([one.connected_offset for one in connections], pa.int64()),
        end=pa.array([one.end for one in connections], pa.string()),
        connected_timestamp=pa.array(times).cast(_US),
        disconnected_timestamp=pa.array([one.disconnected_us for one in connections], pa.int64()).cast(_US),
        date=as_dates(times),
    )


def backlog_rows(
    sessions: Sessions, waiting: Iterable[Waiting], as_of_us: int, journal_uuid: str
) -> pa.RecordBatch:
    """Return rows of `backlog`."""
    found: defaultdict[tuple[str | None, str | None], list[Waiting]] = defaultdict(list)
    for one in waiting:
        if one.messages:
            session = sessions.all[one.incarnation]
            found[session.tenant, session.client_id].append(one)
    oldest = [
        min((one.oldest_us for one in some if one.oldest_us is not None), default=None)
        for some in found.values()
    ]
    return BACKLOG.rows(
        journal_uuid,
        messages=pa.array([sum(one.messages for one in some) for some in found.values()], pa.int64()),
        oldest_timestamp=pa.array(oldest, pa.int64()).cast(_US),
        as_of_timestamp=pa.repeat(pa.scalar(as_of_us).cast(_US), len(found)),
        **_names(found),
    )


def state_rows(sessions: Sessions, waiting: Iterable[Waiting], journal_uuid: str) -> Iterator[pa.RecordBatch]:
    """Yield rows of `metrics_state`: sessions that are left, and their subscriptions."""
    next_serials = {one.incarnation: one.next_serial for one in waiting}
    left = sessions.left
    online = [sessions.online(incarnation) for incarnation in left]
    yield METRICS_STATE.rows(
        journal_uuid,
        kind=pa.repeat("session", len(left)),
        incarnation=pa.array(left, pa.int64()),
        next_serial=pa.array(
            [
                next_serials.get(key, one.next_serial) * (-1 if one.is_transient else 1)
                for key, one in left.items()
            ],
            pa.int64(),
        ),
        connected_offset=pa.array([one and one.connected_offset for one in online], pa.int64()),
        connected_timestamp=pa.array([one and one.connected_us for one in online], pa.int64()).cast(_US),
        **_names([(one.tenant, one.client_id) for one in left.values()]),
    )
    subscriptions = [
        one for one in sessions.subscriptions if one.until == FOREVER and one.incarnation in left
    ]
    yield METRICS_STATE.rows(
        journal_uuid,
        kind=pa.repeat("subscription", len(subscriptions)),
        incarnation=pa.array([one.incarnation for one in subscriptions], pa.int64()),
        topic_filter=pa.array([one.topic_filter for one in subscriptions], pa.string()),
        no_local=pa.array([one.no_local for one in subscriptions], pa.bool_()),
    )


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _names(names: Collection[tuple[str | None, str | None]]) -> dict[str, pa.Array]:
    """Return the columns tenant and client_id."""
    return {
        name: pa.array([pair[place] for pair in names], pa.string())
        for place, name in enumerate(("tenant", "client_id"))
    }
