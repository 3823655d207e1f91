"""What a shard stands on, as the node sees it: a journal that makes records durable and gives them back, with whatever
keeps it small, gets it back at a start and says how it is.

Embedded: `storage.embedded.storage`. In memory, for tests: `storage.memory_storage`. All of it is called on the loop, and
calls back there. What core asks for per message is the hot port behind it,
`core.ports.journal`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from headrace.core.broker import Broker
from headrace.core.ports.journal import JournalPort
from headrace.core.records.message_id import JournalName
from headrace.services.journal_metrics import JournalFigures
from headrace.services.metrics import Reads
from headrace.sockets.poller import Poller


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found. `snapshot` is the offset that the state was written down at, None where it never was;
    `replayed` the records behind it."""

    name: JournalName
    snapshot: int | None
    replayed: int


@dataclass(frozen=True, slots=True)
class StorageEvents:
    """The functions that a storage tells of its records. `durable(high_watermark)`: those below it are.
    `failed(error)`: once, and last: nothing can be made durable any more. `full(reason, for_space)`: what is appended
    waits, for want of space or of something else; with the reason "" it goes on."""

    durable: Callable[[int], None]
    failed: Callable[[BaseException], None]
    full: Callable[[str, bool], None]


class ShardStorage(Protocol):
    """The storage of one shard. The calls of its life, in this order: it is made, with what says that no other process
    writes there; `recover`; `start`; `keep_small` every second or so; `snapshot`; `unwatch`, where the process goes on;
    `close`."""

    journal: JournalPort
    """What is appended to and fetched from."""

    reads: Reads
    """How often the journal was asked for what was no longer in memory."""

    figures: JournalFigures | None
    """What /metrics tells of files and consumers, None where there are none."""

    @property
    def uuid(self) -> str:
        """Return what the journal is called, wherever its records are told apart from those of others."""

    @property
    def high_watermark(self) -> int:
        """Return the offset below which everything is durable."""

    @property
    def reserve_bytes(self) -> int:
        """Return how much is kept back for the progress of sessions on a full disk, 0: nothing is."""

    def recover(self, broker: Broker, report: Callable[[str], None]) -> Recovered:
        """Bring the state of the journal into `broker`, which is empty. `report` hears lines on the progress.
        Raises JournalError, OSError."""

    def recovering(self, broker: Broker, report: Callable[[str], None]) -> Generator[None, None, Recovered]:
        """Do as `recover`, in slices that others have their turns between; what it returns is the value of the
        generator."""

    def start(self, events: StorageEvents, poller: Poller | None) -> int:
        """Begin to make records durable. `poller` may wait for the storage together with the sockets. Returns the epoch
        of this start, which is above that of every earlier one that has appended something."""

    def behind(self, offset: int) -> tuple[int, int]:
        """Return how many records lie from `offset` on, and about how many bytes."""

    async def keep_small(self) -> None:
        """Do what is due, if anything is, so that the journal keeps what is needed and no more. Raises OSError: it keeps
        what it has, and is asked again."""

    async def snapshot(self) -> None:
        """Write the state down, so that the next start replays nothing. Raises OSError, MemoryError."""

    def unwatch(self) -> None:
        """Be called by no poller any more: all that is left is `close`, which may then be called on another thread."""

    def close(self) -> None:
        """Give up what is held. What waits is not made durable any more."""
