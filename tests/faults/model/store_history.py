"""Histories of a broker with a store behind its long queues: `StoreHistory(seed).run(steps)`.

The journal here is a list of records and the entries that it still has: those that LET_GO lets go of are gone with the
record's sync. After each step everything that is acknowledged and not finished must be in the journal or the store; what
is read back must be what was put; nothing is read twice once it is durably finished; at the end everything was read in
order. What the store itself loses although it has kept it for longer than a window (it is wiped) may be missing, and is
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from faults.model.simulated_store import FORGETS_MS, SimulatedStore
from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import IN_JOURNAL, Context, QueueName
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.rows import StoredRows
from headrace.core.storing.stored_queue import StoredQueue, Waiting
from headrace.core.storing.storing import Storing

JOURNAL = "0a"
STORED, LET_GO, FINISHED, ENDED = range(4)


@dataclass(frozen=True)
class Policy:
    """What decides: the policy as it is, or another one that the model is to see through."""

    storing: type[Storing]
    queue: type[StoredQueue]
    rows: type[StoredRows]


class Session(Waiting):
    """A session of the model: what was acknowledged for it, what the journal still has, and how far its client is."""

    def __init__(self, history: StoreHistory, incarnation: int) -> None:
        self.history = history
        self.incarnation = incarnation
        self.sent: dict[int, bytes] = {}  # all that was ever acknowledged
        self.journal: dict[int, bytes] = {}
        self.last = 0
        self.floor = 1  # durable
        self.next = 1  # what the client gets next
        self.delivered: dict[int, bytes | None] = {}
        self.rows = history.policy.rows()  # the fold of what is durable
        self.excused: set[int] = set()  # what the store has lost by itself, and was let go of
        self.ended = False
        self.asked_for = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.last += 1
            payload = b"%d/%d/%d" % (self.incarnation, self.last, self.history.histories)
            if self.history.draw.random() < 0.03:
                payload = payload.ljust(50, b".")  # too large for the store
            self.sent[self.last] = self.journal[self.last] = payload

    def newest(self) -> int:
        return self.last

    def entries(self, first: int, count: int, bytes_max: int) -> list[bytes]:
        if self.history.draw.random() < 0.03:
            return []
        return [self.journal[serial] for serial in range(first, first + count)]

    def large_between(self, first: int, last: int, bytes_max: int) -> int:
        sizes = ((serial, len(self.sent[serial])) for serial in range(first, last + 1))
        return next((serial for serial, size in sizes if size > bytes_max), 0)

    def agrees(self, serial: int, entry: bytes, bytes_max: int) -> bool:
        ours = self.journal.get(serial)
        if ours is None:
            return False
        return entry == (IN_JOURNAL if len(ours) > bytes_max else ours)

    def context(self) -> Context:
        return Context(1, self.last, 0)

    def loaded(self, first: int, entries: list[bytes | None]) -> None:
        assert first >= self.floor, "what is finished is read again"
        self.asked_for = 0
        for serial, entry in enumerate(entries, first):
            if serial == self.next:
                self._deliver(serial, entry)

    def not_now(self) -> None:
        self.asked_for = 0

    def consume(self, storing: Storing, queue: StoredQueue) -> None:
        """Give the client what comes next: from the journal, else from the store."""
        if self.next > self.last or self.asked_for:
            return
        if self.next in self.journal:
            self._deliver(self.next, self.journal[self.next])
        elif storing.reading.read(queue, self.next, 3):
            self.asked_for = self.next
        else:
            assert queue.reading or self.next in self.excused, f"{self.next} is nowhere"
            if not queue.reading:
                self._deliver(self.next, None)

    def _deliver(self, serial: int, entry: bytes | None) -> None:
        if entry is None:
            assert serial in self.excused, f"{serial} of {self.incarnation} is gone"
            self.history.forgotten += 1
        assert entry is None or entry == self.sent[serial], f"{entry!r} instead of {self.sent[serial]!r}"
        self.delivered[serial] = entry
        self.next = serial + 1


class StoreHistory(StoreNotes):
    """One history. `silent_wipes`: the store may lose everything and say nothing."""

    def __init__(
        self,
        seed: int,
        *,
        atomic: bool = True,
        tells_primary: bool = True,
        window_ms: int = FORGETS_MS,
        silent_wipes: bool = False,
        policy: Policy | None = None,
    ) -> None:
        self.draw = Random(seed)
        self.policy = policy or Policy(Storing, StoredQueue, StoredRows)
        self.clock = Clock()
        self.clock.mono_ms = 10_000
        self.store = SimulatedStore(self.draw, self.clock, atomic, tells_primary)
        self.window_ms = window_ms
        self.silent_wipes = silent_wipes
        self.sessions: dict[int, Session] = {}
        self.queues: dict[int, StoredQueue] = {}
        self.log: list[tuple[int, int, tuple[int, ...]]] = []
        self.synced = 0
        self.histories = 1
        self.bases = 0  # how often a base of generations was raised
        self.counts: dict[str, int] = {}
        self.forgotten = 0
        self.let_go_count = 0
        self._next_incarnation = 1
        for _ in range(3):
            self._open()
        self.storing = self._start()

    # StoreNotes

    def stored(self, queue: StoredQueue, generation: int, first: int, up_to: int) -> None:
        self.log.append((STORED, queue.incarnation, (generation, first, up_to)))

    def let_go(self, queue: StoredQueue, up_to: int) -> None:
        """Before the record is even there, what it lets go of must have outlasted what the store may forget."""
        session = self.sessions[queue.incarnation]
        connections = self.store.connections
        kept = next((found.vouched for found in connections if found.primary is queue.primary), {})
        now = self.store.home(queue.name(JOURNAL, 0)).server.streams
        if self.store.moved_ms.get(queue.incarnation, 0) > self.clock.mono_ms - FORGETS_MS:
            # It outlasted a crash where it was; where it is it may not, yet.
            session.excused |= {serial for serial in session.sent if serial <= up_to}
        for serial in range(max(session.rows.let_go + 1, queue.floor), up_to + 1):
            extent = queue.rows.at(serial)
            assert extent is not None, f"{serial} is let go of and in no stream"
            stream = kept.get(queue.name(JOURNAL, extent.generation))
            there = stream is not None and stream.entries.get(serial) == session.sent[serial]
            if not there and self.silent_wipes and self.store.capabilities.tells_primary:
                session.excused.add(serial)
                there = True
            assert there, f"{serial} is let go of before it outlasts a window"
            stream = now.get(queue.name(JOURNAL, extent.generation))
            if stream is None or serial not in stream.entries:
                session.excused.add(serial)  # wiped while the answer of the look was on its way
        self.let_go_count += 1
        self.log.append((LET_GO, queue.incarnation, (up_to,)))

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        return self.queues.get(incarnation)

    def gives_up(self, incarnation: int, generation: int) -> bool:
        return incarnation not in self.sessions or self.sessions[incarnation].ended

    # The broker

    def _open(self) -> None:
        self.sessions[self._next_incarnation] = Session(self, self._next_incarnation)
        self._next_incarnation += 1

    def _start(self) -> Storing:
        """Start a broker over what is durable."""
        settings = StoringSettings(JOURNAL, self.window_ms, self.bases << 20, 2)
        storing = self.policy.storing(self.store, self, self.clock, settings)
        self.queues = {}
        for incarnation, session in self.sessions.items():
            if session.ended:
                continue
            queue = self.queues[incarnation] = self.policy.queue("t", "c}.", incarnation, session)
            queue.rows.load(session.rows.fields())
            queue.floor = session.next = session.floor
            session.asked_for = 0
            storing.adopt(queue)
        return storing

    def sync(self) -> None:
        """Make records durable; only then they take effect."""
        for kind, incarnation, numbers in self.log[self.synced :]:
            session, queue = self.sessions[incarnation], self.queues.get(incarnation)
            if kind == STORED:
                session.rows.stored(*numbers)
            elif kind == LET_GO:
                session.rows.note_let_go(numbers[0])
                self._forget_below(session, numbers[0] + 1)
                if queue is not None:
                    self.storing.let_go_is_durable(queue, numbers[0])
            elif kind == FINISHED:
                session.floor = max(session.floor, numbers[0])
                session.next = max(session.next, session.floor)
                session.rows.consumed(session.floor)
                self._forget_below(session, session.floor)
                if queue is not None:
                    self.storing.consumed(queue, session.floor)
            elif queue is not None:
                session.ended = True
                self.storing.end(self.queues.pop(incarnation))
                self._open()
                opened = self._next_incarnation - 1
                self.queues[opened] = self.policy.queue("t", "c}.", opened, self.sessions[opened])
        self.synced = len(self.log)

    def _forget_below(self, session: Session, floor: int) -> None:
        for serial in [serial for serial in session.journal if serial < floor]:
            del session.journal[serial]

    def crash(self) -> None:
        """End the broker, with what is not durable, and start it again some time later."""
        del self.log[self.synced :]
        self.store.unanswered.clear()
        self.store.echoes.clear()
        self.store.heard.clear()
        for place in (0, 1):
            self.store.cut(place)
        self.store.refusals.clear()
        self.clock.mono_ms += self.draw.choice((0, 10, 300, 3 * FORGETS_MS))
        for _ in range(self.draw.randrange(3)):
            self.store.straggle()
        if self.draw.random() < 0.3:
            self._fail_over(self.draw.randrange(2))
        self.storing = self._start()

    def restore(self) -> None:
        """Put the journal back to an earlier history: what comes now is something else under the same numbers. Every
        other time by a command that says so, by a copy of its files else."""
        self.sync()
        self.crash()
        for session in self.sessions.values():
            if session.ended or session.last < session.floor + 2 or session.last not in session.journal:
                continue
            cut = self.draw.randrange(
                max(session.floor, session.rows.let_go, session.last - 2), session.last + 1
            )
            for serial in range(cut + 1, session.last + 1):
                del session.sent[serial], session.journal[serial]
            session.last = cut
            for extent in session.rows.extents:
                extent.up_to = min(extent.up_to, cut)
        self.histories += 1
        self.bases += self.counts.get("restore", 0) % 2
        for session in self.sessions.values():
            session.publish(0 if session.ended else self.draw.randrange(4))
        self.storing = self._start()

    # Steps

    def step(self) -> None:
        draw, store = self.draw, self.store
        live = [session for session in self.sessions.values() if not session.ended]
        session = draw.choice(live)
        place = draw.randrange(2)
        what = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.counts[what] = self.counts.get(what, 0) + 1
        queue = self.queues[session.incarnation]
        if what == "publish":
            session.publish(draw.randrange(1, 6))
            self.storing.begin(queue)
        elif what == "consume":
            for _ in range(draw.randrange(1, 6)):
                session.consume(self.storing, queue)
        elif what == "finish" and session.next > session.floor:
            self.log.append(
                (FINISHED, session.incarnation, (draw.randrange(session.floor, session.next) + 1,))
            )
        elif what == "drop" and session.last >= session.next:
            self.log.append(
                (FINISHED, session.incarnation, (draw.randrange(session.next, session.last + 1) + 1,))
            )
        elif what == "work":
            for _ in range(4):
                store.work(store.connections[place])
        elif what == "hear":
            for _ in range(4):
                store.hear(store.connections[place], draw.random() < 0.02)
            store.hear_others()
        elif what == "time":
            self.clock.mono_ms += draw.choice((1, 50, 200, 700))
        elif what == "connect":
            store.connect(place)
        else:
            self._trouble(what, place, session)
        self.storing.run()
        self.check()

    def _trouble(self, what: str, place: int, session: Session) -> None:
        store = self.store
        if what == "patience":
            self.clock.mono_ms += 31_000
        elif what == "cut":
            store.cut(place)
        elif what == "fail over":
            self._fail_over(place)
        elif what == "move":
            store.move(session.incarnation)
        elif what == "straggle":
            store.straggle()
        elif what == "wipe":
            self._wipe(place)
        elif what == "end":
            self.log.append((ENDED, session.incarnation, ()))
        else:
            self._broker_trouble(what)

    def _broker_trouble(self, what: str) -> None:
        if what == "sync":
            self.sync()
        elif what == "crash":
            self.crash()
        elif what == "restore":
            self.restore()
        elif what == "sweep":
            self.storing.removing.sweep()

    def _wipe(self, place: int) -> None:
        new_id = not self.silent_wipes or self.draw.random() < 0.5
        self._excuse(place, 0)
        self.store.connections[place].server.wipe(new_id, self.draw.random() < 0.5)

    def _fail_over(self, place: int) -> None:
        """Fail over. A queue that has only just come here may be forgotten whole, with what was let go of long ago."""
        self._excuse(place, self.clock.mono_ms - FORGETS_MS)
        self.store.fail_over(place)

    def _excuse(self, place: int, moved_since_ms: int) -> None:
        """Expect no longer what only the store has of queues that came to a primary since then: what it was let go of
        may be gone, and what LET_GO is on its way for, which was there when it was written."""
        for session in self.sessions.values():
            at_home = self.store.home(self._name(session, 0)) is self.store.connections[place]
            if at_home and self.store.moved_ms.get(session.incarnation, 0) >= moved_since_ms:
                session.excused |= session.sent.keys() - session.journal.keys()
                asked = self.queues[session.incarnation].asked if session.incarnation in self.queues else 0
                session.excused |= {serial for serial in session.sent if serial <= asked}

    def _name(self, session: Session, generation: int) -> QueueName:
        return QueueName("t", "c}.", JOURNAL, generation, session.incarnation)

    def check(self) -> None:
        """All that is acknowledged and not finished is somewhere."""
        for session in self.sessions.values():
            if session.ended:
                continue
            streams = self.store.home(self._name(session, 0)).server.streams
            for serial in range(session.floor, session.last + 1):
                if serial in session.journal or serial in session.excused:
                    continue
                extent = session.rows.at(serial)
                assert extent is not None, f"{serial} of {session.incarnation} is nowhere"
                stream = streams.get(self._name(session, extent.generation))
                assert stream is not None, f"the stream of {serial} of {session.incarnation} is gone"
                assert stream.entries.get(serial) == session.sent[serial], f"{serial} is not in its stream"

    def run(self, steps: int) -> StoreHistory:
        """So many steps, then calm weather until everything has outlasted its window, and everybody has got it."""
        for _ in range(steps):
            self.step()
        for _ in range(150):
            self._be_calm()
        self._check_let_go()
        self._drain()
        return self

    def _be_calm(self) -> None:
        for place in (0, 1):
            self.store.connect(place)
            for _ in range(8):
                self.store.work(self.store.connections[place])
                self.store.hear(self.store.connections[place], False)
        self.store.hear_others()
        self.clock.mono_ms += 400
        for queue in self.queues.values():
            self.storing.begin(queue)
        self.sync()
        self.storing.run()

    def _check_let_go(self) -> None:
        """The journal keeps nothing of long queues but what is too large for the store, and what is behind it."""
        if self.window_ms < 0:
            return
        for incarnation, queue in self.queues.items():
            session = self.sessions[incarnation]
            first = max(queue.asked + 1, queue.floor)
            large = session.large_between(first, session.last, self.store.capabilities.entry_bytes_max)
            assert first > session.last or first == large, f"the journal keeps {first} of {incarnation}"

    def _drain(self) -> None:
        for _ in range(3000):
            self._be_calm()
            for incarnation, queue in list(self.queues.items()):
                session = self.sessions[incarnation]
                session.consume(self.storing, queue)
                if session.next > session.floor and session.next > session.last:
                    self.log.append((FINISHED, incarnation, (session.next,)))
            self.check()
            if all(session.floor > session.last for session in self.sessions.values() if not session.ended):
                break
        for session in self.sessions.values():
            if not session.ended:
                assert session.floor == session.last + 1, f"{session.incarnation} waits for {session.next}"
                assert list(session.delivered) == sorted(session.delivered) or self.counts.get("crash", 0)


WEIGHTS = {
    "publish": 20, "consume": 12, "finish": 12, "drop": 4, "work": 40, "hear": 40, "time": 30, "sync": 25, "connect": 12,
    "cut": 3, "fail over": 3, "move": 2, "straggle": 6, "wipe": 2, "end": 1, "crash": 3, "restore": 1, "sweep": 1,
    "patience": 1,
}  # fmt: skip
