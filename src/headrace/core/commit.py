"""Group commit: one batch of records at a time between the tick and the journal's writer.

Runs on the loop. Records are appended in the order things happened and get their offsets at once; they are *applied* in
the same order when the high watermark has passed them. While one batch is being made durable the next one gathers, so
the batch size adapts to the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.journal import JournalPort
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.progress_notes import PROGRESS_ORDER, ProgressNotes
from headrace.core.records.message import Message
from headrace.core.records.record import (
    ACKED,
    KIND_COPY,
    KIND_EVENT,
    KIND_GIVEN,
    KIND_MESSAGE,
    KIND_NONE,
    Progress,
    Record,
)
from headrace.mqtt.properties import Properties

UNFINISHED: Final = -1

_KEPT_BYTES_MAX: Final = 1 << 20  # of the buffer that bodies are put together in, from one batch to the next

# What one client may have waiting here, and all of them: beyond it, nothing more is read from it. Whatever waits counts
# as ENTRY_BYTES and the bytes that it holds, a payload twice, so these are 2 048 small packets or two large messages: as
# much as takes effect in a few passes of the loop, for which whoever comes behind has to wait.
ENTRY_BYTES: Final = 2048
SHARE_BYTES_MAX: Final = 4 << 20
SHARES_BYTES_MAX: Final = 4 << 20
SHARE_BYTES_LEAST: Final = 64 << 10  # everybody's, however much the others have waiting
_RESTS_AT_A_BOUNDARY: Final = 8  # a pass may come here twice, and who waits has its turn once a pass
_RECORD_BYTES: Final = 512  # of memory that a record in a batch takes beside its body


# What an `Answer` says. 1 and 2, which are the QoS: PUBACK or PUBREC with a reason code. Else PUBREC, PUBCOMP, PUBREL of
# success, and PINGRESP.
SAY_PUBREC: Final = 3
SAY_PUBCOMP: Final = 4
SAY_PUBREL: Final = 5
SAY_PINGRESP: Final = 6


@mypyc_attr(allow_interpreted_subclasses=False, acyclic=True)
class Deferred(Record):
    """Waits until everything appended before it is durable. It is not a record of the journal.

    `payer` is the connection on whose behalf it waits, against whose share `weight` bytes are counted meanwhile.
    """

    def __init__(self, payer: Link | None = None, held: i64 = 0) -> None:
        """Begin with what it is charged to: `payer`, if anybody, and `held` bytes that it keeps in memory, beside
        itself."""
        super().__init__(KIND_NONE, 0)
        self.payer = payer
        self.weight: i64 = ENTRY_BYTES + held

    def run(self) -> None:
        raise NotImplementedError

    def work(self) -> i64:
        """Return what `run` may cost, in deliveries of a message."""
        return 1


class Call(Deferred):
    """Calls somebody, who needs no class for that (`GroupCommit.then`)."""

    def __init__(self, payer: Link | None, call: Callable[[], None]) -> None:
        super().__init__(payer)
        self._call = call

    def run(self) -> None:
        self._call()


class Barrier(Deferred):
    """Tells from outside when everything that was done before it is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = False

    def run(self) -> None:
        self.passed = True


@mypyc_attr(acyclic=True)
class Answer(Deferred):
    """An answer to a packet, in its place behind what was appended before it: one of the verbs below."""

    def __init__(
        self,
        link: Link,
        verb: i64,
        packet_id: int = 0,
        reason_code: int = 0,
        properties: Properties | None = None,
    ) -> None:
        super().__init__(link)
        self._link = link
        self.verb: i64 = verb
        self._packet_id = packet_id
        self._reason_code = reason_code
        self._properties = properties

    def run(self) -> None:
        link = self._link
        if self.verb == SAY_PUBREC:
            link.pubrec(self._packet_id)
        elif self.verb == SAY_PUBCOMP:
            link.pubcomp(self._packet_id)
        elif self.verb == SAY_PUBREL:
            link.pubrel(self._packet_id)
        elif self.verb == SAY_PINGRESP:
            link.pingresp()
        else:
            link.answer(int(self.verb), self._packet_id, self._reason_code, self._properties)


