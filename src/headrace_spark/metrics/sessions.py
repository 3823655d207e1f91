"""What the job `metrics` knows of sessions: a fold over the events of one range, in journal order.

Connections, subscriptions as intervals of offsets, and the groups of shared subscriptions. A group has one queue, which
it numbers as a session numbers its own (decision 13). So each group is a session whose client is
`$share/<name>/<filter>`, opened by its first member, subscribed to the filter, and ended with its last member. Its
incarnation is its group id, below zero, where it cannot be taken for an offset.

Of several shards, a group is at home in one (ADR 0022), and its queue is in that one's journal alone. There its members
of other shards have stand-ins, which are members as all others and no clients: they have no connections.

Sessions that began before the first range that was read (a journal that `headrace reshard` has made begins with some) are
met when their client connects, and what is in their queues is not known; nor is it where records are gone between two
ranges. Of such sessions (`UNNUMBERED`) what is acknowledged is counted, without a latency, and nothing waits. Runs on the
driver.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.mqtt.topics import SHARE_PREFIX, split_share
from headrace_spark.metrics.remembered import Remembered
from headrace_spark.records.chunk import Integers
from headrace_spark.source.journal_range import ALONE, Place

FOREVER: Final = (1 << 63) - 1
UNNUMBERED: Final = 0
"""The next serial of a session of which it is not known."""
BEFORE: Final = -1
"""Where subscriptions begin that are older than the range."""
EVENTS_READ: Final = (
    "kind", "tenant", "client_id", "incarnation", "topic_filter", "qos", "no_local", "event_timestamp",
    "journal_offset", "item", "session_expiry_s", "payload_bytes", "sent_limit",
)  # fmt: skip

Row = Mapping[str, Any]
Group = tuple[str | None, str]
"""Tenant and `$share/<name>/<filter>`."""


def group_of(group_id: int) -> int:
    """Return the incarnation that stands for a group."""
    return -group_id


@dataclass(slots=True)
class Session:
    """Stands for a session or a group. `next_serial`: of its next message; `ended_us`: when it ended in this range.

    What a transient one (it ends with its connection) acknowledges, the journal does not hear.
    """

    tenant: str | None
    client_id: str | None
    next_serial: int
    is_transient: bool = False
    ended_us: int | None = None


@dataclass(slots=True)
class Subscription:
    """A subscription of a session whose messages are queued, from `begin` to below `until`."""

    incarnation: int
    topic_filter: str
    no_local: bool
    begin: int
    until: int = FOREVER

    @property
    def is_shared(self) -> bool:
        return self.topic_filter.startswith(SHARE_PREFIX)


@dataclass(slots=True)
class Connection:
    """One connection of a session. `end`: what ended it; None as long as it is online. `is_new`: it began in this
    range."""

    tenant: str | None
    client_id: str | None
    incarnation: int
    connected_offset: int
    connected_us: int
    is_new: bool
    disconnected_us: int | None = None
    end: str | None = None


class Sessions:
    """The sessions of one range: they begin as earlier ranges left them, then `apply` what happened.

    Only sessions that an event is about become objects (`met`); the others stay columns, however many they are.
    """

    def __init__(self, remembered: Remembered, place: Place = ALONE) -> None:
        self._place = place
        remembered = at_home(remembered, place)
        self.remembered = remembered
        self.met: dict[int, Session] = {}
        """Those that an event of this range is about, by incarnation."""
        self.connections: list[Connection] = []
        """All that these had at any time in this range."""
        self.subscriptions: list[Subscription] = []
        """All that these had in this range, those of before from offset -1 on."""
        self.retained: list[tuple[int, int, int, int]] = []
        """Retained messages put into queues: incarnation, offset and item of the event, bytes of the payload, which
        older journals do not say: 0."""
        self.cut_off: list[tuple[Integers, int]] = []
        """Places of sessions that were online when the broker started again, and when that was."""
        self._is_online = remembered.is_online.copy()
        self._online: dict[int, Connection] = {}
        self._subscribed: defaultdict[int, dict[str, Subscription]] = defaultdict(dict)
        self._members = members_of(remembered)
        self._groups = groups_of(remembered)
        self._unnumbered = unnumbered_of(remembered)

    def session(self, incarnation: int) -> Session | None:
        """Return a session as it is now, None if it is not followed."""
        found = self.met.get(incarnation)
        if found is None and (row := self.remembered.row_of(incarnation)) is not None:
            found = self._recall(row)
        return found

    def _recall(self, row: int) -> Session:
        """Make a session that an earlier range left an object, with its connection and its subscriptions."""
        known = self.remembered
        incarnation, serial = int(known.incarnations[row]), int(known.next_serials[row])
        tenant, client_id = known.tenants[row].as_py(), known.client_ids[row].as_py()
        session = self.met[incarnation] = Session(tenant, client_id, abs(serial), serial < 0)
        if self._is_online[row]:
            offset, at_us = int(known.connected_offsets[row]), int(known.connected_us[row])
            self._connect(Connection(tenant, client_id, incarnation, offset, at_us, is_new=False))
            self._is_online[row] = False
        for at in known.subscriptions_of(incarnation):
            topic_filter = known.filters[at].as_py()
            subscription = Subscription(incarnation, topic_filter, bool(known.no_local[at]), BEFORE)
            self._subscribed[incarnation][topic_filter] = subscription
            self.subscriptions.append(subscription)
        return session

    @property
    def left(self) -> dict[int, Session]:
        """Return those of `met` that are there at the end."""
        return {incarnation: session for incarnation, session in self.met.items() if session.ended_us is None}

    def online(self, incarnation: int) -> Connection | None:
        """Return whether the session is connected at the end."""
        return self._online.get(incarnation)

    def apply(self, row: Row) -> None:
        """Apply one row of `events`, times in microseconds; they come in journal order."""
        act = _ACTIONS.get(row["kind"])
        if act is not None:
            act(self, row)

    def _broker_started(self, row: Row) -> None:
        """Apply that the broker has started again: a crash is not recorded, but this is."""
        for connection in self._online.values():
            connection.disconnected_us, connection.end = row["event_timestamp"], row["kind"]
        self._online.clear()
        rows = np.flatnonzero(self._is_online)
        if len(rows):
            self.cut_off.append((rows, row["event_timestamp"]))
            self._is_online[:] = False

    def _opened(self, row: Row) -> None:
        self.met[row["incarnation"]] = Session(row["tenant"], row["client_id"], 1)
        self._connected(row)

    def _connected(self, row: Row) -> None:
        incarnation = row["incarnation"]
        self._disconnect(row)
        session = self.session(incarnation)
        tenant, client_id = row["tenant"], row["client_id"]
        if session is None and client_id is not None:  # it is older than what was read
            session = self.met[incarnation] = Session(tenant, client_id, UNNUMBERED)
        if session is not None:
            session.is_transient = row["session_expiry_s"] == 0
        if session is not None and client_id is None:  # early journals name them where the session opens
            tenant, client_id = session.tenant, session.client_id
        if is_stand_in(client_id) or is_away(row):
            return
        offset, at_us = row["journal_offset"], row["event_timestamp"]
        self._connect(Connection(tenant, client_id, incarnation, offset, at_us, is_new=True))

    def _connect(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._online[connection.incarnation] = connection

    def _end_earlier(self, row: Row) -> None:
        """End the session of the same client that must have ended where nothing was read."""
        client = row.get("tenant"), str(row.get("client_id"))
        before = self._unnumbered.get(client)
        if before is not None and before != row["incarnation"]:
            del self._unnumbered[client]
            self._ended({**row, "kind": "session_ended", "incarnation": before})

    def _disconnect(self, row: Row) -> None:
        self._end_earlier(row)
        self.session(row["incarnation"])
        connection = self._online.pop(row["incarnation"], None)
        if connection is not None:
            connection.disconnected_us = row["event_timestamp"]
            connection.end = row["kind"].removeprefix("session_")

    def _ended(self, row: Row) -> None:
        self._disconnect(row)
        self._end(row["incarnation"], row["journal_offset"], row["event_timestamp"])

    def _end(self, incarnation: int, offset: int, at_us: int) -> None:
        session = self.session(incarnation)
        if session is None or session.ended_us is not None:
            return
        session.ended_us = at_us
        for topic_filter in list(self._subscribed[incarnation]):
            self._unsubscribe(incarnation, topic_filter, offset, at_us)

    def _subscribed_to(self, row: Row) -> None:
        incarnation, topic_filter, offset = row["incarnation"], row["topic_filter"], row["journal_offset"]
        session = self.session(incarnation)
        if session is None or session.ended_us is not None:
            return
        if session.next_serial == UNNUMBERED and not topic_filter.startswith(SHARE_PREFIX):
            return
        # A member of a group may take QoS 0: the group has a queue all the same.
        if row["qos"] > 0 or topic_filter.startswith(SHARE_PREFIX):
            self._subscribe(session, incarnation, topic_filter, bool(row["no_local"]), offset, row["item"])
        else:
            self._unsubscribe(incarnation, topic_filter, offset, row["event_timestamp"])

    def _subscribe(
        self, session: Session, incarnation: int, topic_filter: str, no_local: bool, begin: int, item: int
    ) -> None:
        subscription = Subscription(incarnation, topic_filter, no_local, begin)
        before = self._subscribed[incarnation].get(topic_filter)
        if before is not None:
            before.until = begin
        self._subscribed[incarnation][topic_filter] = subscription
        self.subscriptions.append(subscription)
        if subscription.is_shared and before is None:
            self._join((session.tenant, topic_filter), begin, item)

    def _join(self, group: Group, begin: int, item: int) -> None:
        """Count a member of a group that is at home here; with the first one the group begins."""
        if not is_at_home(group, self._place):
            return
        self._members[group] += 1
        if self._members[group] == 1:
            number = group_of((begin << 16) + item)
            self._groups[group] = number
            session = self.met[number] = Session(*group, 1)
            self._subscribe(session, number, split_share(group[1])[1], False, begin, 0)

    def _unsubscribed_from(self, row: Row) -> None:
        self._unsubscribe(
            row["incarnation"], row["topic_filter"], row["journal_offset"], row["event_timestamp"]
        )

    def _unsubscribe(self, incarnation: int, topic_filter: str, offset: int, at_us: int) -> None:
        session = self.session(incarnation)
        subscription = self._subscribed[incarnation].pop(topic_filter, None)
        if subscription is None:
            return
        subscription.until = offset
        if subscription.is_shared and session is not None:
            group = session.tenant, topic_filter
            if not is_at_home(group, self._place):
                return
            self._members[group] -= 1
            if not self._members[group] and group in self._groups:
                self._end(self._groups.pop(group), offset, at_us)

    def _queued(self, row: Row) -> None:
        session = self.session(row["incarnation"])
        if row["qos"] > 0 and session is not None and session.next_serial != UNNUMBERED:
            payload_bytes = row["payload_bytes"] or 0
            self.retained.append((row["incarnation"], row["journal_offset"], row["item"], payload_bytes))


def is_stand_in(client_id: str | None) -> bool:
    """Return whether this stands for a member of groups whose session another shard has."""
    return client_id is not None and client_id.startswith(MEMBER_PREFIX)


def is_away(row: Row) -> bool:
    """Return whether a session was opened for nobody who is connected, to whom at least some messages may be sent: by
    `serve --bootstrap`, which brings the sessions of another journal, or for a bridge."""
    return row["kind"] == "session_opened" and row.get("sent_limit") == 0


def is_at_home(group: Group, place: Place) -> bool:
    """Return whether a group has its queue in the journal of this shard."""
    tenant, name = group
    if place.shards == 1 or tenant is None:  # early journals name no tenant: they are of one shard
        return True
    return Homes(place.shards).of_group(tenant, *split_share(name)) == place.shard


def at_home(remembered: Remembered, place: Place) -> Remembered:
    """Return what is remembered without the groups of other shards, which an older headrace took for ones of its own: all
    that was published for them waited in them for good."""
    strange = [number for group, number in groups_of(remembered).items() if not is_at_home(group, place)]
    if not strange:
        return remembered
    sessions = ~np.isin(remembered.incarnations, strange)
    subscriptions = ~np.isin(remembered.subscribers, strange)
    return replace(
        remembered,
        incarnations=remembered.incarnations[sessions],
        tenants=remembered.tenants.filter(pa.array(sessions)),
        client_ids=remembered.client_ids.filter(pa.array(sessions)),
        next_serials=remembered.next_serials[sessions],
        connected_offsets=remembered.connected_offsets[sessions],
        connected_us=remembered.connected_us[sessions],
        subscribers=remembered.subscribers[subscriptions],
        filters=remembered.filters.filter(pa.array(subscriptions)),
        no_local=remembered.no_local[subscriptions],
    )


def behind_hole(remembered: Remembered) -> Remembered:
    """Return what of it is still known behind records that were not read: sessions and groups, UNNUMBERED, and who is a
    member of which group."""
    shared = pc.starts_with(remembered.filters, SHARE_PREFIX).to_numpy(zero_copy_only=False)
    return replace(
        remembered,
        next_serials=np.full(len(remembered.incarnations), UNNUMBERED),
        subscribers=remembered.subscribers[shared],
        filters=remembered.filters.filter(pa.array(shared)),
        no_local=remembered.no_local[shared],
        entries=0,
    )


def unnumbered_of(remembered: Remembered) -> dict[Group, int]:
    """Return the incarnations of sessions that are UNNUMBERED, by tenant and client."""
    rows = np.flatnonzero((remembered.next_serials == UNNUMBERED) & (remembered.incarnations >= 0))
    return {
        (remembered.tenants[row].as_py(), remembered.client_ids[row].as_py()): int(
            remembered.incarnations[row]
        )
        for row in rows.tolist()
    }


def members_of(remembered: Remembered) -> Counter[Group]:
    """Return how many members each group has."""
    shared = np.flatnonzero(pc.starts_with(remembered.filters, SHARE_PREFIX).to_numpy(zero_copy_only=False))
    sessions = np.searchsorted(remembered.incarnations, remembered.subscribers[shared])
    columns = {
        "tenant": remembered.tenants.take(pa.array(sessions)),
        "filter": remembered.filters.take(pa.array(shared)),
    }
    groups = (
        pa.table(columns).group_by(["tenant", "filter"], use_threads=False).aggregate([([], "count_all")])
    )
    return Counter({(row["tenant"], row["filter"]): row["count_all"] for row in groups.to_pylist()})


def groups_of(remembered: Remembered) -> dict[Group, int]:
    """Return the incarnation of each group."""
    numbers = remembered.incarnations[: np.searchsorted(remembered.incarnations, 0)].tolist()
    names = zip(remembered.tenants[: len(numbers)], remembered.client_ids[: len(numbers)], strict=True)
    return {
        (tenant.as_py(), client_id.as_py()): number
        for number, (tenant, client_id) in zip(numbers, names, strict=True)
    }


_ACTIONS: Final[dict[str, Callable[[Sessions, Row], None]]] = {
    "broker_started": Sessions._broker_started,
    "session_opened": Sessions._opened,
    "session_resumed": Sessions._connected,
    "session_closed": Sessions._disconnect,
    "session_ended": Sessions._ended,
    "subscribed": Sessions._subscribed_to,
    "unsubscribed": Sessions._unsubscribed_from,
    "retained_queued": Sessions._queued,
}
KINDS: Final = tuple(_ACTIONS)
"""Of events that matter here."""
