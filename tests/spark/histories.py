"""A made-up history of a broker as its journal tells it, and what must be counted of it: kept by hand on the way."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.records.event import (
    BROKER_STARTED,
    RETAINED_QUEUED,
    SESSION_CLOSED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Event,
)
from headrace.core.records.record import (
    ACKED,
    DROP_REASONS,
    DROPPED,
    FLAG_FRAME,
    RECEIVED,
    SHARED_DRAWN,
    SHARED_FINISHED,
    Progress,
    Record,
)
from headrace.mqtt.topics import SHARE_PREFIX, matches
from spark.journals import MIDNIGHT_US, Made, message

TOPICS = ("a", "a/b", "a/b/c", "a/c", "b", "b/x", "$sys/a")
FILTERS = ("#", "+", "a/#", "a/+", "a/b", "a/b/c", "+/b", "b/#", "$sys/#", "b", "a")
CLIENTS = ("one", "two", "three", "four", "five")
TENANTS = ("default", "acme")
STRANGER = 999_999_999  # a session that began before the journal


@dataclass
class Queue:
    """Of a session or a group: what is in it, by serial, with the time of its publication and its size."""

    client_id: str
    next_serial: int = 1
    waiting: dict[int, tuple[int | None, int]] = field(default_factory=dict)

    def put(self, at_us: int | None, size: int) -> None:
        self.waiting[self.next_serial] = at_us, size
        self.next_serial += 1


@dataclass
class Live:
    """A session: its subscriptions (QoS, no local) and the offset of its connection."""

    tenant: str
    incarnation: int
    queue: Queue
    expiry_s: int
    filters: dict[str, tuple[int, bool]] = field(default_factory=dict)
    connected: int | None = None


@dataclass
class Group:
    number: int
    queue: Queue
    members: set[int]
    drawn: set[int] = field(default_factory=set)


class History:
    """`Made` records, and `traffic`, `delivered`, `unknown`, `connections`, `last`, `backlog` as they must come out."""

    def __init__(
        self, seed: int, steps: int, tenants: Sequence[str] = TENANTS, clients: Sequence[str] = CLIENTS
    ) -> None:
        self._draw = random.Random(seed)
        self._tenants, self._clients = tenants, clients
        self.made = Made()
        self.traffic: Counter[tuple[str, str, str]] = Counter()
        self.traffic_bytes: Counter[tuple[str, str, str]] = Counter()
        self.frames: Counter[tuple[str, str, str]] = Counter()
        """Of `traffic`, those that came as frames."""
        self.delivered: Counter[tuple[str, str, str]] = Counter()
        self.delivered_bytes: Counter[tuple[str, str, str]] = Counter()
        self.unknown: Counter[tuple[str, str, str]] = Counter()
        """Of `delivered`, those without a latency."""
        self.connections: dict[int, tuple[str, str, str | None]] = {}
        """By the offset that began it: tenant, client, end."""
        self.last: dict[tuple[str, str, str], bytes] = {}
        self._live: dict[tuple[str, str], Live] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._strangers = 0
        self._now_us = MIDNIGHT_US
        kinds = (
            self._publish,
            self._acknowledge,
            self._session,
            self._subscription,
            self._shared,
            self._drop,
        )
        self._add(Event(BROKER_STARTED, self._now_us, {}))
        for _ in range(steps):
            self._now_us += self._draw.randrange(400_000)
            self._draw.choices(kinds, (8, 5, 1, 1, 3, 1))[0]()

    @property
    def backlog(self) -> dict[tuple[str, str], int]:
        queues = [(live.tenant, live.queue) for live in self._live.values()]
        queues += [(tenant, group.queue) for (tenant, _), group in self._groups.items()]
        return {(tenant, queue.client_id): len(queue.waiting) for tenant, queue in queues if queue.waiting}

    def _add(self, record: Record) -> int:
        """-> its offset."""
        self.made.add(record)
        return len(self.made.records) - 1

    def _event(self, subkind: int, live: Live, **fields: object) -> int:
        about = {"t": live.tenant, "c": live.queue.client_id, "inc": live.incarnation}
        return self._add(Event(subkind, self._now_us, about | fields))

    def _publish(self) -> None:
        for _ in range(self._draw.randint(1, 12)):
            tenant, client = self._draw.choice(self._tenants), self._draw.choice(self._clients)
            topic, qos = self._draw.choice(TOPICS), self._draw.randrange(3)
            payload = self._draw.randbytes(self._draw.randrange(30))
            made = message(
                tenant=tenant,
                client_id=client,
                topic=topic,
                qos=qos,
                payload=payload,
                timestamp_us=self._now_us,
            )
            key = tenant, "/".join(topic.split("/")[:2]), client
            if qos == 1 and client == self._clients[0]:  # which speaks both
                made.flags |= FLAG_FRAME
                self.frames[key] += 1
            self._add(made)
            self.traffic[key] += 1
            self.traffic_bytes[key] += len(payload)
            self.last[tenant, client, topic] = payload
            if qos:
                self._route(tenant, client, topic, len(payload))

    def _route(self, tenant: str, client: str, topic: str, size: int) -> None:
        for live in self._live.values():
            own = live.queue.client_id == client
            if live.tenant == tenant and any(
                qos > 0
                and not (no_local and own)
                and not wanted.startswith(SHARE_PREFIX)
                and matches(wanted, topic)
                for wanted, (qos, no_local) in live.filters.items()
            ):
                live.queue.put(self._now_us, size)
                self._forget(live)
        for (of, wanted), group in self._groups.items():
            if of == tenant and matches(wanted, topic):
                group.queue.put(self._now_us, size)

    def _forget(self, live: Live) -> None:
        """A session that ends with its connection: nobody hears what it acknowledges of what was published."""
        if not live.expiry_s:
            for serial, (published_us, _) in list(live.queue.waiting.items()):
                if published_us is not None:
                    self._finish(live.tenant, live.queue, serial, "not_recorded")

    def _finish(self, tenant: str, queue: Queue, serial: int, outcome: str) -> None:
        entry = queue.waiting.pop(serial, None)
        if entry is not None:
            key = tenant, queue.client_id, outcome
            self.delivered[key] += 1
            self.delivered_bytes[key] += entry[1]
            self.unknown[key] += outcome != "acked" or entry[0] is None

    def _acknowledge(self) -> None:
        """Not in order, some twice; and news that settle nothing."""
        packed, received = array("q"), array("q")
        for live in self._live.values():
            waiting = list(live.queue.waiting)[:20]
            for serial in self._draw.sample(waiting, len(waiting) // 2):
                packed.extend((live.incarnation, serial) * self._draw.choice((1, 1, 1, 2)))
                received.extend((live.incarnation, serial))
                self._finish(live.tenant, live.queue, serial, "acked")
        self._add(Progress(RECEIVED, self._now_us, received.tobytes()))
        if self._draw.random() < 0.1:
            self._strangers += 1
            packed.extend((STRANGER, self._strangers))
            self.delivered["", "", "acked"] += 1
            self.unknown["", "", "acked"] += 1
        if packed:
            self._add(Progress(ACKED, self._now_us, packed.tobytes()))

    def _drop(self) -> None:
        for live in self._live.values():
            if live.queue.waiting and self._draw.random() < 0.3:
                first, count = min(live.queue.waiting), 1
                while first + count in live.queue.waiting and self._draw.random() < 0.8:
                    count += 1
                reason = self._draw.choice(list(DROP_REASONS))
                packed = array("q", (live.incarnation, first, count, reason))
                self._add(Progress(DROPPED, self._now_us, packed.tobytes()))
                for serial in range(first, first + count):
                    self._finish(live.tenant, live.queue, serial, DROP_REASONS[reason])

    def _session(self) -> None:
        tenant, client = self._draw.choice(self._tenants), self._draw.choice(self._clients)
        live = self._live.get((tenant, client))
        if self._draw.random() < 0.1:
            self._add(Event(BROKER_STARTED, self._now_us, {}))
            for other in self._live.values():
                self._disconnect(other, "broker_started")
        elif live is None:
            expiry_s = self._draw.choice((0, 3600, 3600))
            about = {"t": tenant, "c": client, "ex": expiry_s, "lim": 32}
            incarnation = self._add(Event(SESSION_OPENED, self._now_us, about))
            live = self._live[tenant, client] = Live(tenant, incarnation, Queue(client), expiry_s)
            self._connect(live, incarnation)
        elif self._draw.random() < 0.5:
            live.expiry_s = live.expiry_s and self._draw.choice((0, 3600, 3600))
            offset = self._event(SESSION_RESUMED, live, ex=live.expiry_s)
            self._forget(live)
            self._disconnect(live, "resumed")
            self._connect(live, offset)
        elif self._draw.random() < 0.7:
            self._event(SESSION_CLOSED, live)
            self._disconnect(live, "closed")
        else:
            self._end(live)

    def _connect(self, live: Live, offset: int) -> None:
        live.connected = offset
        self.connections[offset] = live.tenant, live.queue.client_id, None

    def _disconnect(self, live: Live, end: str) -> None:
        if live.connected is not None:
            self.connections[live.connected] = live.tenant, live.queue.client_id, end
            live.connected = None

    def _end(self, live: Live) -> None:
        self._event(SESSION_ENDED, live, dropped=len(live.queue.waiting))
        self._disconnect(live, "ended")
        for serial in list(live.queue.waiting):
            self._finish(live.tenant, live.queue, serial, "session_ended")
        for wanted in list(live.filters):
            self._leave(live, wanted)
        del self._live[live.tenant, live.queue.client_id]

    def _subscription(self) -> None:
        if not self._live:
            return
        live = self._draw.choice(list(self._live.values()))
        if live.filters and self._draw.random() < 0.3:
            wanted = self._draw.choice(list(live.filters))
            self._event(UNSUBSCRIBED, live, f=[wanted])
            self._leave(live, wanted)
            return
        rows: list[list[Any]] = []
        offset = len(self.made.records)
        for _item in range(self._draw.randint(1, 3)):
            wanted, qos, no_local = (
                self._draw.choice(FILTERS),
                self._draw.randrange(3),
                self._draw.random() < 0.3,
            )
            if self._draw.random() < 0.3:
                wanted, no_local = f"$share/g/{wanted}", False
            if wanted in [row[0] for row in rows]:
                continue
            rows.append([wanted, qos, int(no_local), 0, 0, 0])
            live.filters[wanted] = qos, no_local
            if wanted.startswith(SHARE_PREFIX):
                self._join(live, wanted, (offset << 16) + len(rows) - 1)
        self._event(SUBSCRIBED, live, subs=rows, ret=[])
        if self._draw.random() < 0.3:
            # An early journal does not say how long they are, for one page in three here.
            sizes = [0, 0, 0] if offset % 3 == 0 else [offset % 1000, 7, 9]
            said: dict[str, Any] = {"rp": sizes} if offset % 3 else {}
            self._event(RETAINED_QUEUED, live, ret=[0, 1, 0, 0, 0, 0, 0, 2, 0], **said)
            live.queue.put(None, sizes[0])
            live.queue.put(None, sizes[2])

    def _join(self, live: Live, wanted: str, number: int) -> None:
        group = self._groups.get((live.tenant, wanted))
        if group is None:
            self._groups[live.tenant, wanted] = Group(number, Queue(wanted), {live.incarnation})
        else:
            group.members.add(live.incarnation)

    def _leave(self, live: Live, wanted: str) -> None:
        del live.filters[wanted]
        group = self._groups.get((live.tenant, wanted))
        if group is None:
            return
        group.members.discard(live.incarnation)
        if not group.members:
            # What its last member has in flight completes with it, or does not: nobody hears of it here.
            for serial in [serial for serial in group.queue.waiting if serial not in group.drawn]:
                self._finish(live.tenant, group.queue, serial, "session_ended")
            del self._groups[live.tenant, wanted]

    def _shared(self) -> None:
        drawn, finished = array("q"), array("q")
        for (tenant, _), group in self._groups.items():
            for serial in list(group.queue.waiting)[:6]:
                chance = self._draw.random()
                if serial not in group.drawn and chance < 0.5:
                    drawn.extend((group.number, serial, min(group.members), 49_152 | 1 << 16))
                    group.drawn.add(serial)
                elif chance < 0.8:
                    finished.extend((group.number, serial))
                    outcome = "acked" if serial in group.drawn else "not_drawn"
                    self._finish(tenant, group.queue, serial, outcome)
        if drawn:
            self._add(Progress(SHARED_DRAWN, self._now_us, drawn.tobytes()))
        if finished:
            self._add(Progress(SHARED_FINISHED, self._now_us, finished.tobytes()))
