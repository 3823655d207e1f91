"""Long backlogs of sessions and groups through the broker: pages in the journal, crashes, order, limits."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.outbound.spilling import Spilling
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.record import (
    BACKLOG_PAGE,
    DROP_BYTES_LIMIT,
    DROP_TENANT_BYTES_LIMIT,
    DROP_UNREADABLE,
    SHARED_BACKLOG_PAGE,
    Progress,
)
from headrace.core.state.backlog import Backlog
from headrace.storage.embedded.references import References

PAGE = 8
MESSAGES = 200


def harness_of_small_pages() -> Harness:
    settings = BrokerSettings()
    settings.backlog_page = PAGE
    settings.restart_grace_ms = 0
    return Harness(settings)


def pages(harness: Harness, subkind: int) -> list[Progress]:
    return [r for r in harness.journal.records if isinstance(r, Progress) and r.subkind == subkind]


def away(harness: Harness, topic_filter: str) -> None:
    client = harness.client("away")
    client.subscribe(topic_filter)
    client.disconnect()


def publish(harness: Harness, count: int = MESSAGES) -> None:
    publisher = harness.client("p", clean=True)
    for number in range(count):
        publisher.publish("t", b"%d" % number)
    publisher.disconnect()


def backlog_of(harness: Harness) -> Backlog:
    tenant = harness.broker.fold.tenant("default")
    if tenant.groups:
        return next(iter(tenant.groups.values())).backlog
    return tenant.sessions["away"].outbound().backlog


def drain(client: Client) -> list[bytes]:
    """Take and acknowledge everything."""
    found: list[bytes] = []
    while batch := client.publishes():
        for packet_id, payload, _, _ in batch:
            found.append(payload)
            client.ack(packet_id, sync=False)
        client.harness.sync()
    return found


@pytest.mark.parametrize(
    ("topic_filter", "subkind"), [("t", BACKLOG_PAGE), ("$share/g/t", SHARED_BACKLOG_PAGE)]
)
@pytest.mark.parametrize("snapshot_at", [0, MESSAGES // 2, MESSAGES])
def test_a_long_backlog_survives_a_crash_in_few_references(
    topic_filter: str, subkind: int, snapshot_at: int
) -> None:
    harness = harness_of_small_pages()
    away(harness, topic_filter)
    publish(harness, snapshot_at)
    if snapshot_at:
        harness.take_snapshot()
    publish(harness, MESSAGES - snapshot_at)
    assert len(pages(harness, subkind)) >= MESSAGES // PAGE - 3
    assert len(backlog_of(harness).in_memory()) <= 3 * PAGE
    harness.crash()
    backlog = backlog_of(harness)
    assert backlog.count == MESSAGES
    assert len(backlog.in_memory()) <= 3 * PAGE
    payloads = drain(harness.client("away"))
    numbers = [*range(snapshot_at), *range(MESSAGES - snapshot_at)]
    assert payloads == [b"%d" % number for number in numbers]
    assert backlog.bytes == harness.broker.fold.tenant("default").space.bytes == 0
    assert backlog.count == harness.broker.fold.tenant("default").space.count == 0


def test_a_drain_that_is_cut_short_goes_on_where_it_was() -> None:
    harness = harness_of_small_pages()
    away(harness, "t")
    publish(harness)
    client = harness.client("away", version=5, receive_maximum=5)
    for _ in range(5 * PAGE // 5 + 1):
        for packet_id, _, _, _ in client.publishes():
            client.ack(packet_id)
    in_flight = client.publishes()
    harness.crash()
    again = harness.client("away", version=5, receive_maximum=5).publishes()
    assert [(packet_id, payload) for packet_id, payload, _, _ in again] == [
        (packet_id, payload) for packet_id, payload, _, _ in in_flight
    ]
    assert all(dup for _, _, dup, _ in again)


def test_pages_and_what_is_in_them_are_referred_to() -> None:
    harness = harness_of_small_pages()
    away(harness, "t")
    publish(harness)
    records = harness.journal.records
    references = References(harness.broker.fold, 0, len(records))
    for walk in (references.retained, references.owners):
        assert list(walk())
    found = references.between(0, len(records))
    assert {o for o in found if isinstance(records[o], Message)} == {
        o for o, record in enumerate(records) if isinstance(record, Message)
    }
    named = [o for o in found if isinstance(records[o], Progress)]
    assert sorted(named) == sorted(backlog_of(harness).page_offsets())
    assert len(named) > MESSAGES // PAGE - 4


def test_a_short_queue_writes_no_page() -> None:
    harness = harness_of_small_pages()
    client = harness.client("away")
    client.subscribe("t")
    publisher = harness.client("p", clean=True)
    for number in range(MESSAGES):
        publisher.publish("t", b"%d" % number)
        for packet_id, _, _, _ in client.publishes():
            client.ack(packet_id)
    client.disconnect()
    publish(harness, PAGE)
    assert pages(harness, BACKLOG_PAGE) == []


def test_a_lost_page_costs_its_own_entries_and_they_are_counted() -> None:
    harness = harness_of_small_pages()
    away(harness, "t")
    publish(harness)
    lost = backlog_of(harness).page_offsets()[3]
    harness.journal.records[lost] = Progress(1, 0, b"")
    payloads = drain(harness.client("away"))
    assert len(payloads) == MESSAGES - PAGE
    assert payloads == sorted(payloads, key=int)
    session = harness.broker.fold.tenant("default").sessions["away"]
    assert session.dropped == {DROP_UNREADABLE: PAGE}


def test_a_device_keeps_what_fits_into_its_bytes() -> None:
    harness = harness_of_small_pages()
    harness.settings.backlog_bytes_max = 1000
    away(harness, "t")
    publisher = harness.client("p", clean=True)
    for number in range(MESSAGES):
        publisher.publish("t", b"%03d" % number + bytes(96))  # 100 bytes with its topic
    harness.crash()
    payloads = drain(harness.client("away"))
    assert [payload[:3] for payload in payloads] == [
        b"%03d" % number for number in range(MESSAGES - 10, MESSAGES)
    ]
    session = harness.broker.fold.tenant("default").sessions["away"]
    assert session.dropped == {DROP_BYTES_LIMIT: MESSAGES - 10}


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_a_tenant_keeps_what_fits_into_its_bytes(topic_filter: str) -> None:
    harness = harness_of_small_pages()
    harness.settings.tenant_backlog_bytes_max = 3000
    away(harness, topic_filter)
    other = harness.client("other")
    other.subscribe("u")
    other.disconnect()
    publisher = harness.client("p", clean=True)
    for _ in range(10):
        publisher.publish("u", bytes(99))
    for number in range(MESSAGES):
        publisher.publish("t", b"%03d" % number + bytes(96))
    tenant = harness.broker.fold.tenant("default")
    assert tenant.space.bytes == 3000
    assert tenant.space.count == 30
    assert tenant.counters.dropped == {DROP_TENANT_BYTES_LIMIT: MESSAGES - 20}
    harness.crash()
    assert harness.broker.fold.tenant("default").space.bytes == 3000
    assert harness.broker.fold.tenant("default").space.count == 30
    payloads = drain(harness.client("away"))
    assert [payload[:3] for payload in payloads] == [
        b"%03d" % number for number in range(MESSAGES - 20, MESSAGES)
    ]
    assert len(drain(harness.client("other"))) == 10
    assert harness.broker.fold.tenant("default").space.bytes == 0


def test_a_session_that_ends_leaves_its_bytes_to_the_others() -> None:
    harness = harness_of_small_pages()
    away(harness, "t")
    publish(harness)
    assert harness.broker.fold.tenant("default").space.bytes > 0
    harness.client("away", clean=True)
    assert harness.broker.fold.tenant("default").space.bytes == 0


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_a_page_that_could_not_be_appended_is_tried_again(topic_filter: str) -> None:
    """Its references would stay in memory, and those of all pages behind it, until the queue has drained."""
    harness = harness_of_small_pages()
    away(harness, topic_filter)
    publish(harness, 2 * PAGE - 1)
    smaller = BrokerSettings()
    smaller.backlog_page = PAGE // 2
    clock = Clock()
    clock.now_us = 1 << 70  # no record can be made with that time
    spilling = Spilling(harness.broker.commit, clock, smaller)
    tenant = harness.broker.fold.tenant("default")

    def spill() -> None:
        if tenant.groups:
            spilling.spill_group(next(iter(tenant.groups.values())))
        else:
            session = tenant.sessions["away"]
            spilling.spill_queue(session.incarnation, session.outbound())

    with pytest.raises(ValueError, match="too large"):
        spill()
    clock.now_us = harness.now_us
    spill()
    harness.sync()
    backlog = backlog_of(harness)
    assert len(backlog.in_memory()) < 2 * PAGE - 1
    publish(harness)
    assert len(backlog.in_memory()) <= 3 * PAGE
    assert backlog.behind is not None
    assert backlog.behind.pending == 0
