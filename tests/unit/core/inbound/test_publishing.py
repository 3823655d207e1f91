"""PUBLISH on its way in: what is refused and how, what waits for the journal, and what keeps its place."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.mqtt import codec

CONNACK, PUBACK, PUBREC, PUBCOMP, DISCONNECT = 0x20, 0x40, 0x50, 0x70, 0xE0
NOT_TEXT = b"\xff\xfe"
SAID_TO_BE_TEXT = b"\x01\x01"  # Payload Format Indicator 1


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def checking_formats() -> BrokerSettings:
    settings = BrokerSettings()
    settings.payload_format_check = True
    return settings


# What waits for the journal


def test_no_puback_before_the_record_is_durable() -> None:
    harness = Harness()
    publisher = harness.client("p")
    publisher.take()
    packet_id = publisher.publish("t", b"x", sync=False)
    harness.worker.end_tick()
    assert publisher.take() == []
    harness.sync()
    assert publisher.take() == [(PUBACK, packet_id.to_bytes(2, "big"))]


def test_qos2_repeat_before_pubrel_is_one_message() -> None:
    harness = Harness()
    subscriber = harness.client("s")
    subscriber.subscribe("t", 2)
    publisher = harness.client("p")
    data = codec.encode_publish(4, b"t", b"once", 2, False, False, 7)
    publisher.feed(data)
    publisher.feed(data)
    assert [first for first, _ in publisher.take()] == [CONNACK, PUBREC, PUBREC]
    harness.crash()
    publisher = harness.client("p")
    publisher.feed(codec.encode_publish(4, b"t", b"once", 2, False, True, 7))
    publisher.feed(codec.encode_pubrel(4, 7))
    assert [first for first, _ in publisher.take()] == [CONNACK, PUBREC, PUBCOMP]
    assert payloads(harness.client("s")) == [b"once"]


# What keeps its place


def test_qos0_keeps_its_place_behind_a_retained_one() -> None:
    harness = Harness()
    subscriber = harness.client("s", clean=True)
    subscriber.subscribe("t", 0)
    publisher = harness.client("p", clean=True)
    publisher.publish("t", b"1", 0, True, sync=False)
    publisher.publish("t", b"2", 0, False, sync=False)
    harness.sync()
    assert payloads(subscriber) == [b"1", b"2"]


def test_qos0_keeps_its_place_while_another_one_waits() -> None:
    harness = Harness()
    subscriber = harness.client("s")
    subscriber.subscribe("t", qos=0)
    publisher, other = harness.client("p"), harness.client("o")
    publisher.publish("t", b"1", qos=0, retain=True, sync=False)
    harness.worker.end_tick()
    publisher.publish("t", b"2", qos=0, sync=False)  # waits, with what belongs to the next batch
    other.publish("u", b"x", sync=False)
    harness.journal.durable = harness.journal.next_offset()
    harness.broker.commit.on_high_watermark(harness.journal.durable)
    publisher.publish("t", b"3", qos=0, sync=False)
    harness.sync()
    assert payloads(subscriber) == [b"1", b"2", b"3"]


# Retained messages


def test_retained_is_replaced_deleted_and_survives() -> None:
    harness = Harness()
    publisher = harness.client("p", clean=True)
    publisher.publish("a/1", b"old", 1, True)
    publisher.publish("a/1", b"new", 1, True)
    publisher.publish("a/2", b"gone", 0, True)
    publisher.publish("a/2", b"", 0, True)
    harness.crash()
    subscriber = harness.client("s")
    subscriber.subscribe("a/#")
    ((first, body),) = [packet for packet in subscriber.take() if packet[0] >> 4 == 3]
    assert first & 1
    assert body.endswith(b"new")


# What is refused


@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("version", [4, 5])
def test_a_topic_of_the_broker_is_not_published_to(version: int, qos: int, answer: int) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("$SYS/#")
    client = harness.client("s", version=version)
    client.take()
    packet_id = client.publish("$SYS/broker/uptime", b"x", qos)
    code = b"\x87" if version == 5 else b""  # 3.1.1 knows no refusal: acknowledged, dropped and counted
    assert client.take() == [(answer, packet_id.to_bytes(2, "big") + code)]
    assert payloads(watcher) == []
    assert harness.broker.fold.tenants["default"].counters.dropped[DROP_NOT_ACCEPTED] == 1


def test_a_refusal_keeps_its_place_behind_what_is_not_durable_yet() -> None:
    harness = Harness()
    client = harness.client("s", version=5)
    client.take()
    first = client.publish("t", b"x", sync=False)
    second = client.publish("$SYS/x", b"x", sync=False)
    harness.worker.end_tick()
    assert client.take() == []
    harness.sync()
    assert [int.from_bytes(body[:2], "big") for _, body in client.take()] == [first, second]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_not_the_text_it_promises_to_be(qos: int) -> None:
    harness = Harness(checking_formats())
    client = harness.client("s", version=5)
    client.take()
    client.publish("t", NOT_TEXT, qos, properties=SAID_TO_BE_TEXT)
    ((first, body),) = client.take()
    if qos == 0:  # there is no answer to refuse it with
        assert (first, body[:1]) == (DISCONNECT, b"\x99")
        assert client.link.closed
    else:
        assert (first, body[2:3]) == (PUBACK if qos == 1 else PUBREC, b"\x99")
        assert not client.link.closed


def test_more_than_the_receive_maximum_is_an_error_of_version_5() -> None:
    settings = BrokerSettings()
    settings.receive_maximum = 2
    for version, closed in ((4, False), (5, True)):
        harness = Harness(settings)
        client = harness.client("s", version=version)
        for _ in range(3):
            client.publish("t", b"x", sync=False)
        assert client.link.closed == closed


# A full disk


@pytest.mark.parametrize("version", [4, 5])
def test_while_the_disk_is_full_publishers_wait_and_go_on_in_order(version: int) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("t")
    client = harness.client("s", version=version)
    client.take()
    harness.broker.set_storage_full(True)
    client.publish("t", b"1")
    client.publish("t", b"2")
    assert client.take() == []
    harness.broker.set_storage_full(False)
    harness.sync()
    harness.sync()
    assert [first for first, _ in client.take()] == [PUBACK, PUBACK]
    assert payloads(watcher) == [b"1", b"2"]


def test_while_the_disk_is_full_version_5_may_be_refused() -> None:
    settings = BrokerSettings()
    settings.refuse_when_full = True
    harness = Harness(settings)
    client = harness.client("s", version=5)
    client.take()
    harness.broker.set_storage_full(True)
    packet_id = client.publish("t", b"1")
    assert client.take() == [(PUBACK, packet_id.to_bytes(2, "big") + b"\x97")]
    repeat = codec.encode_publish(5, b"t", b"1", 1, False, False, packet_id)
    harness.broker.set_storage_full(False)
    client.feed(repeat)
    assert client.take() == [(PUBACK, packet_id.to_bytes(2, "big") + b"\x10")]
