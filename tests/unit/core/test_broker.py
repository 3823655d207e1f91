"""The broker's behaviour at the level of packets, over the in-memory journal."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import DROP_EXPIRED, DROP_LIMIT
from headrace.mqtt import codec

PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, CONNACK = 0x40, 0x50, 0x62, 0x70, 0x90, 0x20


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def test_offline_messages_come_back_in_order_with_stable_packet_ids() -> None:
    harness = Harness()
    subscriber = harness.client("s", version=5, receive_maximum=3)
    subscriber.subscribe("t")
    publisher = harness.client("p", clean=True)
    for n in range(6):
        publisher.publish("t", b"%d" % n)
    first = subscriber.publishes()
    assert [payload for _, payload, _, _ in first] == [b"0", b"1", b"2"]
    subscriber.ack(first[1][0])  # out of order: frees the window, the offset does not jump
    assert payloads(subscriber) == [b"3"]
    harness.crash()
    again = harness.client("s", version=5, receive_maximum=10).publishes()
    assert [(p, d) for _, p, d, _ in again] == [
        (b"0", True),
        (b"2", True),
        (b"3", True),
        (b"4", True),  # inside the reserved limit: it may have been sent
        (b"5", True),
    ]
    assert [again[0][0], again[1][0]] == [first[0][0], first[2][0]]


def test_pubrel_is_what_comes_again_after_pubrec() -> None:
    harness = Harness()
    subscriber = harness.client("s")
    subscriber.subscribe("t", 2)
    harness.client("p", clean=True).publish("t", b"x", 2)
    packet_id = subscriber.publishes()[0][0]
    subscriber.feed(codec.encode_pubrec(4, packet_id))
    assert subscriber.take() == [(PUBREL, packet_id.to_bytes(2, "big"))]
    harness.crash()
    subscriber = harness.client("s")
    assert [first for first, _ in subscriber.take()] == [CONNACK, PUBREL]
    subscriber.feed(codec.encode_pubcomp(4, packet_id))
    assert harness.client("s").publishes() == []


@pytest.mark.parametrize("version", [4, 5])
def test_the_limit_drops_the_oldest_and_counts_them(version: int) -> None:
    settings = BrokerSettings()
    settings.backlog_messages_max = 3
    harness = Harness(settings)
    subscriber = harness.client("s", version=version)
    subscriber.subscribe("t")
    subscriber.lose()
    publisher = harness.client("p", clean=True)
    for n in range(5):
        publisher.publish("t", b"%d" % n)
    session = harness.broker.fold.tenants["default"].sessions["s"]
    assert session.dropped == {DROP_LIMIT: 2}
    harness.crash()
    assert harness.broker.fold.tenants["default"].sessions["s"].dropped == {DROP_LIMIT: 2}
    assert payloads(harness.client("s", version=version)) == [b"2", b"3", b"4"]


def test_expired_messages_are_dropped_when_met_and_counted() -> None:
    harness = Harness()
    harness.client("s", version=5).subscribe("t")
    harness.client("s", version=5).lose()
    publisher = harness.client("p", version=5, clean=True)
    publisher.publish("t", b"short", expiry_s=5)
    publisher.publish("t", b"long", expiry_s=50)
    harness.advance(10)
    subscriber = harness.client("s", version=5)
    (body,) = [body for first, body in subscriber.take() if first >> 4 == 3]
    assert body.endswith(b"long")
    assert b"\x02" + (40).to_bytes(4, "big") in body  # what is left of the interval
    assert harness.broker.fold.tenants["default"].sessions["s"].dropped == {DROP_EXPIRED: 1}


@pytest.mark.slow
def test_packet_ids_wrap_and_stay_clear_of_what_is_in_flight() -> None:
    harness = Harness()
    subscriber = harness.client("s")
    subscriber.subscribe("t")
    publisher = harness.client("p", clean=True)
    publisher.publish("t", b"kept")
    kept = subscriber.publishes()[0][0]
    seen = 0
    for _ in range(110):
        for n in range(500):
            publisher.feed(codec.encode_publish(4, b"t", b"x", 1, False, False, n + 1), sync=False)
        harness.sync()
        for packet_id, _, _, _ in subscriber.publishes():
            assert packet_id != kept
            seen += 1
            subscriber.feed(codec.encode_puback(4, packet_id), sync=False)
        harness.sync()
    subscriber.feed(codec.encode_puback(4, kept))
    while seen < 55_000:
        got = subscriber.publishes()
        assert got, seen
        seen += len(got)
        for packet_id, _, _, _ in got:
            subscriber.feed(codec.encode_puback(4, packet_id), sync=False)
        harness.sync()
    assert seen >= 55_000 - 10_000  # the limit of the backlog may have dropped some, counted


def test_the_next_batch_takes_along_what_came_because_of_the_one_before() -> None:
    harness = Harness()
    publisher, journal, broker = harness.client("p", clean=True), harness.journal, harness.broker
    publisher.publish("t", b"1", sync=False)
    broker.worker.end_tick()
    publisher.publish("t", b"2", sync=False)
    batches, journal.durable = len(journal.bodies), journal.next_offset()
    broker.commit.on_high_watermark(journal.durable)
    broker.worker.end_tick()
    publisher.publish("t", b"3", sync=False)  # as whoever got its PUBACK for the first one does
    assert len(journal.bodies) == batches
    broker.worker.end_tick()
    assert len(journal.bodies) == batches + 1
    records = decode_batch(journal.bodies[-1], 0)
    assert [record.payload for record in records if isinstance(record, Message)] == [b"2", b"3"]


def test_no_batch_waits_for_others_where_none_was_under_way() -> None:
    harness = Harness()
    publisher, journal, broker = harness.client("p", clean=True), harness.journal, harness.broker
    publisher.publish("t", b"1", sync=False)
    broker.worker.end_tick()
    journal.durable = journal.next_offset()
    broker.commit.on_high_watermark(journal.durable)
    broker.worker.end_tick()
    batches = len(journal.bodies)
    publisher.publish("t", b"2", sync=False)
    broker.worker.end_tick()
    assert len(journal.bodies) == batches + 1


def test_a_batch_goes_to_the_journal_while_the_one_before_it_takes_effect_part_by_part() -> None:
    settings = BrokerSettings()
    settings.deliveries_at_once = 4
    harness = Harness(settings)
    subscribers = [harness.client(f"s{number}") for number in range(20)]
    for subscriber in subscribers:
        subscriber.subscribe("t")
    publisher, journal = harness.client("p", clean=True), harness.journal
    publisher.publish("t", b"1", sync=False)
    harness.worker.end_tick()
    publisher.publish("t", b"2", sync=False)
    batches, journal.durable = len(journal.bodies), journal.next_offset()
    harness.broker.commit.on_high_watermark(journal.durable)
    for _ in range(2):
        harness.worker.end_tick()
    assert len(journal.bodies) == batches + 1
    assert harness.broker.commit.unfinished
    harness.sync()
    assert [payloads(subscriber) for subscriber in subscribers] == [[b"1", b"2"]] * 20


@pytest.mark.parametrize(("at_once", "written"), [(10, False), (8, True)])
def test_parts_of_a_batch_leave_in_one_write_unless_it_is_for_too_many(at_once: int, written: bool) -> None:
    settings = BrokerSettings()
    settings.deliveries_at_once = at_once  # a message is 5 of them: two are a part
    harness = Harness(settings)
    subscribers = [harness.client(f"s{number}") for number in range(4)]
    for subscriber in subscribers:
        subscriber.subscribe("t")
        subscriber.take()
    publisher, journal = harness.client("p", clean=True), harness.journal
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, sync=False)
    harness.worker.end_tick()
    journal.durable = journal.next_offset()
    harness.broker.commit.on_high_watermark(journal.durable)
    assert [bool(subscriber.link.sent) for subscriber in subscribers] == [written] * 4
    harness.worker.end_tick()
    assert [payloads(subscriber) for subscriber in subscribers] == [[b"1", b"2", b"3"]] * 4
