"""`headrace session drop` on a data directory without a broker: the end of a session, written as a broker would.

The shard where the client id is at home is opened and recovered as at a start, and its broker, to which nobody connects,
drops the session: the same code, and the same records in one batch of the journal. So a start that replays them finds
what a broker leaves that has dropped it while it ran. Other shards are not touched: what they hold for the session, as a
member of shared subscriptions at home there, goes when their broker follows this shard again. Killed at any moment, the
batch is in the journal or it is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.inbound.dropping import refuse_own
from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.records.event import BrokerStarted
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.worker import Worker
from headrace.data.claim import Claim, Wish
from headrace.data.layout import Layout, check_is_whole
from headrace.errors import NotThere
from headrace.journal.copying import give_to_owner
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.snapshot import newest_chain
from headrace.journal.writer import FSYNC
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.ports.access import Access
    from headrace.core.ports.settings import BrokerSettings
    from headrace.core.state.session import Session

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration of the broker says, as far as the end of a session is concerned. `access` is asked whether
    the will may be published; None: it may."""

    log: LogSettings
    settings: BrokerSettings
    access: Access | None = None


class _Still(Scheduler):
    """Asks for no tick: what is appended is written when `StoppedSession.drop` says so."""

    def request_tick(self) -> None:
        """Do nothing."""


class StoppedSession:
    """A session in a data directory that is held open, and whose broker does not run."""

    def __init__(
        self, session: Session, broker: Broker, log: SegmentedLog, failures: list[BaseException]
    ) -> None:
        self.session = session
        self._broker = broker
        self._log = log
        self._failures = failures

    def drop(self) -> int:
        """End the session, and return how many messages waited in it, when that is durable. Raises OSError,
        JournalError, and then it is there as it was."""
        session, commit = self.session, self._broker.commit
        dropped = self._broker.dropping.drop(session.tenant.name, session.client_id)
        commit.flush()
        self._log.close()  # which writes and syncs what was appended
        if self._log.high_watermark < commit.next_offset:
            raise self._failures[0] if self._failures else OSError(f"{self._log.directory} was not written")
        return dropped.messages


@contextmanager
def opened(
    data_dir: Path, tenant: str, client_id: str, rules: Rules, report: Report, disk: Disk = DISK
) -> Iterator[StoppedSession]:
    """Give the session of a client id, whose shard is opened as a start opens it: a torn end is cut. No broker starts
    meanwhile. Raises NotThere, BrokersOwn, UnusableLayout, JournalLocked where a broker runs, CorruptJournal,
    CorruptFile, OSError."""
    refuse_own(client_id)
    check_is_whole(data_dir, disk)
    layout = Layout.open(data_dir, disk)
    homes = Homes(layout.shards)
    shard = homes.of_client(tenant, client_id)
    directory = layout.directory(shard)
    failures: list[BaseException] = []
    with ExitStack() as held:
        if layout.shards > 1:  # of one shard its journal is locked, which is opened below
            claim = Claim(data_dir, Wish(), disk)
            held.callback(claim.close)
            claim.wait_for_workers(0.0)
        settings = replace(rules.log, durability=FSYNC, streams=layout.shards > 1)
        log = SegmentedLog.open(directory, settings, report, disk)
        held.callback(give_to_owner, directory, directory)
        held.callback(log.close)
        broker = _recovered(shard, homes, log, rules, report)
        of_tenant = broker.fold.tenants.get(tenant)
        session = None if of_tenant is None else of_tenant.sessions.get(client_id)
        if session is None:
            raise NotThere(f"tenant {tenant} has no session {client_id!r}")
        log.start(_ignore, failures.append)
        yield StoppedSession(session, broker, log, failures)


def _recovered(shard: int, homes: Homes, log: SegmentedLog, rules: Rules, report: Report) -> Broker:
    """Return the broker of an open journal, with the state that its next start would begin with. Nothing is written:
    wills that are due, and sessions whose time is over, are left to that start. Raises CorruptFile, CorruptBatch."""
    clock = Clock()
    clock.now_us, clock.mono_ms = time.time_ns() // 1000, time.monotonic_ns() // 1_000_000
    worker = Worker(_Still(), clock, rules.settings, homes)
    journal = LocalJournal(log, OffsetOutOfRange, report)
    broker = worker.own(shard, journal)
    worker.guard(rules.access)
    if homes.shards > 1:
        broker.join(journal, Routes(), StreamSettings())
    load(broker.fold, newest_chain(log.directory, report), log.scan, log.start_offset, _quietly)
    started = BrokerStarted.at(clock.now_us)
    started.offset = log.high_watermark
    broker.fold.started(started)  # whoever was connected when the broker was killed is not any more
    return broker


def _ignore(_high_watermark: int) -> None:
    """Do nothing: the log is closed before anybody asks how far it is."""


def _quietly(_line: str) -> None:
    """Say nothing: nobody watches the progress of one command."""