class BatchListener:
    """Applies durable records (`applying` does)."""

    def apply(self, record: Record) -> i64:
        """Let a durable record take effect; returns the work of it, UNFINISHED when it is to be called again."""
        raise NotImplementedError

    def end_part(self) -> None:
        """Note that a part of a batch has taken effect; the next one comes with the next tick."""
        raise NotImplementedError

    def end_batch(self) -> None:
        """Note that a batch has taken effect, all of it or what was left."""
        raise NotImplementedError

    def failed(self, record: Record, error: Exception) -> None:
        """Note that `apply` of this record raised; the next record goes on."""
        raise NotImplementedError

    def hold_back(self, link: Link) -> None:
        """Read nothing more from this connection until what waits on its behalf is within its share."""
        raise NotImplementedError


class GroupCommit:
    """Gathers records into batches. What is below the offset `high_watermark` has taken effect: when a tick begins or
    ends, that is; within it, a part of a batch counts as a whole."""

    def __init__(self, journal: JournalPort, worker: WorkerPort, work_at_once: i64) -> None:
        """Begin with nothing to write. `work_at_once`: what takes effect in one pass of the loop, in deliveries of a
        message."""
        self._journal = journal
        self._work_at_once: i64 = work_at_once
        self._worker = worker
        self._clock = worker.clock
        self._listener: BatchListener | None = None
        self._is_contested: bool = journal.is_contested
        self._next: i64 = journal.next_offset()
        self.high_watermark: i64 = self._next
        self._pending: list[Record] = []
        self._body = BytesWriter()
        self._first_us: int = 0
        self._outstanding: list[Record] | None = None
        self._outstanding_end: i64 = 0
        self._offered: list[object] = []  # its records, as the journal was given them
        self._gathers = False  # a batch has taken effect since the last tick
        self._applying: list[Record] = []
        self._applied: i64 = 0  # how many of them
        # Records and deferred work that were ever put in, and how many of them have taken effect, in the same order:
        # whoever notes the first number knows by the second when all that was there then has (`Link.effective_at`).
        self.entered: i64 = 0
        self.in_effect: i64 = 0
        self._applying_offered: list[object] = []
        self._applying_end: i64 = 0
        self._reached: i64 = 0  # the journal's high watermark, which came while they were not all applied
        self.progress = ProgressNotes(worker)
        self._next_applied: i64 = self._next  # the offset of the first record that has not taken effect
        self._until_writable: dict[Link, list[Deferred]] = {}
        self.deferred_bytes: i64 = (
            0  # what waits on behalf of connections, as it is counted against their shares
        )
        self.unfinished = False  # a message has reached some of its sessions, and not yet the others
        self.boundary_wanted = False  # somebody waits for a moment in which none has
        self._rests: i64 = 0  # so often nothing takes effect, for that one's sake
        self.failed: BaseException | None = None
        self.batches = 0
        self.bytes = 0
        self.written_us: int = 0  # when a batch was last given to the journal

    def attach(self, listener: BatchListener) -> None:
        self._listener = listener

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def idle(self) -> bool:
        """Return True when nothing waits for the journal."""
        if self._outstanding is not None or self._pending:
            return False
        return not self._applying and not self.progress.pending

    @property
    def behind(self) -> bool:
        """Return True while a batch takes effect that is too much for one pass."""
        return len(self._applying) > 0

    @property
    def pending_bytes(self) -> i64:
        return len(self._body)

    @property
    def pending_memory(self) -> i64:
        """Return about how much memory the batch that gathers takes: small records take more than their bytes."""
        return len(self._body) + _RECORD_BYTES * len(self._pending)

    def append(self, record: Record) -> int:
        """Put `record` into the next batch; returns its offset."""
        if record.kind == KIND_EVENT and self.progress.pending:
            self._take_progress()  # what a session did comes before what ends it
        offset = self._next
        record.offset = offset
        if not self._pending:
            self._request()  # before anything changes: it may fail for want of memory
        start = len(self._body)
        if start == 0:
            self._first_us = record.timestamp_us
        self._pending.append(record)
        self._next = offset + 1
        try:
            record.encode_into(self._body)
        except BaseException:  # it was never appended: the others keep their bytes and their offsets
            self._body.truncate(start)
            self._pending.pop()
            self._next = offset
            record.offset = -1
            raise
        self.entered += 1
        return offset

    def append_behind_progress(self, record: Record) -> None:
        """Put a record that is no event behind all progress that is noted, as an event is always."""
        if self.progress.pending:
            self._take_progress()
        self.append(record)

    def defer(self, deferred: Deferred) -> None:
        """Run `deferred` once everything noted and appended so far is durable and applied.

        Progress that is pending gets into the same batch, however late it becomes a record.
        """
        if not self._pending:
            self._request()
        self._pending.append(deferred)
        self.entered += 1
        payer = deferred.payer
        if payer is not None:
            self.deferred_bytes += deferred.weight
            self.charge(payer, deferred.weight)

    def then(self, payer: Link | None, call: Callable[[], None]) -> None:
        """Call this when everything noted and appended so far is durable and applied. What is made per message is a
        `Deferred` of its own: that costs less."""
        self.defer(Call(payer, call))

    # What waits for a connection's socket to drain

    def when_writable(self, link: Link, deferred: Deferred) -> None:
        """Defer `deferred` once the socket's buffer has drained; never, if the connection ends before."""
        waiting = self._until_writable.get(link)
        if waiting is None:
            waiting = self._until_writable[link] = []
        waiting.append(deferred)
        self.charge(link, deferred.weight)

    def writable(self, link: Link) -> None:
        """Note that the socket's buffer has drained."""
        waiting = self._until_writable.pop(link, None)
        if waiting is not None:
            for deferred in waiting:
                link.deferred -= deferred.weight
                self.defer(deferred)

    def forget(self, link: Link) -> None:
        """Note that the connection has ended."""
        self._until_writable.pop(link, None)

    # Shares: whatever a client makes wait here is counted against it until it has taken effect.

    def charge(self, payer: Link, weight: i64) -> None:
        """Count `weight` bytes against the share of a connection; above it, hold that one back."""
        waiting = payer.deferred + weight
        payer.deferred = waiting
        if waiting > SHARE_BYTES_LEAST and self.exceeds(waiting, SHARE_BYTES_MAX):
            listener = self._listener
            if listener is not None:
                listener.hold_back(payer)

    def exceeds(self, waiting: i64, share: i64) -> bool:
        """Return whether so many bytes are more than this share, or than what is left to each when all have much
        waiting."""
        return waiting > share or (waiting > SHARE_BYTES_LEAST and self.deferred_bytes > SHARES_BYTES_MAX)

    def ran(self, deferred: Deferred) -> None:
        """Note that the work waits no longer."""
        payer = deferred.payer
        if payer is not None:
            payer.deferred -= deferred.weight
            self.deferred_bytes -= deferred.weight

    def _take_progress(self) -> None:
        """Make records of the progress that was noted. What raises, for want of memory, leaves the progress noted: it
        is tried again."""
        progress = self.progress
        for subkind in PROGRESS_ORDER:
            writer = progress.bodies[subkind]
            if len(writer):
                self.append(Progress(subkind, self._clock.now_us, writer.getvalue()))
                writer.truncate(0)
        progress.pending = False

    def _request(self) -> None:
        self._worker.request_tick()

    # Batches

    def flush(self) -> None:
        """End of a tick: hand the gathered batch to the journal, unless one is on its way or has just taken effect.

        What takes effect lets others write, a PUBACK the next PUBLISH and a message its acknowledgement, and one more
        pass of the loop reads many of them. A batch costs its write, its sync and two switches between threads however
        small it is, and what a session gets by one batch leaves in one write: so fewer and larger ones are better.
        """
        if self._applying:
            self._apply_more()
        if self._outstanding is not None:
            return
        if self._gathers:
            self._gathers = False
            if self._pending or self.progress.pending:
                self._request()
                return
        if self.progress.pending:
            self._take_progress()
        if len(self._body):
            self._submit()
            return
        if self._applying or not self._pending:
            return
        if self._is_contested and self._answers():
            self.append(Progress(ACKED, self._clock.now_us, b""))
            self._submit()
            return
        batch = self._pending  # nothing to make durable: only deferred work
        self._pending = []
        self._apply(batch, self.high_watermark)

    def _answers(self) -> bool:
        """Return whether work that waits tells a client what it may forget something by. Where another process may own
        the journal by now, that waits for a record appended behind the client's packet: only the owner may tell."""
        for record in self._pending:
            if isinstance(record, Answer):
                if record.verb != SAY_PINGRESP:
                    return True
            elif not isinstance(record, Barrier):
                return True
        return False

    def _submit(self) -> None:
        batch = self._pending
        body = self._body.getvalue()  # what wants memory comes first: if it raises, nothing has happened yet
        # Only messages are asked for again; an event in memory is ten times its bytes.
        records: list[object] = [
            record
            if record.kind == KIND_MESSAGE or record.kind == KIND_COPY or record.kind == KIND_GIVEN
            else None
            for record in batch
            if record.kind != KIND_NONE
        ]
        self._pending = []
        if len(body) > _KEPT_BYTES_MAX:
            self._body = BytesWriter()
        else:
            self._body.truncate(0)
        self._outstanding = batch
        self._outstanding_end = self._next
        self.batches += 1
        self.bytes += len(body)
        self.written_us = self._clock.now_us
        self._offered = records
        first_us, last_us = self._first_us, self._clock.now_us
        if last_us < first_us:  # the clock was set back while the batch gathered
            times = [record.timestamp_us for record in batch]
            first_us, last_us = max(times), min(last_us, *times)
        try:
            self._journal.append(body, records, first_us, last_us)
        except Exception as error:
            self.on_failure(error)  # nobody will ever hear that this batch is durable
            raise

    def on_high_watermark(self, offset: int) -> None:
        """Note that the journal made everything below `offset` durable: apply it, in order."""
        if self._applying:
            self._reached = offset
            return
        batch = self._outstanding
        if batch is None or offset < self._outstanding_end or self.failed is not None:
            return
        end = self._outstanding_end
        self._outstanding = None
        self._applying_offered, self._offered = self._offered, []
        self._gathers = True
        self._apply(batch, end)
        if self._pending or self.progress.pending:
            self._request()

    def _apply(self, batch: list[Record], end: i64) -> None:
        self._applying = batch
        self._next_applied = self.high_watermark
        self._applying_end = end
        self._apply_more()

    def _apply_more(self) -> None:
        """Let the next part of a batch take effect; what is left goes on in the next tick, when others were read."""
        listener = self._listener
        if listener is None:
            return
        if self._rests and self.boundary_wanted:
            self._rests -= 1
            self._request()
            return
        self.high_watermark = self._applying_end
        batch = self._applying
        size: i64 = len(batch)
        began = self._applied
        stops = self._apply_part(listener, batch, size)
        self.in_effect += self._applied - began
        if self._applied < size or stops:
            listener.end_part()
            self.high_watermark = self._note_applied(began)
            self._request()
        else:
            self._end_batch(listener)

    def _apply_part(self, listener: BatchListener, batch: list[Record], size: i64) -> bool:
        """Apply as much as one pass should. True: a record has taken effect in part, or somebody waits for this
        moment."""
        work = self._work_at_once
        stops = False
        while work > 0 and self._applied < size and not stops:
            try:
                while work > 0 and self._applied < size:
                    done = listener.apply(batch[self._applied])
                    if done == UNFINISHED:
                        self.unfinished = stops = True
                        break
                    work -= done
                    self._applied += 1
                    if self.unfinished:
                        self.unfinished = False
                        if self.boundary_wanted:
                            stops = True
                            self._rests = _RESTS_AT_A_BOUNDARY
                            break
            except Exception as error:  # noqa: BLE001  one record must not cost the others
                listener.failed(batch[self._applied], error)
                self.unfinished = False
                work -= 1
                self._applied += 1
        return stops

    def _end_batch(self, listener: BatchListener) -> None:
        listener.end_batch()
        _let_go(self._applying_offered)
        self._applying_offered = []
        self._applying = []
        self._applied = 0
        if self._reached:
            reached, self._reached = self._reached, 0
            self.on_high_watermark(reached)

    def _note_applied(self, began: i64) -> i64:
        """Return the offset of the first record that has not taken effect: it follows the last one that has. `began` is
        where this part of the batch did, so that no more is looked at than has taken effect in it."""
        at = self._applied - 1
        while at >= began:
            record = self._applying[at]
            if record.kind != KIND_NONE:
                self._next_applied = record.offset + 1
                break
            at -= 1
        return self._next_applied

    def on_failure(self, error: BaseException) -> None:
        """Note that the journal can no longer make records durable: acknowledge nothing from now on (decision 21)."""
        self.failed = error


def _let_go(records: list[object]) -> None:
    """Take out the messages that have left to all who get them: what is kept of the recent ones is small then, and new
    messages get the memory of those just freed, which the processor has at hand."""
    for place in range(len(records)):
        record = records[place]
        if isinstance(record, Message) and not record.waits:
            records[place] = None
