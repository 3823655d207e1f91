"""What waits for one session, as the policy of its store asks for it, and what was read back from there.

What a store keeps of an entry is its reference and the record of its message, as the journal has that one::

    0 u64 reference, little endian (`queue`)     8 the record (`record`)

So an entry says by itself where its message stood in the journal, under which QoS it goes out and what it is. Runs on the
loop; reads the journal as delivery does.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

from headrace.core.ports.journal import DAMAGED, FORGOTTEN, GONE, NOT_NOW, Absent
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.queue_store import IN_JOURNAL, NOTHING, Context
from headrace.core.records.message import Message, decode_record
from headrace.core.state.backlog import REF_OFFSET_SHIFT
from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.queue import OutboundQueue
from headrace.core.state.session import Session
from headrace.core.storing.stored_queue import StoredQueue, Waiting
from headrace.core.storing.storing import Storing
from headrace.errors import CorruptRecord

REFERENCE_SIZE: Final = 8
RECORD_SLACK: Final = (
    66_000  # more than a record has beside topic, properties and payload: names in its header
)
READ_AHEAD: Final = 128  # entries that are asked for in one read
READ_IN_FLIGHT: Final = 16  # of those that are sent again, whose sizes are not known
READ_BYTES: Final = 1 << 20  # of messages that are asked for in one read
RETRY_MS: Final = 100  # behind a read that could not be done, until it is tried again
RETRY_MAX_MS: Final = 5_000


NOBODY: Final = Waiting()  # whose queue it is that has ended: it is asked nothing


def entry_of(ref: int, message: Message) -> bytes:
    """Return what a store keeps of an entry of a queue."""
    out = BytesWriter()
    write_i64_le(out, ref)
    message.encode_into(out)
    return out.getvalue()


def _as_many_as_fit(sizes: list[int]) -> i64:
    """Return how many entries of these sizes one read may ask for: one at least."""
    left: i64 = READ_BYTES
    count: i64 = 0
    for size in sizes:
        left -= size
        if left < 0 and count:
            break
        count += 1
    return max(count, 1)


def message_of(entry: bytes) -> Message | Absent:
    """Return the message of an entry that was read back, or why there is none."""
    if entry in (NOTHING, IN_JOURNAL):
        return GONE
    if len(entry) <= REFERENCE_SIZE:
        return DAMAGED
    try:
        record, _ = decode_record(entry, REFERENCE_SIZE)
    except (CorruptRecord, ValueError, IndexError):
        return DAMAGED
    if not isinstance(record, Message):
        return DAMAGED
    record.offset = read_i64_le(entry, 0) >> REF_OFFSET_SHIFT
    return record


class StoredSession(Waiting):
    """The queue of a session with a store behind it. `noted`: the floor up to which the policy was told that it is, or
    will be, durably finished."""

    def __init__(self, session: Session, storing: Storing, journal: QueueReader, long: i64) -> None:
        """Begin with nothing read. `long`: so many messages wait for a client that is connected before they are put."""
        self.session = session
        self.storing = storing
        self.reader: QueueReader = journal
        self._long: i64 = long
        self.failed = False  # what was asked for could not be read
        self._delay_ms: i64 = 0  # until it is asked for again, and when that is
        self._again_ms: i64 = 0
        self._found: dict[int, Message | Absent] | None = None  # what was read and not fetched yet
        self._read_up_to: i64 = 0
        outbound = session.outbound()
        self.noted = outbound.floor()
        self.queue = StoredQueue(session.tenant.name, session.client_id, session.incarnation, self)
        rows = self.queue.rows = outbound.stored_rows()
        self.queue.used = rows.tried
        self.queue.floor = self.noted

    # What the policy asks of a session

    def _outbound(self) -> OutboundQueue | None:
        """Return the queue, None once the session has ended."""
        return self.session.queue

    def wants_put(self) -> bool:
        """Return whether what waits is to lie in the store: the client is away, or far behind."""
        queue = self.session.queue
        if queue is None or queue.backlog.count == 0:
            return False
        return self.session.link is None or queue.backlog.count >= self._long

    def newest(self) -> i64:
        queue = self._outbound()
        return 0 if queue is None else queue.next_serial - 1

    def entries(self, first: i64, count: i64, bytes_max: i64) -> list[bytes]:
        found: list[bytes] = []
        queue = self._outbound()
        if queue is None or not self.wants_put():
            return found
        left = bytes_max
        for ref in self._references(queue, first, count):
            entry = self._entry(first + len(found), ref)
            if entry is None or (found and len(entry) > left):
                break
            left -= len(entry)
            found.append(entry)
        return found

    def _references(self, queue: OutboundQueue, first: i64, count: i64) -> list[int]:
        """Return the references of `count` entries from a serial number on, NOT_IN_FLIGHT for what is finished; fewer
        where a page cannot be read now."""
        head = queue.head_serial()
        refs: list[int] = []
        serial = first
        while serial < head and serial < first + count:
            refs.append(queue.inflight.get(serial))
            serial += 1
        if serial < first + count:
            waiting = queue.backlog.entries_from(serial - head, first + count - serial)
            if waiting is not None:
                refs += waiting[0]
        return refs

    def _entry(self, serial: i64, ref: int) -> bytes | None:
        """Return what the store keeps of an entry, None if it cannot be read now."""
        if ref == NOT_IN_FLIGHT:
            return NOTHING
        message = self.reader.fetch(self.session, serial, ref)
        if isinstance(message, Message):
            return entry_of(ref, message)
        return None if message is NOT_NOW else NOTHING

    def large_between(self, first: i64, last: i64, bytes_max: i64) -> i64:
        queue = self._outbound()
        if queue is None:
            return 0
        head = queue.head_serial()
        serial = first
        while serial <= last:
            sizes: list[int] = []
            if serial >= head:
                waiting = queue.backlog.entries_from(serial - head, last + 1 - serial)
                if waiting is None:
                    return serial  # it is not known: the journal keeps it until it is
                sizes = waiting[1]
            for size in sizes or [bytes_max]:
                if size + RECORD_SLACK > bytes_max and self._is_large(queue, serial, bytes_max):
                    return serial
                serial += 1
        return 0

    def _is_large(self, queue: OutboundQueue, serial: i64, bytes_max: i64) -> bool:
        """Return whether an entry is larger, or cannot be looked at now."""
        refs = self._references(queue, serial, 1)
        entry = self._entry(serial, refs[0]) if refs else None
        return entry is None or len(entry) > bytes_max

    def agrees(self, serial: i64, entry: bytes, bytes_max: i64) -> bool:
        queue = self._outbound()
        refs = [] if queue is None else self._references(queue, serial, 1)
        if not refs or refs[0] == NOT_IN_FLIGHT:
            return False
        ours = self._entry(serial, refs[0])
        if ours is None:
            return False
        if NOTHING in (ours, entry):
            return True  # whoever had it lost it
        if entry == IN_JOURNAL:
            return len(ours) > bytes_max
        if len(entry) <= REFERENCE_SIZE or ours[REFERENCE_SIZE:] != entry[REFERENCE_SIZE:]:
            return False
        return read_i64_le(ours, 0) >> REF_OFFSET_SHIFT == read_i64_le(entry, 0) >> REF_OFFSET_SHIFT

    def context(self) -> Context:
        queue = self._outbound()
        if queue is None:
            return Context(0, 0, 0)
        last_sent = queue.last_sent()
        return Context(
            int(queue.packet_id(last_sent)) if last_sent > 0 else 0,
            int(queue.next_serial - 1),
            self.session.closed_at_us,
        )

    # What delivery asks for

    def fetch(self, serial: i64, ref: int) -> Message | Absent:
        """Return the message of an entry, or why there is none; NOT_NOW while it is read from the store."""
        if self._found is not None:
            found = self._found.pop(serial, None)
            if found is not None:
                self._read_on(len(self._found), serial)
                return found
        queue = self.queue
        message = self.reader.fetch(self.session, serial, ref)
        if isinstance(message, Message) or message is NOT_NOW:
            return message
        if queue.reading or self._read(serial):  # also what the journal should have, and has lost
            return NOT_NOW
        return FORGOTTEN if serial <= queue.rows.let_go else message

    def _read_on(self, left: i64, serial: i64) -> None:
        """Ask for what comes behind what was read, before it is needed: `left` entries are there still."""
        if left < READ_AHEAD // 2 and self.session.link is not None and not self.queue.reading:
            following = max(self._read_up_to, serial) + 1
            if following <= self.queue.rows.let_go:
                self._read(following)

    def _read(self, serial: i64) -> bool:
        """Ask for entries from a serial number on. Returns False if no stream has the first of them."""
        outbound = self._outbound()
        count: i64 = READ_IN_FLIGHT
        if outbound is not None and serial >= outbound.head_serial():
            waiting = outbound.backlog.entries_from(serial - outbound.head_serial(), READ_AHEAD)
            if waiting is not None:
                count = _as_many_as_fit(waiting[1])
        return self.storing.reading.read(self.queue, serial, count)

    def loaded(self, first: i64, entries: list[bytes | None]) -> None:
        queue = self._outbound()
        found: dict[int, Message | Absent] = {}
        if self._found and queue is not None:  # what was dropped since is not asked for any more
            floor = queue.floor()
            found = {serial: one for serial, one in self._found.items() if serial >= floor}
        serial = first
        for entry in entries:
            if entry is not None:
                found[serial] = message_of(entry)
            else:
                found[serial] = FORGOTTEN if serial <= self.queue.rows.let_go else DAMAGED
            serial += 1
        self._found = found
        self.failed = False
        self._delay_ms = self._again_ms = 0
        self._read_up_to = serial - 1
        self._wake()

    def not_now(self) -> None:
        self.failed = True

    def retry(self, now_ms: i64) -> None:
        """Have what could not be read asked for again, if somebody waits for it: later each time that the store answers
        that it cannot tell."""
        if now_ms < self._again_ms:
            return
        self._delay_ms = min(max(2 * self._delay_ms, RETRY_MS), RETRY_MAX_MS)
        self._again_ms = now_ms + self._delay_ms
        self.failed = False
        self._wake()

    def _wake(self) -> None:
        waiting = self.reader.waiting
        if waiting is not None:
            waiting.wake(self.session)

    def part(self) -> None:
        """Be referred to by the policy's queue no more: the session has ended, or its shard is given up. Answers that are
        under way find the queue ended."""
        self.queue.waiting = NOBODY

    def forget_read(self) -> None:
        """Forget what was read and not sent: nobody is connected."""
        self._found = None
        self.failed = False
        self._delay_ms = self._again_ms = 0
