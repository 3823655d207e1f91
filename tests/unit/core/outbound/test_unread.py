"""What cannot be read now is waited for: nothing is dropped, others go on, tries are few, and a timer is
the last resort."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.outbound.unread import FAILURES_AT_ONCE, RETRY_MAX_MS, RETRY_MIN_MS, Unread
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.waiting import QueueOwner
from headrace.core.records.record import (
    DROP_LIMIT,
    DROP_UNREADABLE,
    DROPPED,
    SHARED_FINISHED,
    Progress,
)
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler, MemoryQueues, MemoryWaker

PAGE = 4


def harness_of(backlog_messages_max: int = 1000) -> Harness:
    settings = BrokerSettings()
    settings.backlog_page = PAGE
    settings.backlog_messages_max = backlog_messages_max
    settings.page_messages = 7
    settings.restart_grace_ms = 0
    return Harness(settings)


def publish(harness: Harness, count: int, topic: str = "t", first: int = 0, qos: int = 1) -> list[bytes]:
    publisher = harness.client("p", clean=True)
    sent = [b"%d" % number for number in range(first, first + count)]
    for payload in sent:
        publisher.publish(topic, payload, qos=qos)
    publisher.disconnect()
    return sent


def away(harness: Harness, client_id: str = "away", topic_filter: str = "t", qos: int = 1) -> None:
    client = harness.client(client_id)
    client.subscribe(topic_filter, qos=qos)
    client.disconnect()


def drain(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while batch := client.publishes():
        for packet_id, payload, _, _ in batch:
            found.append(payload)
            client.ack(packet_id)
    return found


def dropped(harness: Harness, subkind: int = DROPPED) -> list[Progress]:
    return [r for r in harness.journal.records if isinstance(r, Progress) and r.subkind == subkind]


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_whoever_returns_waits_and_gets_everything(topic_filter: str) -> None:
    harness = harness_of()
    away(harness, topic_filter=topic_filter)
    sent = publish(harness, 60)
    harness.journal.reads_fail = True
    client = harness.client("away")
    for _ in range(20):
        harness.advance(1)
    assert drain(client) == []
    assert dropped(harness) == []
    assert dropped(harness, SHARED_FINISHED) == []
    harness.journal.reads_fail = False
    harness.advance(RETRY_MAX_MS / 1000)
    assert drain(client) == sent
    assert dropped(harness) == []
    assert len(harness.broker.unread) == 0


def test_what_was_in_flight_comes_again_when_it_can_be_read() -> None:
    harness = harness_of()
    client = harness.client("c")
    client.subscribe("t")
    sent = publish(harness, 10)
    first = client.publishes()
    client.lose()
    harness.journal.reads_fail = True
    client = harness.client("c")
    assert client.publishes() == []
    harness.journal.reads_fail = False
    sent += publish(harness, 3, first=10)
    harness.advance(1)
    again = client.publishes()
    assert [(pid, payload, True, 1) for pid, payload, _, _ in first] == again[:10]
    assert [payload for _, payload, _, _ in again] == sent


def test_a_member_gets_what_it_has_of_a_group_again_when_it_can_be_read() -> None:
    harness = harness_of()
    member = harness.client("m", version=5)
    member.subscribe("$share/g/t", qos=2)
    publish(harness, 3, qos=2)
    assert [payload for _, payload, _, _ in member.publishes()] == [b"0", b"1", b"2"]
    member.lose()
    harness.journal.reads_fail = True
    member = harness.client("m", version=5)
    assert member.publishes() == []
    harness.journal.reads_fail = False
    harness.advance(1)
    assert [(payload, dup) for _, payload, dup, _ in member.publishes()] == [
        (b"0", True),
        (b"1", True),
        (b"2", True),
    ]


def test_one_unreadable_entry_holds_up_nobody_else() -> None:
    harness = harness_of()
    for client_id in ("a", "b"):
        away(harness, client_id, client_id)
    publish(harness, 30, "a")
    sent = publish(harness, 30, "b")
    queue = harness.broker.fold.tenant("default").sessions["a"].outbound()
    harness.journal.unreadable = {queue.lowest_offset()}
    stuck, free = harness.client("a"), harness.client("b")
    assert drain(free) == sent
    assert drain(stuck) == []
    harness.advance(60)
    assert drain(stuck) == []
    publish(harness, 5, "a", first=30)
    harness.journal.unreadable = set()
    harness.advance(60)
    assert drain(stuck) == [b"%d" % number for number in range(35)]


def test_a_group_does_not_try_for_ever_and_any_member_goes_on() -> None:
    harness = harness_of()
    away(harness, "a", "$share/g/t")
    sent = publish(harness, 40)
    harness.journal.reads_fail = True
    first = harness.client("a")
    second = harness.client("b")
    second.subscribe("$share/g/t")
    sent += publish(harness, 5, first=40)
    first.lose()
    harness.journal.reads_fail = False
    harness.advance(10)
    assert drain(second) == sent


def test_limits_drop_what_was_never_read() -> None:
    harness = harness_of(backlog_messages_max=50)
    away(harness)
    publish(harness, 50)
    harness.journal.reads_fail = True
    client = harness.client("away")
    sent = publish(harness, 70, first=50)
    assert client.publishes() == []
    session = harness.broker.fold.tenant("default").sessions["away"]
    assert session.dropped == {DROP_LIMIT: 70}
    queue = session.outbound()
    assert queue.backlog.count == 50
    harness.journal.reads_fail = False
    harness.advance(10)
    assert drain(client) == sent[-50:]
    assert (queue.backlog.count, queue.backlog.bytes, session.tenant.space.bytes) == (0, 0, 0)


@pytest.mark.parametrize("drawn", [0, 3, PAGE, 2 * PAGE + 1])
def test_a_snapshot_and_a_crash_while_a_page_cannot_be_read(drawn: int) -> None:
    harness = harness_of(backlog_messages_max=50)
    away(harness)
    publish(harness, 50)
    client = harness.client("away", version=5, receive_maximum=1)
    for _ in range(drawn):
        ((packet_id, _, _, _),) = client.publishes()
        client.ack(packet_id)
    queue = harness.broker.fold.tenant("default").sessions["away"].outbound()
    harness.journal.reads_fail = True
    while queue.backlog.loaded or not queue.backlog.count:  # until its head is in a page that cannot be read
        publish(harness, 1, first=1000)
    harness.take_snapshot()
    unfinished = queue.unfinished()
    harness.crash()
    restored = harness.broker.fold.tenant("default").sessions["away"].outbound()
    assert restored.unfinished() == unfinished
    found = drain(harness.client("away"))
    assert b"49" in found
    assert found[-1] == b"1000"


def test_tries_are_few_and_become_rare() -> None:
    harness = harness_of()
    for number in range(50):
        away(harness, f"c{number}", "t")
    publish(harness, 5)
    harness.journal.reads_fail = True
    for number in range(50):
        harness.client(f"c{number}")
    assert len(harness.broker.unread) == 50
    before = harness.journal.failed_reads
    harness.advance(0.1)
    assert harness.journal.failed_reads - before <= FAILURES_AT_ONCE
    for _ in range(100):
        harness.advance(0.1)
    before = harness.journal.failed_reads
    for _ in range(600):
        harness.advance(0.1)
    assert harness.journal.failed_reads - before <= (60_000 // RETRY_MAX_MS + 1) * FAILURES_AT_ONCE
    assert len(harness.broker.unread) == 50
    harness.journal.reads_fail = False
    harness.advance(RETRY_MAX_MS / 1000)
    assert len(harness.broker.unread) == 0


def test_acknowledgements_and_messages_meanwhile_read_nothing() -> None:
    harness = harness_of()
    client = harness.client("c", version=5, receive_maximum=5)
    client.subscribe("t")
    publish(harness, 20)
    got = client.publishes()
    harness.journal.reads_fail = True
    client.ack(got[0][0])
    before = harness.journal.failed_reads
    for packet_id, _, _, _ in got[1:]:
        client.ack(packet_id)
    publish(harness, 20, first=20)
    assert harness.journal.failed_reads == before
    harness.journal.reads_fail = False
    harness.advance(1)
    assert drain(client) == [b"%d" % number for number in range(5, 40)]


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_whoever_comes_back_again_and_again_waits_once(topic_filter: str) -> None:
    harness = harness_of()
    away(harness, topic_filter=topic_filter)
    sent = publish(harness, 3)
    harness.journal.reads_fail = True
    for _ in range(30):
        client = harness.client("away")
        client.lose()
    client = harness.client("away")
    assert len(harness.broker.unread) == 1
    before = harness.journal.failed_reads
    harness.advance(RETRY_MAX_MS / 1000)
    assert harness.journal.failed_reads == before + 1
    assert len(harness.broker.unread) == 1
    harness.journal.reads_fail = False
    harness.advance(RETRY_MAX_MS / 1000)
    assert drain(client) == sent


def test_whoever_has_gone_is_no_success_that_makes_tries_frequent() -> None:
    harness = harness_of()
    away(harness, "stays")
    away(harness, "goes")
    publish(harness, 3)
    harness.journal.reads_fail = True
    harness.client("stays")
    before = harness.journal.failed_reads
    for _ in range(600):
        harness.client("goes").lose()
        harness.advance(0.1)
    seen = harness.journal.failed_reads - before - 600  # each time that it came back, one for itself
    assert seen <= 60_000 // RETRY_MAX_MS + 10


# Woken: no time passes in what follows, unless it says so


def read_by_another(harness: Harness) -> None:
    """Somebody else reads the journal, and can."""
    harness.journal.reads_fail = False
    away(harness, "other", "o")
    publish(harness, 1, "o")
    assert drain(harness.client("other")) == [b"0"]
    harness.sync()


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_whoever_waits_goes_on_as_soon_as_another_has_read(topic_filter: str) -> None:
    harness = harness_of()
    away(harness, topic_filter=topic_filter)
    sent = publish(harness, 60)
    harness.journal.reads_fail = True
    client = harness.client("away")
    assert drain(client) == []
    read_by_another(harness)
    assert drain(client) == sent
    assert len(harness.broker.unread) == 0


def test_what_a_member_had_of_a_group_comes_again_as_soon_as_another_has_read() -> None:
    harness = harness_of()
    member = harness.client("m", version=5)
    member.subscribe("$share/g/t", qos=2)
    publish(harness, 2, qos=2)
    assert len(member.publishes()) == 2
    member.lose()
    harness.journal.reads_fail = True
    member = harness.client("m", version=5)
    assert member.publishes() == []
    read_by_another(harness)
    assert [(payload, dup) for _, payload, dup, _ in member.publishes()] == [(b"0", True), (b"1", True)]


@pytest.mark.parametrize("ending", ["gone", "taken over", "clean", "expired"])
def test_a_hint_finds_whoever_has_taken_over_and_nobody_who_has_gone(ending: str) -> None:
    harness = harness_of()
    away(harness)
    sent = publish(harness, 5)
    harness.journal.reads_fail = True
    first = harness.client("away", version=5, expiry_s=1)
    second = first
    if ending == "taken over":
        second = harness.client("away", version=5)
    elif ending == "clean":
        second = harness.client("away", version=5, clean=True)
    else:
        first.lose()
    if ending == "expired":
        harness.advance(2)
    read_by_another(harness)
    assert drain(second) == (sent if ending == "taken over" else [])
    assert len(harness.broker.unread) == 0
    if ending != "taken over":
        assert drain(harness.client("away")) == (sent if ending == "gone" else [])


def test_a_bad_place_of_the_disk_is_not_read_again_whenever_another_has_read() -> None:
    harness = harness_of()
    away(harness, "stuck", "s")
    publish(harness, 3, "s")
    queue = harness.broker.fold.tenant("default").sessions["stuck"].outbound()
    harness.journal.unreadable = {queue.lowest_offset()}
    stuck = harness.client("stuck")
    before = harness.journal.failed_reads
    for _ in range(50):
        read_by_another(harness)
    assert harness.journal.failed_reads == before + 1
    harness.journal.unreadable = set()
    harness.advance(RETRY_MIN_MS / 1000)
    assert drain(stuck) == [b"0", b"1", b"2"]


class Waits:
    """Those who wait in a worker, and who of them is woken."""

    def __init__(self) -> None:
        self.harness = harness_of()
        self.unread = Unread(self.harness.worker)
        self.waker = MemoryWaker(self.unread)

    def add(self, count: int) -> list[QueueOwner]:
        owners = [QueueOwner() for _ in range(count)]
        for owner in owners:
            self.unread.add(owner, self.waker)
        return owners

    def tick(self) -> list[QueueOwner]:
        """End passes until there is nothing more to do; return who was woken."""
        self.waker.woken = []
        while self.unread.has_news and self.unread.try_again():
            pass
        return self.waker.woken

    def time(self, ms: int) -> list[QueueOwner]:
        """Let time pass; return whom the timer woke."""
        self.waker.woken = []
        self.harness.clock.mono_ms += ms
        self.unread.retry()
        return self.waker.woken


def test_who_is_woken_twice_late_or_never() -> None:
    waits = Waits()
    twice, other, never = waits.add(3)
    waits.unread.wake(twice)
    waits.unread.wake(twice)
    waits.unread.wake(QueueOwner())
    assert waits.tick() == [twice]
    waits.unread.wake(twice)
    assert not waits.unread.has_news, "it waits no more"
    waits.unread.wake(other)
    waits.unread.wake_all()
    assert waits.tick() == [other, never], "both say it of one"
    (never,) = waits.add(1)
    assert waits.time(RETRY_MIN_MS - 1) == []
    assert waits.time(1) == [never]
    assert len(waits.unread) == 0


def test_what_is_woken_asks_for_a_pass_of_its_own() -> None:
    waits = Waits()
    scheduler = ManualScheduler()
    worker = Worker(scheduler, waits.harness.clock, BrokerSettings())
    unread = Unread(worker)
    owner = QueueOwner()
    unread.wake(owner)
    unread.wake_all()
    assert scheduler.requests == 0, "nobody waits"
    unread.add(owner, waits.waker)
    unread.wake(owner)
    assert scheduler.requests == 1


def test_hints_in_vain_cost_few_tries_and_the_timer_makes_good() -> None:
    waits = Waits()
    owners = waits.add(20)
    waits.waker.stuck = set(owners)
    waits.unread.wake_all()
    assert waits.tick() == owners[:FAILURES_AT_ONCE]
    waits.unread.wake_all()
    assert waits.tick() == owners[FAILURES_AT_ONCE : 2 * FAILURES_AT_ONCE]
    waits.unread.wake_all()
    assert waits.tick() == owners[2 * FAILURES_AT_ONCE :]
    waits.unread.wake_all()
    assert waits.tick() == [], "each has what is its own"
    waits.waker.stuck = set()
    assert set(waits.time(RETRY_MAX_MS)) == set(owners)
    assert len(waits.unread) == 0


def test_those_whose_answers_have_come_are_woken_some_in_each_pass() -> None:
    waits = Waits()
    at_once = waits.harness.settings.deliveries_at_once = 3
    owners = waits.add(8)
    waits.waker.stuck = set(owners)
    for owner in owners:
        waits.unread.wake(owner)
    assert waits.unread.try_again()
    assert waits.waker.woken == owners[:at_once]
    assert waits.tick() == owners[at_once:], "an answer that needs another one is no failure"
    assert len(waits.unread) == 8


def test_one_that_fails_and_one_that_has_gone_cost_the_others_nothing() -> None:
    waits = Waits()
    failing, gone, last = waits.add(3)
    waits.waker.fails, waits.waker.gone = {failing}, {gone}
    waits.unread.wake_all()
    assert waits.tick() == [failing, gone, last]
    assert len(waits.unread) == 0
    assert waits.harness.worker.failures.counts["unread"] == 1


class FarHarness(Harness):
    """A broker whose sessions have their queues in a store that is far away."""

    def _own(self) -> None:
        self.worker = Worker(ManualScheduler(), self.clock, self.settings)
        self.store = MemoryQueues(self.journal)
        self.broker = self.worker.own(0, self.journal, self.store)

    def answer(self) -> None:
        """Let the store answer until nobody asks for anything."""
        while self.store.answer():
            self.sync()


def far() -> tuple[FarHarness, list[bytes]]:
    """A session that is away, and has eight messages in the store."""
    settings = BrokerSettings()
    settings.backlog_page = PAGE
    settings.restart_grace_ms = 0
    harness = FarHarness(settings)
    away(harness)
    return harness, publish(harness, 8)


def test_what_a_store_brings_goes_out_as_it_comes() -> None:
    harness, sent = far()
    client = harness.client("away")
    assert drain(client) == []
    harness.answer()
    assert drain(client) == sent
    assert len(harness.broker.unread) == 0


def test_what_a_store_has_lost_is_dropped_counted_and_passed_over() -> None:
    harness, sent = far()
    harness.store.lost = {2, 8}
    client = harness.client("away")
    harness.answer()
    assert drain(client) == [payload for payload in sent if payload not in (b"1", b"7")]
    session = harness.broker.fold.tenant("default").sessions["away"]
    assert session.dropped == {DROP_UNREADABLE: 2}
    assert len(dropped(harness)) == 2


def test_a_store_that_wakes_nobody_is_asked_again_by_the_timer() -> None:
    harness, sent = far()
    client = harness.client("away")
    got: list[bytes] = []
    for _ in sent:
        assert harness.store.answer(wakes=False) == 1
        harness.sync()
        assert drain(client) == []
        harness.advance(RETRY_MAX_MS / 1000)
        got += drain(client)
    assert got == sent


@pytest.mark.parametrize("ending", ["gone", "taken over", "clean", "expired"])
def test_an_answer_that_comes_behind_the_end(ending: str) -> None:
    harness, sent = far()
    first = harness.client("away", version=5, expiry_s=1)
    assert len(harness.store.asked) == 1
    client = first
    if ending == "taken over":
        client = harness.client("away", version=5)
    elif ending == "clean":
        client = harness.client("away", version=5, clean=True)
    else:
        first.lose()
    if ending == "expired":
        harness.advance(2)
    harness.answer()
    assert drain(client) == (sent if ending == "taken over" else [])
    if ending == "gone":
        client = harness.client("away")
        harness.answer()
        assert drain(client) == sent
    assert len(harness.broker.unread) == 0
    assert dropped(harness) == []
