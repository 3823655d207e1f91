"""A worker: what one process has once, however many shards it owns, and the brokers of these shards.

Runs on the loop, called by the node. A connection knows its worker from the start on, and its broker from CONNECT on:
that of the shard where its client is at home. A tick ends for all brokers together, so a connection writes once in it;
what one of them fails at costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.inbound.devices import Devices
from headrace.core.inbound.leaving import end_unbound
from headrace.core.inbound.reception import NAMELESS, Reception
from headrace.core.inbound.turns import Turns
from headrace.core.ports.access import Access
from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.ports.identity import DEFAULT_TENANT, Identity
from headrace.core.ports.journal import JournalPort
from headrace.core.ports.latencies import Latencies
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.timers import Timers
from headrace.core.ports.witness import Testimony
from headrace.core.state.counters import Counters
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

# Timers that a call of `on_timer` fires at most: so many of connections, and so many of all shards together.
TIMERS_AT_ONCE: Final = 200
LEAVE_AT_ONCE: Final = 500  # sessions whose connections end in one step, where a shard is given up


class Worker(WorkerPort):
    """The brokers of one process, and what they share.

    `testimony` tells a witness how connections begin and end, `latencies` hears of what was written.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Clock, settings: BrokerSettings, homes: Homes | None = None
    ) -> None:
        """Begin without shards. `homes`: among how many shards, one unless it is said; `own` says which of them are
        here."""
        anyone = Identity(DEFAULT_TENANT, None, settings)
        super().__init__(clock, settings, anyone, Homes() if homes is None else homes)
        self.testimony = Testimony()
        self.testimony.failures = self.failures
        self.brokers: list[Broker] = []
        self.latencies: Latencies | None = None
        self._scheduler = scheduler
        self._access: Access | None = None
        self._shards: dict[int, Broker] = {}  # those that clients may come to
        self._opened: list[Broker] = []  # the same
        # What shards counted that were given up, so that no sum goes down.
        self.counters_before: dict[str, Counters] = {}  # by tenant
        self.expired_before = 0
        self._newcomers = 0  # clients without an id, who go to the shards in turn
        self._tick_requested = False
        self._broken: list[Link] = []  # something raised on their behalf: to be closed
        self.behind = False  # timers are due that the last call of `on_timer` left
        self.ticks = 0
        self.turns = Turns(self)
        self.arrivals = Reception(self, self.testimony)
        self.reception = self.arrivals

    def divide(self) -> None:
        """Serve several tenants, of whom the default one has limits like any other: before any shard is here."""
        self.quotas.divide()
        self.anyone.limits = self.quotas.look(self.anyone.tenant)

    # Shards

    def own(self, shard: int, journal: JournalPort, reader: QueueReader | None = None) -> Broker:
        """Own a shard, whose journal is `journal`, from now on; return its broker, whose state is as yet empty. `reader`
        reads queues that are not in the journal alone."""
        broker = self.prepare(shard, journal, reader)
        self.tend(broker)
        self.open(broker)
        return broker

    def prepare(self, shard: int, journal: JournalPort, reader: QueueReader | None = None) -> Broker:
        """Return a broker for a shard, into which its state is to be brought; nothing happens with it yet."""
        return Broker(shard, journal, self, self.testimony, reader)

    def tend(self, broker: Broker) -> None:
        """Give a shard its ticks and its time from now on: its state is there."""
        broker.sessions.access = self._access
        self.brokers.append(broker)

    def open(self, broker: Broker) -> None:
        """Let clients come to a shard from now on."""
        self._shards[broker.shard] = broker
        self._opened = list(self._shards.values())

    def shut(self, shard: int) -> None:
        """Let no client come to a shard any more; those that are there stay. Does nothing where none comes."""
        self._shards.pop(shard, None)
        self._opened = list(self._shards.values())

    def disown(self, shard: int, links: Iterable[Link] = ()) -> Broker | None:
        """Own a shard no more: connections to it end, its ticks and its timers too, and no object of the worker refers to
        it. `links`: all connections of the process, of which some may be about to sign in there. Returns its broker, of
        whose state whoever asked lets go (`letting_go`), or None where the shard is not owned."""
        self.shut(shard)
        broker = next((one for one in self.brokers if one.shard == shard), None)
        if broker is None:
            return None
        while broker.leave(LEAVE_AT_ONCE):
            pass
        for link in links:
            if link.broker is broker:
                end_unbound(link)
        self.brokers.remove(broker)
        self.expired_before += broker.sessions.absences.expired
        for name, tenant in broker.fold.tenants.items():
            self.counters_before.setdefault(name, Counters()).add(tenant.counters)
        self.counters_before.setdefault(self.anyone.tenant, Counters()).add(broker.fold.strangers)
        return broker

    def opened(self) -> list[Broker]:
        """Return the brokers of the shards that clients may come to now."""
        return list(self._opened)

    def home_of(self, tenant: str, client_id: str) -> Broker | None:
        if not client_id:
            self._newcomers += 1
            return self._opened[self._newcomers % len(self._opened)] if self._opened else None
        return self._shards.get(self.homes.of_client(tenant, client_id))

    def bind_device(self, link: Link, client_id: str, user: str | None = None) -> Devices | None:
        """Bind a link to the home of a device that speaks frames, and signs in as a user if one is given. None: that is
        another worker's, who takes the link. Raises ProtocolError if nobody does."""
        if not self.place(link, user):
            raise ProtocolError(rc.NOT_AUTHORIZED, NAMELESS)
        home = self.home_of(link.identity.tenant, client_id)
        if home is None:
            if self.arrivals.leaves(link, client_id, False):
                return None
            raise ProtocolError(rc.SERVER_UNAVAILABLE, "the shard of this device is not here")
        link.broker = home
        return home.devices

    def guard(self, access: Access | None) -> None:
        """Let in from now on whom `access` lets in; None: everybody."""
        self._access = access
        for broker in self.brokers:
            broker.sessions.access = access

    @property
    def idle(self) -> bool:
        """Return True when nothing waits, for a journal or for its turn."""
        return all(broker.idle for broker in self.brokers)

    # Ticks

    def request_tick(self) -> None:
        if not self._tick_requested:
            self._scheduler.request_tick()
            self._tick_requested = True  # behind it: what failed is asked for again

    def end_tick(self) -> None:
        self._tick_requested = False
        self.clock.stale = True
        self.ticks += 1
        for broker in self.brokers:
            broker.end_tick()
        self._close_broken()
        self.flush()
        for broker in self.brokers:
            broker.after_flush()
        try:
            self._take_turns()
        except Exception as error:  # noqa: BLE001  who was not read has its turn in the next tick
            self.contain("read", None, error)
            self.request_tick()

    def take_turns(self, link: Link) -> None:
        self.turns.take(link)
        self.request_tick()

    def _take_turns(self) -> None:
        if self.turns.waiting and self.turns.give_turns(self._applies()):
            self.request_tick()

    def _applies(self) -> bool:
        """Return whether a batch takes effect that is too much for one pass."""
        return any(broker.commit.behind for broker in self.brokers)

    def flush(self) -> None:
        following = self._first_dirty
        if following is not None:
            self._first_dirty = self._last_dirty = None
            self.dirty = 0
            link = following
            while following is not None:
                try:
                    while following is not None:
                        link = following
                        following = link.next_dirty
                        link.next_dirty = None
                        link.dirty = False
                        link.flush()
                except Exception as error:  # noqa: BLE001
                    self.contain("flush", link, error)
            for broker in self.brokers:
                broker.tell_latencies(self.latencies)

    # What is raised where nothing should be: it costs the connection that it concerns

    def contain(self, place: str, link: Link | None, error: Exception) -> None:
        """Note that something failed at this place, for this connection or for nobody in particular, and have the
        connection closed. What it was to be sent may be half written: it is thrown away, and nothing is added."""
        self.failures.note(place, "" if link is None else link.client_id, error)
        if link is not None and not link.closed and not link.broken:
            link.broken = True
            if link.out is not None:
                link.out.truncate(0)
            self._broken.append(link)
            self.request_tick()

    def _close_broken(self) -> None:
        """Say why, if the version has words for it, and close."""
        while self._broken:
            link = self._broken.pop()
            try:
                if link.out is not None:
                    link.out.truncate(0)
                link.broker.on_protocol_error(link, _failure())
            except Exception as error:  # noqa: BLE001
                self.failures.note("close", link.client_id, error)
                self._cut(link)

    def _cut(self, link: Link) -> None:
        """Close a connection without a word."""
        try:
            link.broker.on_connection_lost(link)
        except Exception as error:  # noqa: BLE001
            self.failures.note("close", link.client_id, error)
        link.close()

    # Time

    def on_timer(self) -> None:
        """Do what time has decided, a bounded part of it; `behind` says that more is due now."""
        self.behind = self.fire(self.timers, TIMERS_AT_ONCE)
        for broker in list(self.brokers):
            broker.on_timer(max(1, TIMERS_AT_ONCE // len(self.brokers)))
            if broker.behind:
                self.behind = True

    def fire(self, timers: Timers, most: int) -> bool:
        now_ms = self.clock.mono_ms
        for _ in range(most):
            try:
                return timers.run(now_ms, most)
            except Exception as error:  # noqa: BLE001
                self.contain("timer", None, error)
                timers.retry(now_ms)
        return True


def _failure() -> ProtocolError:
    return ProtocolError(rc.IMPLEMENTATION_SPECIFIC_ERROR, "the broker failed to serve this connection")
