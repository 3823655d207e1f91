"""What became of messages, noted until the next batch: packed here, one PROGRESS record per subkind and batch.

Runs on the loop. `GroupCommit` takes it when a batch is handed over, or an event comes behind it.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from headrace.core.ports.link import WorkerPort
from headrace.core.records.record import (
    ACKED,
    BOUND,
    DROPPED,
    LET_GO,
    PLACED,
    PROGRESS_SUBKINDS,
    RECEIVED,
    RELEASED,
    SENT_LIMIT,
    SHARED_DRAWN,
    SHARED_FINISHED,
    SHARED_RECEIVED,
    STORED,
)

# Drops first: an acknowledgement says that everything before it was sent, unless it is known to be dropped. Packet ids
# behind what has freed them, and before the limit that lets them be used.
PROGRESS_ORDER: Final[list[int]] = [  # a list: mypyc walks a tuple of constants by a generic iterator
    DROPPED,
    ACKED,
    BOUND,
    RECEIVED,
    RELEASED,
    SENT_LIMIT,
    SHARED_DRAWN,
    SHARED_FINISHED,
    SHARED_RECEIVED,
    PLACED,
    STORED,
    LET_GO,
]


class ProgressNotes:
    """Packs what sessions and groups have done into the bodies of records: those with something in them are `pending`."""

    def __init__(self, worker: WorkerPort) -> None:
        self._worker = worker
        self.bodies = [BytesWriter() for _ in range(PROGRESS_SUBKINDS)]  # by subkind
        self.pending = False

    def acked(self, incarnation: i64, serial: i64) -> None:
        self._pair(ACKED, incarnation, serial)

    def received(self, incarnation: i64, serial: i64) -> None:
        self._pair(RECEIVED, incarnation, serial)

    def released(self, incarnation: i64, packet_id: i64) -> None:
        self._pair(RELEASED, incarnation, packet_id)

    def sent_limit(self, incarnation: i64, limit: i64) -> None:
        self._pair(SENT_LIMIT, incarnation, limit)

    def bound(self, incarnation: i64, serial: i64, packet_id: i64) -> None:
        self._pair(BOUND, incarnation, serial)
        write_i64_le(self.bodies[BOUND], packet_id)

    def dropped(self, incarnation: i64, first: i64, count: i64, reason: i64) -> None:
        self._pair(DROPPED, incarnation, first)
        self._pair(DROPPED, count, reason)

    def stored(self, incarnation: i64, generation: i64, first: i64, up_to: i64) -> None:
        self._pair(STORED, incarnation, generation)
        self._pair(STORED, first, up_to)

    def placed(self, incarnation: i64, store: i64) -> None:
        self._pair(PLACED, incarnation, store)

    def let_go(self, incarnation: i64, up_to: i64) -> None:
        self._pair(LET_GO, incarnation, up_to)

    def drawn(self, group: i64, serial: i64, incarnation: i64, packet_id: i64) -> None:
        self._pair(SHARED_DRAWN, group, serial)
        self._pair(SHARED_DRAWN, incarnation, packet_id)

    def shared_finished(self, group: i64, serial: i64) -> None:
        self._pair(SHARED_FINISHED, group, serial)

    def shared_received(self, group: i64, serial: i64) -> None:
        self._pair(SHARED_RECEIVED, group, serial)

    def _pair(self, subkind: int, first: i64, second: i64) -> None:
        writer = self.bodies[subkind]
        if not self.pending:
            self.pending = True
            self._worker.request_tick()
        write_i64_le(writer, first)
        write_i64_le(writer, second)
