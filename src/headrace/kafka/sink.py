"""One sink at one shard: reads the journal as it grows, and sends what the sink wants. Runs on a thread of its own.

What goes wrong, in Kafka or on disk, is said in `figures.trouble`, and all of it is begun again after a while: nothing is
held in memory meanwhile but where the sink is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from headrace.backoff import Backoff
from headrace.errors import HeadraceError
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import JournalError
from headrace.kafka.errors import JournalGone, SinkFenced
from headrace.kafka.figures import SinkFigures
from headrace.kafka.journal_slices import JournalSlices
from headrace.kafka.position import Position, resume
from headrace.kafka.rendering import Rendered
from headrace.kafka.settings import SinkSettings

POLL_S: Final = 0.1  # how often the journal is looked at
IDLE_S: Final = 10.0  # after so long a position is written though no message was wanted
PAUSE_S: Final = 0.5  # before the next attempt, at first
LONGEST_PAUSE_S: Final = 10.0
FENCED_S: Final = (
    30.0  # after another one has taken its place: else two that believe in themselves would take turns
)


class Sending(Protocol):
    """What writes to Kafka (`transactions.Transactions`)."""

    position: Position | None

    def send(self, records: list[Rendered], position: Position) -> None:
        """Write records and position, all or nothing. Raises HeadraceError."""

    def close(self) -> None: ...


Connect = Callable[[SinkSettings, str], Sending]


class SinkOfShard:
    """A sink at the shard whose journal lies in `data_dir`."""

    def __init__(self, settings: SinkSettings, shard: int, data_dir: Path, connect: Connect) -> None:
        self.settings = settings
        self.figures = SinkFigures(settings.name, shard)
        self._data_dir = data_dir
        self._connect = connect
        self._is_stopping = threading.Event()
        self._written = 0  # the position in Kafka
        self._since_s = 0.0  # when it was written

    def stop(self) -> None:
        """Have `run` return once everything that the journal has now is sent, or it cannot be."""
        self._is_stopping.set()

    def run(self) -> None:
        """Send until `stop`."""
        pauses = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        while True:
            began_s, least_s = time.monotonic(), 0.0
            try:
                self._follow()
                return
            except (HeadraceError, JournalError, OSError, MemoryError) as error:
                self.figures.trouble = str(error) or type(error).__name__
                if isinstance(error, SinkFenced):
                    least_s = FENCED_S
            finally:
                self.figures.is_up = False
            pauses.lasted(time.monotonic() - began_s)
            if self._is_stopping.wait(max(least_s, pauses.next_s())):
                return

    def _follow(self) -> None:
        """Send until `stop`. Raises HeadraceError, JournalError, OSError."""
        slices = JournalSlices(self._data_dir, self.settings)
        self.figures.lag_records = max(0, slices.end() - self._registered(slices).offset)
        sending = self._connect(
            self.settings, transactional_id(self.settings, self.figures.shard, slices.uuid)
        )
        try:
            self._send_all(slices, sending)
        finally:
            sending.close()

    def _registered(self, slices: JournalSlices) -> Position:
        """Return where the registered consumer is; one that somebody has dropped is registered again. Raises
        JournalError."""
        now, name = slices.now, self.settings.consumer
        start = now.complete if self.settings.start == "beginning" else now.end
        found = ConsumerPosition.register(
            self._data_dir, name, now.uuid, now.epoch, start, owner=self.settings.consumer
        )
        return Position(found.uuid, found.epoch, found.offset)

    def _send_all(self, slices: JournalSlices, sending: Sending) -> None:
        """Go on where Kafka has the sink. Raises HeadraceError, JournalError, OSError."""
        local, now = self._registered(slices), slices.now
        begun = resume(sending.position, local, now, slices.time_before, slices.first_later)
        figures, offset = self.figures, begun.offset
        figures.lost += begun.lost
        figures.odd = begun.why or figures.odd
        figures.trouble, figures.is_up = "", True
        self._written, self._since_s = offset, time.monotonic()
        while True:
            is_last = self._is_stopping.is_set()
            end = slices.end()
            figures.lag_records = max(0, end - offset)
            if end > offset:
                offset = self._send(slices, sending, offset, end)
            elif is_last or self._is_idle:
                self._write(slices, sending, [], offset)
                if is_last:
                    return
            if offset >= end:
                self._is_stopping.wait(POLL_S)

    @property
    def _is_idle(self) -> bool:
        return time.monotonic() - self._since_s >= IDLE_S

    def _send(self, slices: JournalSlices, sending: Sending, offset: int, end: int) -> int:
        """Send a slice of the journal that begins at `offset`; return where the next one begins. Raises HeadraceError,
        JournalError, OSError."""
        found = slices.take(offset, end)
        if not slices.is_complete_from(offset):
            raise JournalGone(offset)
        if found.records or self._is_idle:
            self._write(slices, sending, found.records, found.end)
        return found.end

    def _write(self, slices: JournalSlices, sending: Sending, records: list[Rendered], offset: int) -> None:
        """Write a transaction up to an offset if it says anything new, and let retention know behind it."""
        if offset <= self._written:
            return
        position = slices.position(offset)
        sending.send(records, position)
        self._written, self._since_s = position.offset, time.monotonic()
        self.figures.transactions += 1
        self.figures.records += len(records)
        self.figures.left_out += sum(not one.is_whole for one in records)
        ConsumerPosition.commit_or_register(
            self._data_dir,
            self.settings.consumer,
            position.journal,
            position.epoch,
            position.offset,
            owner=self.settings.consumer,
        )


def transactional_id(settings: SinkSettings, shard: int, journal: str) -> str:
    """Return by which Kafka knows a sink at a shard, and fences who comes back: a broker with another journal is another
    one."""
    return f"headrace.{settings.name}.{shard}.{journal}"
