"""The figures of the report, read from the Delta tables without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_spark.base.lake_url import Location
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_log import Tables, types_of
from headrace_spark.lake.tables import (
    BACKLOG,
    CONNECTIONS,
    DELIVERIES,
    QUARANTINE,
    TRAFFIC,
    USAGE,
)
from headrace_spark.report.windows import LENGTH, START, Window, together, with_lengths

TOP: Final = 10
PERCENTILES: Final = (50, 95, 99)

_TABLES: Final = (TRAFFIC, DELIVERIES, CONNECTIONS, USAGE, BACKLOG, QUARANTINE)
_TIMES: Final = {
    TRAFFIC.name: ("window_start",),
    DELIVERIES.name: ("window_start",),
    CONNECTIONS.name: ("connected_timestamp", "disconnected_timestamp"),
    USAGE.name: ("hour_start",),
    BACKLOG.name: ("as_of_timestamp",),
    QUARANTINE.name: ("publish_timestamp",),
}
"""The columns that say of when rows are."""
_WHOLE: Final = (CONNECTIONS.name, BACKLOG.name)
"""Tables of which every row counts, not only those of the days."""

Counts = list[tuple[str, int]]
"""Name and number, the largest first."""


@dataclass
class Traffic:
    messages: int
    payload_bytes: int
    publishers: int
    rates: list[tuple[datetime, float]]
    """Messages a second, by window."""
    topics: Counts
    protocols: Counts
    """Messages by how they came; `?` where a headrace before frames counted them."""
    devices: int
    """Publishers of frames."""


@dataclass
class Deliveries:
    acked: int
    settled: int
    drops: Counts
    latency_ms: dict[int, float | None]
    """Percentile -> milliseconds that so many deliveries took at most."""
    latencies: dict[int, list[tuple[datetime, float]]]
    """The same, by window."""

    @property
    def accuracy(self) -> float | None:
        return self.acked / self.settled if self.settled else None


@dataclass
class Connections:
    online: int
    sessions: int
    """Connections in the period."""
    clients: int
    online_s: float
    """Connected time within the period, of all clients together."""


@dataclass
class Backlog:
    messages: int
    oldest_s: float | None
    """Age of the oldest message when the journal was last read."""
    longest: Counts


@dataclass
class Usage:
    """What one tenant has used; the fields as in table `usage`."""

    tenant: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    messages_dropped: int
    connections: int
    connected_s: float


@dataclass(frozen=True)
class Read:
    """Says what was read of one table: which version of it, and the newest time in its rows, None where it has none."""

    table: str
    version: int
    newest: datetime | None


@dataclass
class Figures:
    """Everything that the page of the report shows. A part is None where its table is missing."""

    lake: Location
    since: datetime
    made: datetime
    window: timedelta
    """Length of the longest window in which it was counted."""
    taken_s: int | None = None
    """Length in seconds that is taken for windows of which no row says it, None where all do."""
    read: list[Read] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    traffic: Traffic | None = None
    deliveries: Deliveries | None = None
    connections: Connections | None = None
    usage: list[Usage] | None = None
    backlog: Backlog | None = None
    quarantine: Counts | None = None

    @property
    def until(self) -> datetime | None:
        """Return up to when the figures go, which is the newest time that the job metrics has written; None if it has
        written none. What came later it has not read, whatever the time of the report is."""
        times = [
            each.newest for each in self.read if each.table != QUARANTINE.name and each.newest is not None
        ]
        return min(max(times), self.made) if times else None


def collect(
    lake: Location, days: int, window_s: int, now: datetime | None = None, tables: Tables | None = None
) -> Figures:
    """Return the figures of the last `days` days, today included, UTC. `tables`: how tables are read. Raises
    LakeConflict, BadOption."""
    made = now or datetime.now(UTC)
    midnight = made.replace(hour=0, minute=0, second=0, microsecond=0)
    figures = Figures(lake, midnight - timedelta(days=days - 1), made, timedelta(seconds=window_s))
    found = {
        definition.name: rows
        for definition in _TABLES
        if (rows := _rows(figures, LakeTable(lake, definition, tables))) is not None
    }
    for name in (TRAFFIC.name, DELIVERIES.name):
        if (parts := found.get(name)) is not None:
            found[name], is_taken = with_lengths(parts, window_s)
            if is_taken:
                figures.taken_s = window_s
    if (parts := found.get(TRAFFIC.name)) is not None:
        figures.traffic = _traffic(parts)
    if (parts := found.get(DELIVERIES.name)) is not None:
        figures.deliveries, figures.window = _deliveries(parts, figures.window)
    if (parts := found.get(CONNECTIONS.name)) is not None:
        figures.connections = _connections(parts, figures.since, figures.until or made)
    if (parts := found.get(USAGE.name)) is not None:
        figures.usage = _usage(parts)
    if (parts := found.get(BACKLOG.name)) is not None:
        figures.backlog = _backlog(parts)
    if (parts := found.get(QUARANTINE.name)) is not None:
        figures.quarantine = _counts(
            parts.group_by("reason").aggregate([([], "count_all")]), "reason", "count_all"
        )
    return figures


def _rows(figures: Figures, table: LakeTable) -> pa.Table | None:
    """Return the rows of a table that belong to the period, all of one that is not by the day, and note what was read;
    None where there is no such table."""
    log = table.log()
    if log is None:
        figures.missing.append(table.definition.name)
        return None
    name, known = table.definition.name, table.definition.columns.names
    columns = [column for column in types_of(log) if column in known and column != "payload"]
    since = None if name in _WHOLE else figures.since.date()
    rows = table.tables.scan(table.path, columns, since, log.version())
    times = [pc.max(rows[column]).as_py() for column in _TIMES[name]]
    newest = max((at for at in times if at is not None), default=None)
    figures.read.append(Read(name, log.version(), newest))
    return rows


def _total(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)


def _counts(table: pa.Table, name: str, number: str, top: int | None = None) -> Counts:
    pairs = zip(table[name].to_pylist(), table[number].to_pylist(), strict=True)
    return sorted(((str(what), int(count)) for what, count in pairs), key=lambda pair: (-pair[1], pair[0]))[
        :top
    ]


def _shown(parts: pa.Table) -> dict[Window, Window]:
    """Return for each window of rows the one that it is shown in."""
    found = parts.group_by([START, LENGTH]).aggregate([]).to_pylist()
    return together((row[START], timedelta(seconds=row[LENGTH])) for row in found)


def _rates(parts: pa.Table) -> list[tuple[Window, float]]:
    """Return messages a second by window, in order."""
    shown, counts = _shown(parts), Counter[Window]()
    for row in parts.group_by([START, LENGTH]).aggregate([("messages", "sum")]).to_pylist():
        counts[shown[row[START], timedelta(seconds=row[LENGTH])]] += row["messages_sum"] or 0
    return [(window, count / window[1].total_seconds()) for window, count in sorted(counts.items())]


def _traffic(parts: pa.Table) -> Traffic:
    sums = [("messages", "sum"), ("payload_bytes", "sum")]
    publishers = parts.select(["tenant", "client_id"]).group_by(["tenant", "client_id"]).aggregate([])
    return Traffic(
        _total(parts["messages"]),
        _total(parts["payload_bytes"]),
        publishers.num_rows,
        with_gaps(_rates(parts)),
        _counts(parts.group_by("topic_prefix").aggregate(sums), "topic_prefix", "messages_sum", TOP),
        *_protocols(parts),
    )


def _protocols(parts: pa.Table) -> tuple[Counts, int]:
    """Return messages by protocol, and how many publishers have sent frames."""
    if "protocol" not in parts.column_names:  # no job of this headrace has written the table yet
        return [("?", _total(parts["messages"]))] if parts.num_rows else [], 0
    named = parts.set_column(
        parts.column_names.index("protocol"), "protocol", pc.fill_null(parts["protocol"], "?")
    )
    by_name = named.group_by("protocol").aggregate([("messages", "sum")])
    devices = named.filter(pc.equal(named["protocol"], "frame")).group_by(["tenant", "client_id"])
    return _counts(by_name, "protocol", "messages_sum"), devices.aggregate([]).num_rows


def with_gaps(rates: list[tuple[Window, float]]) -> list[tuple[datetime, float]]:
    """Return where nothing was published there is no row: a zero at both ends of such a gap, so that a line falls to
    it."""
    filled: list[tuple[datetime, float]] = []
    end: datetime | None = None
    for (at, length), rate in rates:
        if end is not None and at > end:
            filled += [(end, 0.0), (max(end, at - length), 0.0)]
        filled.append((at, rate))
        end = at + length
    return filled


def _deliveries(parts: pa.Table, window: timedelta) -> tuple[Deliveries, timedelta]:
    """Return what became of messages, and the length of the longest window; `window` where there is none."""
    outcomes = _counts(parts.group_by("outcome").aggregate([("messages", "sum")]), "outcome", "messages_sum")
    outcomes = [pair for pair in outcomes if pair[0] != "not_recorded"]  # nobody knows
    acked = dict(outcomes).get("acked", 0)
    timed = parts.filter(pc.is_valid(parts["latency_ms"])).select([START, LENGTH, "latency_ms", "messages"])
    shown = _shown(parts)
    cells = timed.group_by([START, LENGTH, "latency_ms"]).aggregate([("messages", "sum")])
    by_window: dict[datetime, dict[float, int]] = {}
    whole: dict[float, int] = {}
    for row in cells.to_pylist():
        count = row["messages_sum"]
        start, _ = shown[row[START], timedelta(seconds=row[LENGTH])]
        counts = by_window.setdefault(start, {})
        counts[row["latency_ms"]] = counts.get(row["latency_ms"], 0) + count
        whole[row["latency_ms"]] = whole.get(row["latency_ms"], 0) + count
    found = Deliveries(
        acked,
        sum(count for _, count in outcomes),
        [pair for pair in outcomes if pair[0] != "acked"],
        {share: percentile(whole, share) for share in PERCENTILES},
        {
            share: [(at, percentile(counts, share) or 0.0) for at, counts in sorted(by_window.items())]
            for share in PERCENTILES
        },
    )
    return found, max((length for _, length in shown.values()), default=window)


def percentile(counts: Mapping[float, int], share: int) -> float | None:
    """Return the bound below which `share` percent of the counted lie; None if nothing was counted."""
    wanted = sum(counts.values()) * share / 100
    so_far = 0
    for bound, count in sorted(counts.items()):
        so_far += count
        if so_far >= wanted:
            return bound
    return None


def _connections(rows: pa.Table, since: datetime, until: datetime) -> Connections:
    inside: list[tuple[str, float]] = []
    online: set[str] = set()
    names: Iterable[Sequence[Any]] = zip(
        *(
            rows[name].to_pylist()
            for name in ("tenant", "client_id", "connected_timestamp", "disconnected_timestamp")
        ),
        strict=True,
    )
    for tenant, client_id, begin, end in names:
        client = f"{tenant}/{client_id}"
        if end is None:
            online.add(client)
        last = until if end is None else max(begin, end)  # a clock may have been set back meanwhile
        seconds = (min(last, until) - max(begin, since)).total_seconds()
        if seconds >= 0:
            inside.append((client, seconds))
    return Connections(
        len(online), len(inside), len({client for client, _ in inside}), sum(seconds for _, seconds in inside)
    )


def _usage(parts: pa.Table) -> list[Usage]:
    """Return the usage by tenant, those that published most first."""
    measures = [measure.name for measure in fields(Usage)[1:]]
    sums = parts.group_by("tenant").aggregate([(name, "sum") for name in measures]).to_pylist()
    tenants = [Usage(str(row["tenant"]), *(row[f"{name}_sum"] for name in measures)) for row in sums]
    return sorted(tenants, key=lambda used: (-used.messages_in, used.tenant))


def _backlog(rows: pa.Table) -> Backlog:
    ages = [
        (row["as_of_timestamp"] - row["oldest_timestamp"]).total_seconds()
        for row in rows.select(["as_of_timestamp", "oldest_timestamp"]).to_pylist()
        if row["oldest_timestamp"] is not None and row["as_of_timestamp"] is not None
    ]
    longest = [(f"{row['tenant']}/{row['client_id']}", row["messages"]) for row in rows.to_pylist()]
    return Backlog(
        _total(rows["messages"]), max(ages, default=None), sorted(longest, key=lambda pair: -pair[1])[:TOP]
    )
