"""No pass of the loop does more than its share, in units (decisions 29): a standard load and its storms.

What is counted is what was sent and what was journaled between two moments at which the loop may read others. How many
milliseconds that takes is a metric, `headrace_loop_stalls_total`.
"""

from __future__ import annotations

from collections.abc import Callable

from harness import Client, Harness
from headrace.core.outbound.retained_replay import PAGE_MESSAGES
from headrace.core.outbound.spilling import PAGES_AT_ONCE
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import TIMERS_AT_ONCE
from headrace.mqtt import codec
from headrace.stream import MORE

PAIRS, WINDOW, FLEET, RETAINED = 100, 16, 1300, 2000


class Passes:
    """Runs a broker pass by pass and keeps the largest."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.harness = Harness(settings)
        settings = self.harness.settings
        self.most_sent = 0
        self.most_journaled = 0
        # A part ends with the record that fills it: a page of a returning session, or of retained messages.
        self.allowed = settings.deliveries_at_once + max(settings.page_messages, PAGE_MESSAGES)

    def step(self, call: Callable[[], object]) -> None:
        counters = self.harness.broker.fold.tenant("default").counters
        sent, journaled = counters.publishes_sent, len(self.harness.journal.records)
        call()
        self.most_sent = max(self.most_sent, counters.publishes_sent - sent)
        self.most_journaled = max(self.most_journaled, len(self.harness.journal.records) - journaled)

    def run(self) -> None:
        """Until nothing is left to do."""
        broker, journal = self.harness.broker, self.harness.journal
        self.step(broker.worker.end_tick)
        while not broker.idle or broker.delivery.hungry:
            journal.durable = len(journal.records)
            self.step(lambda: broker.commit.on_high_watermark(journal.durable))
            self.step(broker.worker.end_tick)

    def check(self) -> None:
        """The largest pass since the last time."""
        assert 0 < self.most_sent <= self.allowed
        self.most_sent = 0


def fleet(passes: Passes, count: int, topic: str) -> list[Client]:
    clients = [passes.harness.client(f"{topic}{number}", version=5) for number in range(count)]
    for client in clients:
        client.subscribe(topic)
    return clients


def test_pairs_at_a_window() -> None:
    passes = Passes()
    for number in range(PAIRS):
        passes.harness.client(f"s{number}").subscribe(f"p/{number}")
    publishers = [passes.harness.client(f"p{number}", clean=True) for number in range(PAIRS)]
    for number, publisher in enumerate(publishers):
        for _ in range(WINDOW):
            publisher.publish(f"p/{number}", b"x", sync=False)
    passes.run()
    passes.check()
    assert passes.harness.broker.fold.tenant("default").counters.publishes_sent == PAIRS * WINDOW


def test_fan_out_and_a_fleet_that_comes_back_with_a_backlog() -> None:
    passes = Passes()
    clients = fleet(passes, FLEET, "all")
    publisher = passes.harness.client("p", clean=True)
    for qos in (1, 0):
        publisher.publish("all", b"x", qos, sync=False)
        passes.run()
        passes.check()
    for client in clients:
        client.lose_unsynced()
    passes.run()
    for _ in range(3):
        publisher.publish("all", b"while away", sync=False)
        passes.run()
    for number in range(FLEET):
        passes.harness.client(f"all{number}", version=5, sync=False)
    passes.run()
    passes.check()


def test_a_message_for_very_many_groups() -> None:
    passes = Passes()
    members = [passes.harness.client(f"m{number}", version=5, receive_maximum=1000) for number in range(4)]
    for number in range(FLEET):
        members[number % 4].subscribe(f"$share/g{number}/t", 1)
    for member in members[::2]:
        member.subscribe("t", 1)
    publisher = passes.harness.client("p", clean=True)
    counters = passes.harness.broker.fold.tenant("default").counters
    for qos in (1, 0):
        before = counters.publishes_sent
        publisher.publish("t", b"x", qos, sync=False)
        passes.run()
        assert counters.publishes_sent - before == FLEET + len(members) // 2
        passes.check()


def test_a_bare_hash_over_many_retained_messages() -> None:
    for clean in (True, False):
        passes = Passes()
        publisher = passes.harness.client("p", clean=True)
        for number in range(RETAINED):
            publisher.publish(f"r/{number}", b"x", retain=True, sync=number % 500 == 0)
        passes.run()
        client = passes.harness.client("hash", version=5, clean=clean, receive_maximum=0xFFFF)
        client.feed(b"\x82\x07\x00\x01\x00\x00\x01#\x01", sync=False)
        passes.run()
        passes.check()
        client.feed(b"\xa2\x06\x00\x02\x00\x00\x01#", sync=False)
        passes.run()


def test_sessions_that_expire_together() -> None:
    passes = Passes()
    for number in range(3 * TIMERS_AT_ONCE):
        passes.harness.client(f"c{number}", version=5, expiry_s=10).lose_unsynced()
    passes.run()
    passes.most_journaled = 0
    broker, clock = passes.harness.broker, passes.harness.clock
    clock.now_us += 20_000_000
    clock.mono_ms += 20_000
    while broker.fold.by_incarnation:
        passes.step(passes.harness.worker.on_timer)
        passes.run()
    assert 0 < passes.most_journaled <= TIMERS_AT_ONCE


def test_a_message_that_very_many_filters_match_counts_as_what_it_costs() -> None:
    """One client matches 1 024 filters with each message, and no topic comes twice."""
    harness = Harness()
    client = harness.client("many")
    levels = 10
    for number in range(1 << levels):
        client.subscribe("/".join("+" if number >> level & 1 else "a" for level in range(levels)), 0)
    publisher, broker = harness.client("p", clean=True), harness.broker
    counters = broker.fold.tenant("default").counters
    publisher.protocol.packets_at_once = broker.worker.share
    before = counters.publishes_received
    topics = [b"/".join([b"a"] * (levels - 1) + [b"%d" % number]) for number in range(400)]
    publisher.feed(b"".join(codec.encode_publish(4, topic, b"x") for topic in topics[:200]), sync=False)
    assert publisher.protocol.outcome == MORE
    assert 0 < counters.publishes_received - before <= 1 + 8 * broker.worker.share // 1024
    durable = harness.client("durable", clean=True)
    durable.feed(
        b"".join(codec.encode_publish(4, topic, b"x", 1, packet_id=1) for topic in topics[200:]), sync=False
    )
    broker.worker.end_tick()
    harness.journal.durable = len(harness.journal.records)
    before = counters.publishes_sent
    broker.commit.on_high_watermark(harness.journal.durable)
    assert 0 < counters.publishes_sent - before <= 1 + 8 * harness.settings.deliveries_at_once // 1024


def test_pages_that_answers_bring_with_them_count() -> None:
    """Each of these clients comes back to a page of messages, which it is sent behind its CONNACK."""
    passes = Passes()
    clients, waiting = fleet(passes, 20, "all"), passes.harness.settings.page_messages
    publisher = passes.harness.client("p", clean=True)
    for client in clients:
        client.lose_unsynced()
    for number in range(waiting):
        publisher.publish("all", b"%d" % number, sync=False)
    passes.run()
    passes.most_sent = 0
    for number in range(len(clients)):
        passes.harness.client(f"all{number}", version=5, sync=False)
    passes.run()
    assert passes.harness.broker.fold.tenant("default").counters.publishes_sent == len(clients) * waiting
    passes.check()


def test_queues_that_become_long_together_write_their_pages_one_after_the_other() -> None:
    """With the same message a fan-out fills the memory of very many of them."""
    settings = BrokerSettings()
    settings.backlog_page = 128
    passes = Passes(settings)
    for number in range(100):
        passes.harness.client(f"away{number}").subscribe("all")
    for session in list(passes.harness.broker.fold.by_incarnation.values()):
        assert session.link is not None
        passes.harness.broker.on_connection_lost(session.link)
    publisher = passes.harness.client("p", clean=True)
    passes.run()
    passes.most_journaled = 0
    for number in range(500):
        publisher.publish("all", b"%d" % number, sync=False)
        passes.run()
    assert 1 < passes.most_journaled <= 2 * PAGES_AT_ONCE + 2  # what takes effect before a tick, and in it
    backlogs = [session.outbound().backlog for session in passes.harness.broker.fold.by_incarnation.values()][
        :100
    ]
    assert all(backlog.count == 500 for backlog in backlogs)
    assert (
        max(backlog.loose() for backlog in backlogs) <= 2 * settings.backlog_page + 100 // PAGES_AT_ONCE + 2
    )
