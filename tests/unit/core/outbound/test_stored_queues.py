"""Queues with a store behind them, over the journal and the store in memory: what is put when, what the journal may
forget, and that everything comes back as it would without a store."""

from __future__ import annotations

import gc
from random import Random

import pytest

from harness import Client, Harness
from headrace.core.outbound.stored_queues import Choosing, Placed, digest_of, homeless
from headrace.core.outbound.stored_session import StoredSession
from headrace.core.ports.queue_store import REFUSED, QueueName
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.record import ACKED, DROP_STORE_FORGOT, Progress
from headrace.core.state.session import DEVICE, Session
from headrace.core.storing.notes import StoreCounters, StoringSettings
from headrace.core.storing.rows import StoredRows
from headrace.core.storing.storing import ALWAYS
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler, MemoryJournal
from headrace.stores.memory import MemoryStore

JOURNAL = "5f" * 16


NEAR, FAR = 7, 8  # digests of the names of stores


class Chosen(Choosing):
    """Chooses one store for all DEVICEs."""

    def __init__(self, digest: int) -> None:
        super().__init__([DEVICE])
        self.digest = digest

    def store_of(self, tenant: str, session_type: int, client_id: str) -> int:
        return self.digest if session_type == DEVICE else 0


class Stored(Harness):
    """A broker whose DEVICEs have a store, `store` unless `choosing` says another one. `forget` does to the journal what
    compaction and retention do at worst."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.store = MemoryStore()
        self.far = MemoryStore()
        self.choosing = Chosen(NEAR)
        self.window_ms = 0
        self.gone: set[int] = set()
        super().__init__(settings)

    def _open(self, bodies: list[bytes]) -> None:
        super()._open(bodies)
        for offset in self.gone:
            self._take_away(offset)
        placed = [Placed(NEAR, "near", self.store), Placed(FAR, "far", self.far)]
        self.broker.keep_queues_in(placed, self.choosing, StoringSettings(JOURNAL, self.window_ms))
        self.sync()

    def _take_away(self, offset: int) -> None:
        self.journal.records[offset] = Progress(ACKED, 0, b"")

    def pass_s(self, seconds: float = 0.3, times: int = 6) -> None:
        """Let time pass, and everything that is due happen, in the store too."""
        for _ in range(times):
            self.advance(seconds)
            self.store.deliver()
            self.far.deliver()
            self.sync()

    def forget(self) -> None:
        """Take all messages away that no queue needs in the journal."""
        needed = set()
        for session in self.broker.fold.by_incarnation.values():
            queue = session.queue
            if queue is not None:
                waiting = queue.backlog.entries_from(0, queue.backlog.count)
                assert waiting is not None
                head, let_go = queue.head_serial(), queue.let_go()
                needed |= {ref >> 20 for at, ref in enumerate(waiting[0]) if head + at > let_go}
                needed |= {ref >> 20 for ref in queue.needed_in_flight()}
                lowest = queue.lowest_offset()
                assert lowest == -1 or lowest <= min(needed, default=1 << 60)
        for offset in range(self.journal.durable):
            if isinstance(self.journal.records[offset], Message) and offset not in needed:
                self.gone.add(offset)
                self._take_away(offset)

    def session(self, client_id: str) -> Session:
        return self.broker.fold.tenant("default").sessions[client_id]

    def away(self, client_id: str, qos: int = 1, **options: object) -> None:
        client = self.client(client_id, **options)
        client.subscribe("t/#", qos)
        client.lose()


def read(harness: Stored, client: Client) -> list[bytes]:
    """All that comes, acknowledged; what is read from the store comes when the store answers."""
    found = []
    for _ in range(100):
        came = client.publishes()
        for packet_id, payload, _, _ in came:
            found.append(payload)
            client.ack(packet_id)
        answers = harness.store.deliver() + harness.far.deliver()
        harness.advance(0.02)
        client.drain()
        if not came and not client.packets and not answers:
            break
    return found


def publish(harness: Stored, count: int, first: int = 0, qos: int = 1) -> list[bytes]:
    publisher = harness.client("publisher", clean=True)
    payloads = [b"%d" % number for number in range(first, first + count)]
    for payload in payloads:
        publisher.publish("t/a", payload, qos)
    publisher.lose()
    return payloads


def small() -> BrokerSettings:
    """Settings with pages of four references."""
    settings = BrokerSettings()
    settings.backlog_page = 4
    return settings


@pytest.mark.parametrize("settings", [None, small()])
def test_what_waits_is_put_let_go_of_and_comes_back_in_order(settings: BrokerSettings | None) -> None:
    harness = Stored(settings)
    harness.away("sub")
    payloads = publish(harness, 90)
    assert harness.store.streams == {}, "not before a second is over"
    harness.pass_s()
    assert harness.session("sub").queue is not None
    rows = harness.session("sub").queue.rows  # type: ignore[union-attr]
    assert rows is not None
    assert rows.held(1) == (90, 90)
    assert harness.broker.fold.in_stores.keys() == {harness.session("sub").incarnation}
    harness.forget()
    assert len(harness.gone) == 90
    assert read(harness, harness.client("sub")) == payloads
    harness.pass_s()
    assert harness.store.streams == {}, "what is finished does not stay"
    assert harness.session("sub").drops_by_name() == {}


def test_where_another_may_own_the_journal_nothing_is_deleted_before_it_is_known_to_be_ours() -> None:
    harness = Stored()
    harness.journal = MemoryJournal([])
    harness.journal.is_contested = True
    harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings)
    harness.broker = harness.worker.own(0, harness.journal)
    harness.broker.sessions.absences.start()
    settings = StoringSettings(JOURNAL, 0)
    harness.broker.keep_queues_in([Placed(NEAR, "near", harness.store)], harness.choosing, settings)
    harness.sync()
    harness.store.put(1000, QueueName("default", "new", JOURNAL, 1, 9), 1, [b"x"], True)
    (_, storing) = harness.broker.stored.storings[0]  # type: ignore[union-attr]
    storing.removing.sweep()
    for _ in range(10):  # of the journal nothing is heard
        harness.store.deliver()
        harness.worker.end_tick()
    assert len(harness.store.streams) == 1
    harness.pass_s()
    assert harness.store.streams == {}


def test_a_crash_at_any_time_changes_nothing_of_what_comes() -> None:
    read_back = 0
    for seed in range(40):
        history = History(Random(seed))
        history.run(60)
        assert history.first_seen() == history.sent
        read_back += history.counters().read
    assert read_back > 400


def test_what_a_store_forgets_at_any_time_is_counted_and_costs_nothing_else() -> None:
    forgotten = 0
    for seed in range(1000, 1030):
        history = History(Random(seed), troubles=True)
        history.run(60)
        dropped = history.harness.session("sub").dropped or {}
        seen = history.first_seen()
        assert seen == sorted(seen, key=int), "in order"
        assert len(seen) + dropped.get(DROP_STORE_FORGOT, 0) >= len(history.sent)
        assert set(dropped) <= {DROP_STORE_FORGOT}
        forgotten += len(history.sent) - len(seen)
    assert forgotten > 0


class History:
    """Publish, come and go, acknowledge, snapshot, forget and crash; at the end everything was delivered, in order. With
    `troubles` the store is wiped as well, and its answers are lost."""

    def __init__(self, draw: Random, troubles: bool = False) -> None:
        self.draw = draw
        self.harness = Stored(small())
        self.sent: list[bytes] = []
        self.acked: list[bytes] = []
        self.client: Client | None = None
        self.pending: list[tuple[int, bytes]] = []
        self.weights = {"publish": 6, "time": 6, "come": 3, "ack": 5, "leave": 2, "crash": 1, "snapshot": 1}
        self.weights |= {"forget": 2}
        if troubles:
            self.weights |= {"wipe": 1, "cut": 1}
        self.harness.away("sub")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            what = self.draw.choices(list(self.weights), list(self.weights.values()))[0]
            getattr(self, what)()
        self.leave()
        self.harness.pass_s()
        self.harness.pass_s(10.0)
        self.acked += read(self.harness, self.harness.client("sub"))
        self.harness.pass_s()
        self.harness.pass_s(10.0)
        assert self.harness.store.streams == {}

    def first_seen(self) -> list[bytes]:
        return list(dict.fromkeys(self.acked))

    def counters(self) -> StoreCounters:
        stored = self.harness.broker.stored
        assert stored is not None
        return stored.storings[0][1].counters

    # Steps

    def publish(self) -> None:
        self.sent += publish(self.harness, self.draw.randrange(1, 9), len(self.sent))

    def time(self) -> None:
        self.harness.pass_s(self.draw.choice((0.1, 0.6)), self.draw.randrange(1, 4))

    def come(self) -> None:
        if self.client is None:
            self.client, self.pending = self.harness.client("sub"), []

    def ack(self) -> None:
        if self.client is None:
            return
        self.harness.store.deliver()
        self.harness.advance(0.2)
        self.pending += [(packet_id, payload) for packet_id, payload, _, _ in self.client.publishes()]
        for _ in range(min(len(self.pending), self.draw.randrange(1, 20))):
            packet_id, payload = self.pending.pop(0)
            self.acked.append(payload)
            self.client.ack(packet_id)

    def leave(self) -> None:
        if self.client is not None:
            self.client.lose()
            self.client = None

    def crash(self) -> None:
        self.harness.crash()
        self.client = None

    def snapshot(self) -> None:
        self.harness.sync()
        self.harness.take_snapshot()
        self.harness.sync()

    def forget(self) -> None:
        self.harness.forget()

    def wipe(self) -> None:
        self.harness.store.wipe()

    def cut(self) -> None:
        """Lose the answers that are due, until nobody waits for them any more."""
        self.harness.store.drop_answers()
        self.harness.pass_s(31.0, 2)


def test_a_message_comes_back_as_it_was_published() -> None:
    harness = Stored()
    client = harness.client("sub", version=5)
    client.subscribe("t/#", 2, identifier=7, retain_as_published=1)
    client.lose()
    publisher = harness.client("publisher", clean=True, version=5)
    content_type = b"\x03\x00\x01x"
    publisher.publish("t/a", b"one", 1, properties=content_type)
    publisher.publish("t/a", b"two", 1, retain=True)
    harness.pass_s()
    harness.forget()
    found = [packet for packet in _publishes_of(harness, "sub") if packet[0] >> 4 == 3]
    assert [first >> 1 & 3 for first, _ in found] == [1, 1]
    assert [first & 1 for first, _ in found] == [0, 1]
    assert content_type in found[0][1]
    assert all(b"\x0b\x07" in body for _, body in found)


def _publishes_of(harness: Stored, client_id: str) -> list[tuple[int, bytes]]:
    client = harness.client(client_id, version=5)
    for _ in range(5):
        harness.store.deliver()
        harness.advance(0.2)
    return client.take()


def test_what_a_store_has_forgotten_is_dropped_with_its_reason() -> None:
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    harness.pass_s()
    harness.forget()
    harness.store.wipe()
    harness.store.deliver()
    later = publish(harness, 3, 10)
    assert read(harness, harness.client("sub")) == later
    assert harness.session("sub").dropped == {DROP_STORE_FORGOT: 10}
    assert harness.session("sub").drops_by_name() == {"store_forgot": 10}


def test_a_client_that_keeps_up_costs_the_store_nothing() -> None:
    harness = Stored()
    client = harness.client("sub")
    client.subscribe("t/#")
    for number in range(5):
        publish(harness, 20, 20 * number)
        assert len(read(harness, client)) == 20
        harness.pass_s()
    client.lose()
    publish(harness, 3)
    assert len(read(harness, harness.client("sub"))) == 3, "back within a second"
    harness.pass_s()
    assert harness.store.streams == {}
    assert harness.store.contexts == {}
    assert harness.broker.fold.in_stores == {}


def test_what_a_session_has_in_a_store_ends_with_it() -> None:
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    harness.pass_s()
    assert len(harness.store.streams) == 1
    assert len(harness.store.contexts) == 1
    harness.client("sub", clean=True)
    harness.pass_s()
    assert harness.store.streams == {}
    assert harness.store.contexts == {}
    assert harness.broker.fold.in_stores == {}


def test_streams_of_sessions_that_ended_in_a_crash_are_swept() -> None:
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    harness.pass_s()
    left, beside = dict(harness.store.streams), dict(harness.store.contexts)
    assert len(beside) == 1
    harness.client("sub", clean=True)
    harness.crash()
    harness.store.streams.update(left)  # its end was durable, and nobody had told the store
    harness.store.contexts.update(beside)
    assert len(harness.store.streams) == 1
    harness.pass_s(15.0)
    assert harness.store.streams == {}
    assert harness.store.contexts == {}


def test_a_stream_that_a_crash_kept_from_the_journal_is_swept_and_its_generation_is_not_used_again() -> None:
    """Its session lives, and has nothing else in a store: a deletion that waits must not meet what is put later."""
    harness = Stored()
    harness.away("sub")
    payloads = publish(harness, 3)
    incarnation = harness.session("sub").incarnation
    name = QueueName("default", "sub", JOURNAL, 1, incarnation)
    harness.store.put(0, name, 1, [b"x"], True)  # STORED of it was not durable
    assert read(harness, harness.client("sub")) == payloads
    harness.pass_s(15.0)
    assert harness.store.streams == {}
    harness.client("sub").lose()
    payloads = publish(harness, 3, 3)
    harness.pass_s()
    assert [found.generation for found in harness.store.streams] == [2]
    harness.forget()
    assert read(harness, harness.client("sub")) == payloads


def test_sessions_without_a_store_are_left_alone() -> None:
    """An APPLICATION has none here, and what ends with its connection needs none."""
    settings = BrokerSettings()
    settings.application_client_ids = ["app"]
    harness = Stored(settings)
    harness.away("app")
    publish(harness, 10)
    harness.pass_s()
    assert harness.store.streams == {}
    assert len(read(harness, harness.client("app"))) == 10


def test_a_session_that_only_a_store_can_serve_is_named() -> None:
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    fold, chosen = harness.broker.fold, harness.choosing
    assert homeless(fold, [], chosen) is None
    harness.pass_s()
    assert homeless(fold, [], chosen) is harness.session("sub")
    assert homeless(fold, [FAR], Chosen(FAR)) is harness.session("sub")
    assert homeless(fold, [NEAR], Chosen(FAR)) is None, "it stays where it is until it has been read"
    assert len(read(harness, harness.client("sub"))) == 10
    assert homeless(fold, [], chosen) is None


def test_a_queue_of_before_stores_were_written_down_lies_in_that_of_its_type() -> None:
    harness = Stored()
    harness.away("sub")
    payloads = publish(harness, 10)
    harness.pass_s()
    rows = harness.session("sub").outbound().stored_rows()
    assert rows.placed == NEAR
    of_before = StoredRows()
    of_before.load(rows.fields()[:3])
    assert of_before.placed == 0
    assert of_before.fields()[:3] == rows.fields()[:3]
    harness.session("sub").outbound().rows = of_before
    assert digest_of(harness.session("sub"), harness.choosing) == NEAR
    of_before.place(NEAR)
    assert of_before.held(1) == (10, 10), "it is the first time that this is said"
    harness.session("sub").outbound().rows = rows
    assert read(harness, harness.client("sub")) == payloads


def test_a_queue_goes_to_another_store_once_nothing_lies_in_its_own_alone() -> None:
    harness = Stored()
    harness.away("sub")
    payloads = publish(harness, 10)
    harness.pass_s()
    harness.choosing = Chosen(FAR)
    harness.crash()
    payloads += publish(harness, 10, 10)
    harness.pass_s()
    assert len(harness.store.streams) == 1
    assert harness.far.streams == {}, "what only the first one has, has to be read first"
    harness.forget()
    assert read(harness, harness.client("sub")) == payloads
    harness.pass_s()
    harness.crash()
    harness.client("sub").lose()
    payloads = publish(harness, 10, 20)
    harness.pass_s()
    assert harness.store.streams == {}
    assert len(harness.far.streams) == 1
    harness.crash()
    harness.pass_s()
    harness.forget()
    assert read(harness, harness.client("sub")) == payloads
    harness.pass_s()
    assert harness.far.streams == {}


def test_what_waited_before_there_was_a_store_is_put_although_nothing_more_comes() -> None:
    harness = Stored()
    harness.choosing = Chosen(0)
    harness.crash()
    harness.away("sub")
    payloads = publish(harness, 10)
    harness.pass_s()
    assert harness.store.streams == {}
    harness.choosing = Chosen(NEAR)
    harness.crash()
    harness.pass_s(0.6)
    assert len(harness.store.streams) == 1
    harness.forget()
    assert len(harness.gone) == 10
    assert read(harness, harness.client("sub")) == payloads


@pytest.mark.parametrize("had_store", [False, True])
def test_what_waits_for_a_client_that_was_there_is_put_when_it_has_gone(had_store: bool) -> None:
    """It had less waiting than is put for one that is there, and nothing more comes."""
    harness = Stored()
    client = harness.client("sub", version=5, receive_maximum=2)
    client.subscribe("t/#")
    if had_store:
        client.lose()
        publish(harness, 3, 100)
        harness.pass_s()
        client = harness.client("sub", version=5, receive_maximum=2)
        for packet_id, _, _, _ in client.publishes():
            client.ack(packet_id)
    publish(harness, 10)
    harness.pass_s()
    before = {name.generation: stream.last for name, stream in harness.store.streams.items()}
    client.lose()
    harness.pass_s()
    after = {name.generation: stream.last for name, stream in harness.store.streams.items()}
    assert max(after.values(), default=0) == harness.session("sub").outbound().next_serial - 1
    assert after != before


@pytest.mark.parametrize("let_go", [False, True])
def test_a_journal_that_was_put_back_from_a_copy_reads_nothing_of_the_time_that_is_lost(let_go: bool) -> None:
    """Under the same numbers other messages have come since, as many and more."""
    harness = Stored()
    harness.away("sub")
    payloads = publish(harness, 10)
    if let_go:
        harness.pass_s()
    copy = list(harness.journal.bodies)
    publish(harness, 5, 100)
    harness.pass_s()
    assert max(stream.last for stream in harness.store.streams.values()) == 15
    harness._open(copy)
    payloads += publish(harness, 9, 10)
    harness.pass_s(0.6)
    harness.forget()
    assert len(harness.gone) == 19
    assert read(harness, harness.client("sub")) == payloads
    assert harness.session("sub").dropped is None
    harness.pass_s(10.0)
    assert harness.store.streams == {}


def test_what_is_looked_at_after_a_start_is_known_again() -> None:
    harness = Stored()
    harness.window_ms = ALWAYS
    harness.crash()
    harness.away("sub")
    publish(harness, 10)
    harness.pass_s()
    harness.crash()
    harness.pass_s()
    stored = harness.broker.stored
    assert stored is not None
    counters = stored.storings[0][1].counters
    assert (counters.compared, counters.made_anew) == (1, 0)


def test_a_store_that_is_full_leaves_the_queue_to_the_journal() -> None:
    harness = Stored()
    harness.store.bytes_max = 50
    harness.away("sub")
    payloads = publish(harness, 10)
    harness.pass_s()
    harness.forget()
    assert read(harness, harness.client("sub")) == payloads
    assert harness.session("sub").dropped is None


def census() -> int:
    """How many queues of sessions with a store there are in the process."""
    return sum(isinstance(found, StoredSession) for found in gc.get_objects())


def test_nothing_of_a_queue_is_left_when_its_session_has_ended_or_its_shard_is_given_up() -> None:
    gc.collect()
    before = census()
    harness = Stored()
    harness.away("one")
    harness.away("two")
    publish(harness, 10)
    harness.pass_s()
    assert census() == before + 2
    gc.disable()
    try:
        harness.client("one", clean=True)
        harness.pass_s()
        assert census() == before + 1
        stored = harness.broker.stored
        assert stored is not None
        stored.let_go()
        assert census() == before
    finally:
        gc.enable()


def test_a_shard_that_rests_asks_its_stores_for_nothing() -> None:
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    stored = harness.broker.stored
    assert stored is not None
    stored.rest()
    harness.pass_s()
    assert harness.store.streams == {}
    assert not stored.ask_stores()


def test_what_the_journal_has_lost_is_read_from_a_store_that_has_it_too() -> None:
    """A record that is damaged is no loss where its message was put, although the journal was to keep it."""
    harness = Stored()
    harness.window_ms = ALWAYS
    harness.crash()
    harness.away("sub")
    payloads = publish(harness, 10)
    harness.pass_s()
    queue = harness.session("sub").outbound()
    assert queue.let_go() == 0
    for offset, record in enumerate(harness.journal.records):
        if isinstance(record, Message):
            harness._take_away(offset)
    assert read(harness, harness.client("sub")) == payloads
    assert harness.session("sub").dropped is None


def test_what_nobody_has_any_more_is_unreadable_and_not_forgotten_by_the_store() -> None:
    harness = Stored()
    harness.window_ms = ALWAYS
    harness.crash()
    harness.away("sub")
    publish(harness, 3)
    harness.pass_s()
    for offset, record in enumerate(harness.journal.records):
        if isinstance(record, Message):
            harness._take_away(offset)
    harness.store.streams.clear()
    assert read(harness, harness.client("sub")) == []
    assert harness.session("sub").drops_by_name() == {"unreadable": 3}


def test_who_peeks_asks_the_store_for_nothing_and_takes_nothing_from_it() -> None:
    harness = Stored()
    harness.away("d")
    sent = publish(harness, 20)
    harness.pass_s()
    harness.forget()
    session = harness.session("d")
    queue = session.outbound()
    waiting = queue.backlog.entries_from(0, 20)
    assert waiting is not None
    found = [harness.broker.delivery.reader.peek(session, 1 + at, ref) for at, ref in enumerate(waiting[0])]
    assert not any(isinstance(one, Message) for one in found)
    assert not harness.store._answers
    assert read(harness, harness.client("d")) == sent


def test_a_queue_that_was_read_is_forgotten_and_begun_again_behind_what_came_meanwhile() -> None:
    """What a client has got while it was there is not put when it has gone again, not even as nothing."""
    harness = Stored()
    harness.away("sub")
    publish(harness, 10)
    harness.pass_s()
    before = census()
    client = harness.client("sub")
    assert len(read(harness, client)) == 10
    harness.pass_s()
    assert census() == before - 1
    assert harness.broker.fold.in_stores == {}
    assert harness.store.contexts == {}
    publish(harness, 50, 10)
    assert len(read(harness, client)) == 50
    client.lose()
    payloads = publish(harness, 5, 60)
    harness.pass_s()
    (stream,) = harness.store.streams.values()
    assert min(stream.entries) == 61
    assert len(stream.entries) == 5
    harness.crash()
    harness.pass_s()
    harness.forget()
    assert read(harness, harness.client("sub")) == payloads


def test_a_client_that_waits_for_a_store_goes_on_soon_after_it_is_back() -> None:
    """However many clients wait: a round of reads that fail ends after a few, and was to come ever more rarely."""
    harness = Stored()
    names = [f"sub{number}" for number in range(40)]
    for name in names:
        harness.away(name)
    payloads = publish(harness, 3)
    harness.pass_s()
    harness.forget()
    stored = harness.broker.stored
    assert stored is not None
    clients = [harness.client(name) for name in names]
    for name in names:  # the store says that it cannot tell
        known = stored.queue_of(harness.session(name).incarnation)
        assert known is not None
        stored.storings[0][1].read_back(known.reading, REFUSED, 0, [], [])
    harness.store.drop_answers()
    for _ in range(4):
        harness.advance(0.1)
        harness.store.deliver()
        harness.sync()
    assert [[payload for _, payload, _, _ in client.publishes()] for client in clients] == [payloads] * len(
        names
    )
