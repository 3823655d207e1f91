"""What the job `metrics` knows of sessions: a fold over the events of one range, in journal order.

Connections, subscriptions as intervals of offsets, and the groups of shared subscriptions. A group has one queue, which
it numbers as a session numbers its own (decision 13). So each group is a session whose client is
`$share/<name>/<filter>`, opened by its first member, subscribed to the filter, and ended with its last member. Its
incarnation is its group id, below zero, where it cannot be taken for an offset.

Sessions that began before the first range that was read are not followed. Runs on the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.mqtt.topics import SHARE_PREFIX, split_share

FOREVER: Final = (1 << 63) - 1
EVENTS_READ: Final = (
    "kind", "tenant", "client_id", "incarnation", "topic_filter", "qos", "no_local", "event_timestamp",
    "journal_offset", "item", "session_expiry_s",
)  # fmt: skip

Row = Mapping[str, Any]


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
    """The sessions of one range: they begin as the rows of `metrics_state` tell of them, then `apply` what happened."""

    def __init__(self, state: Iterable[Row]) -> None:
        self.all: dict[int, Session] = {}
        """Those that were there at any time in this range, by incarnation."""
        self.connections: list[Connection] = []
        """All that were there at any time in this range."""
        self.subscriptions: list[Subscription] = []
        """All of this range, those of before from offset -1 on."""
        self.retained: list[tuple[int, int, int]] = []
        """Retained messages put into queues: incarnation, offset and item of the event."""
        self._online: dict[int, Connection] = {}
        self._subscribed: defaultdict[int, dict[str, Subscription]] = defaultdict(dict)
        self._members: defaultdict[tuple[str | None, str], set[int]] = defaultdict(set)
        self._groups: dict[tuple[str | None, str | None], int] = {}
        rows = list(state)
        for row in rows:
            if row["kind"] == "session":
                self._load(row)
        for row in rows:
            if row["kind"] == "subscription":
                self._subscribe(row["incarnation"], row["topic_filter"], bool(row["no_local"]), -1, 0)

    def _load(self, row: Row) -> None:
        incarnation, offset = row["incarnation"], row["connected_offset"]
        serial = row["next_serial"]
        self.all[incarnation] = Session(row["tenant"], row["client_id"], abs(serial), serial < 0)
        if incarnation < 0:
            self._groups[row["tenant"], row["client_id"]] = incarnation
        if offset is not None:
            at_us = row["connected_timestamp"]
            self._connect(
                Connection(row["tenant"], row["client_id"], incarnation, offset, at_us, is_new=False)
            )

    @property
    def left(self) -> dict[int, Session]:
        """Return the sessions that are there at the end."""
        return {incarnation: session for incarnation, session in self.all.items() if session.ended_us is None}

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

    def _opened(self, row: Row) -> None:
        self.all[row["incarnation"]] = Session(row["tenant"], row["client_id"], 1)
        self._connected(row)

    def _connected(self, row: Row) -> None:
        incarnation = row["incarnation"]
        self._disconnect(row)
        session = self.all.get(incarnation)
        if session is not None:
            session.is_transient = row["session_expiry_s"] == 0
        tenant, client_id = row["tenant"], row["client_id"]
        if session is not None and client_id is None:  # early journals name them where the session opens
            tenant, client_id = session.tenant, session.client_id
        offset, at_us = row["journal_offset"], row["event_timestamp"]
        self._connect(Connection(tenant, client_id, incarnation, offset, at_us, is_new=True))

    def _connect(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._online[connection.incarnation] = connection

    def _disconnect(self, row: Row) -> None:
        connection = self._online.pop(row["incarnation"], None)
        if connection is not None:
            connection.disconnected_us = row["event_timestamp"]
            connection.end = row["kind"].removeprefix("session_")

    def _ended(self, row: Row) -> None:
        self._disconnect(row)
        self._end(row["incarnation"], row["journal_offset"], row["event_timestamp"])

    def _end(self, incarnation: int, offset: int, at_us: int) -> None:
        session = self.all.get(incarnation)
        if session is None or session.ended_us is not None:
            return
        session.ended_us = at_us
        for topic_filter in list(self._subscribed[incarnation]):
            self._unsubscribe(incarnation, topic_filter, offset, at_us)

    def _subscribed_to(self, row: Row) -> None:
        incarnation, topic_filter, offset = row["incarnation"], row["topic_filter"], row["journal_offset"]
        session = self.all.get(incarnation)
        if session is None or session.ended_us is not None:
            return
        # A member of a group may take QoS 0: the group has a queue all the same.
        if row["qos"] > 0 or topic_filter.startswith(SHARE_PREFIX):
            self._subscribe(incarnation, topic_filter, bool(row["no_local"]), offset, row["item"])
        else:
            self._unsubscribe(incarnation, topic_filter, offset, row["event_timestamp"])

    def _subscribe(self, incarnation: int, topic_filter: str, no_local: bool, begin: int, item: int) -> None:
        subscription = Subscription(incarnation, topic_filter, no_local, begin)
        before = self._subscribed[incarnation].get(topic_filter)
        if before is not None:
            before.until = begin
        self._subscribed[incarnation][topic_filter] = subscription
        self.subscriptions.append(subscription)
        if subscription.is_shared:
            self._join(incarnation, topic_filter, begin, item)

    def _join(self, incarnation: int, topic_filter: str, begin: int, item: int) -> None:
        group = self.all[incarnation].tenant, topic_filter
        if not self._members[group] and begin >= 0:
            number = group_of((begin << 16) + item)
            self._groups[group] = number
            self.all[number] = Session(*group, 1)
            self._subscribe(number, split_share(topic_filter)[1], False, begin, 0)
        self._members[group].add(incarnation)

    def _unsubscribed_from(self, row: Row) -> None:
        self._unsubscribe(
            row["incarnation"], row["topic_filter"], row["journal_offset"], row["event_timestamp"]
        )

    def _unsubscribe(self, incarnation: int, topic_filter: str, offset: int, at_us: int) -> None:
        subscription = self._subscribed[incarnation].pop(topic_filter, None)
        if subscription is None:
            return
        subscription.until = offset
        if subscription.is_shared:
            group = self.all[incarnation].tenant, topic_filter
            self._members[group].discard(incarnation)
            if not self._members[group] and group in self._groups:
                self._end(self._groups.pop(group), offset, at_us)

    def _queued(self, row: Row) -> None:
        if row["qos"] > 0 and row["incarnation"] in self.all:
            self.retained.append((row["incarnation"], row["journal_offset"], row["item"]))


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
