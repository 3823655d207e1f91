"""A worker that owns several shards over journals in memory; its clients are those of `harness`."""

from __future__ import annotations

from harness import Client, Harness, recover
from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler, MemoryJournal


class Shards(Harness):
    """So many shards in one worker; `broker` and `journal` are those of the first."""

    def __init__(self, count: int = 3, settings: BrokerSettings | None = None) -> None:
        self.journals = [MemoryJournal() for _ in range(count)]
        super().__init__(settings)

    def _open(self, bodies: list[bytes]) -> None:
        self.clock = Clock()
        self.scheduler = ManualScheduler()
        self.worker = Worker(self.scheduler, self.clock, self.settings, Homes(len(self.journals)))
        self.brokers: list[Broker] = []
        self._set_clock()
        for shard, journal in enumerate(self.journals):
            broker = self.worker.own(shard, journal)
            recover(broker.fold, journal.bodies, None)
            broker.sessions.absences.start()
            self.brokers.append(broker)
        self.broker, self.journal = self.brokers[0], self.journals[0]
        self.sync()

    def restart(self) -> None:
        """The process ends with everything durable, and another one owns the shards."""
        self.journals = [MemoryJournal(journal.bodies) for journal in self.journals]
        self._open([])

    def sync(self) -> None:
        """Make durable what the journals of all shards have, but of those that have failed, and let it take effect."""
        self.worker.end_tick()
        while not all(broker.idle for broker in self.brokers if broker.commit.failed is None):
            for broker, journal in zip(self.brokers, self.journals, strict=True):
                journal.durable = len(journal.records)
                broker.commit.on_high_watermark(journal.durable)
            self.worker.end_tick()

    def name_in(self, shard: int, prefix: str = "c") -> str:
        """A client id that is at home in this shard."""
        names = (f"{prefix}{number}" for number in range(10_000))
        return next(name for name in names if self.worker.homes.of_client("default", name) == shard)

    def client_in(self, shard: int, prefix: str = "c", **options: object) -> Client:
        """A client that is at home in this shard."""
        return self.client(self.name_in(shard, prefix), **options)
