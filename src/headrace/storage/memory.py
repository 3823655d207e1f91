"""The fakes that ship with the package: a journal in memory that becomes durable when it is told to, a reader of queues
that answers when it is told to, and a link."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from headrace.core.broker import Broker
from headrace.core.outbound.journal_queues import JournalQueues
from headrace.core.ports.clock import Scheduler
from headrace.core.ports.journal import GONE, NOT_NOW, OTHER_RECORD, Absent, JournalPort
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.waiting import QueueOwner, Waiting, Waker
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import Progress, Record
from headrace.core.state.session import Session
from headrace.errors import ProtocolError
from headrace.links.mqtt_link import MqttLink
from headrace.mqtt.codec import encode_connack, encode_disconnect
from headrace.mqtt.protocol import ServerProtocol
from headrace.stream import ByteStream


class MemoryJournal(JournalPort):
    """A journal in memory: keeps encoded batches; `sync` makes what was appended durable and says so to
    `on_high_watermark`.

    Offsets in `unreadable` cannot be read now; with `reads_fail` none can. `failed_reads` counts such answers.
    `free_bytes` is what there is room for on a full disk, `is_tight` whether it is nearly so. `appended` hears of each
    batch.
    """

    def __init__(self, batches: list[bytes] | None = None) -> None:
        self.records: list[Record] = []
        self.bodies: list[bytes] = []
        self.durable = 0
        self.unreadable: set[int] = set()
        self.reads_fail = False
        self.failed_reads = 0
        self._failed = False  # the last read did
        self.disk_reads = 0
        self.damaged_reads = 0
        self.free_bytes = 0
        self.is_tight = False
        self.appended: Callable[[], None] | None = None
        for body in batches or []:
            self._take(body)
        self.durable = len(self.records)

    def _take(self, body: bytes) -> None:
        self.bodies.append(body)
        self.records += decode_batch(body, len(self.records))

    def next_offset(self) -> int:
        return len(self.records)

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self._take(body)
        if self.appended is not None:
            self.appended()

    def room(self) -> i64:
        return self.free_bytes

    def has_room(self) -> bool:
        return not self.is_tight

    def fetch(self, offset: int) -> Message | Absent:
        if self._fails(offset):
            return NOT_NOW
        if not 0 <= offset < len(self.records):
            return GONE
        record = self.records[offset]
        return record if isinstance(record, Message) else OTHER_RECORD

    def fetch_page(self, offset: int) -> bytes | Absent:
        if self._fails(offset):
            return NOT_NOW
        if not 0 <= offset < len(self.records):
            return GONE
        record = self.records[offset]
        return record.packed if isinstance(record, Progress) else OTHER_RECORD

    def _fails(self, offset: int) -> bool:
        fails = self.reads_fail or offset in self.unreadable
        self.failed_reads += fails
        failed, self._failed = self._failed, fails
        if failed and not fails and self.waiting is not None:
            self.waiting.wake_all()
        return fails

    def sync(self, broker: Broker) -> None:
        """Make everything durable and apply it, until nothing is left to do."""
        broker.worker.end_tick()
        while not broker.idle:
            self.durable = len(self.records)
            broker.commit.on_high_watermark(self.durable)
            broker.worker.end_tick()


class MemoryQueues(QueueReader):
    """Reads the queues of sessions as from a store that is far away: an entry is asked for, and is there once `answer`
    was called; everybody else reads the journal. Entries in `lost` are gone."""

    def __init__(self, journal: JournalPort) -> None:
        self._near = JournalQueues(journal)
        self.asked: dict[tuple[Session, int], int] = {}  # references, by owner and serial
        self.lost: set[int] = set()
        self._come: dict[tuple[Session, int], Message | Absent] = {}

    def attach(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self._near.attach(waiting)

    def fetch(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        if not isinstance(owner, Session):
            return self._near.fetch(owner, serial, ref)
        found = self._come.pop((owner, serial), NOT_NOW)
        if found is NOT_NOW:
            self.asked[owner, serial] = ref
        return found

    def peek(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        return self._near.peek(owner, serial, ref)

    def answer(self, wakes: bool = True) -> int:
        """Answer all that was asked for; return how much that is. With `wakes` those who asked are woken."""
        asked, self.asked = self.asked, {}
        for (owner, serial), ref in asked.items():
            found = self._near.fetch(owner, serial, ref)
            self._come[owner, serial] = GONE if serial in self.lost else found
            if wakes and self.waiting is not None:
                self.waiting.wake(owner)
        return len(asked)


class MemoryWaker(Waker):
    """Writes down who was woken. Those in `stuck` wait once more, those in `gone` waited for nothing, and what is done
    for those in `fails` raises."""

    def __init__(self, waiting: Waiting) -> None:
        self.woken: list[QueueOwner] = []
        self.stuck: set[QueueOwner] = set()
        self.gone: set[QueueOwner] = set()
        self.fails: set[QueueOwner] = set()
        self._waiting = waiting

    def wake(self, owner: QueueOwner) -> bool:
        self.woken.append(owner)
        if owner in self.fails:
            raise RuntimeError("it fails")
        if owner in self.stuck:
            self._waiting.add(owner, self)
        return owner not in self.gone


class ManualScheduler(Scheduler):
    """Counts requests for a tick; the test calls `Worker.end_tick`."""

    def __init__(self) -> None:
        self.requests = 0

    def request_tick(self) -> None:
        self.requests += 1


class MemoryLink(MqttLink):
    """A connection whose bytes stay in `sent`."""

    def __init__(self, worker: WorkerPort) -> None:
        super().__init__(worker)
        self.sent = b""
        self.reading = True
        self.gone = False  # its client has closed it, which nobody has read yet
        self.protocol: ServerProtocol | None = None  # who words the refusals, where a test has one
        self.parser: ByteStream | None = None  # who parses what its client sends, where that may be held

    def flush(self) -> None:
        if self.out is not None:
            self.sent += self.out.getvalue()
            self.out = None

    def close(self) -> None:
        self.flush()
        self.closed = True

    def hung_up(self) -> bool:
        return self.closed or self.gone

    def refuse(self, error: ProtocolError) -> None:
        if self.protocol is not None:
            self.send(self.protocol.refusal(error, self.ready))
        elif self.version == 5:
            self.send(
                encode_disconnect(5, error.reason_code)
                if self.ready
                else encode_connack(5, False, error.reason_code)
            )

    def read_on(self) -> None:
        """Return at once: the link never reads more than its share."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def hold(self) -> None:
        self.reading = False
        if self.parser is not None:
            self.parser.hold()

    def release(self) -> None:
        self.reading = True
        if self.parser is not None:
            self.parser.release()

    def leave(self) -> None:
        self.reading = False
        if self.parser is not None:
            self.parser.leave()

    def unparsed(self) -> bytes:
        return b"" if self.parser is None else self.parser.unparsed

    def spend(self, units: i64) -> None:
        if self.parser is not None:
            self.parser.spend(units)

    def peer(self) -> str:
        return "memory"
