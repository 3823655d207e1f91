"""QoS 0, 1 and 2 in both directions, on a connection that holds."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    DISCONNECT,
    PAYLOAD_FORMAT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    RESPONSE_TOPIC,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
    packet,
    text,
)

Clients = Callable[..., RawClient]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize(
    "versions", [(4, 4), (4, 5), (5, 4), (5, 5)], ids=lambda pair: f"v{pair[0]}-v{pair[1]}"
)
def test_delivered_at_the_lower_qos(
    broker: BrokerProcess,
    clients: Clients,
    name: str,
    published: int,
    subscribed: int,
    versions: tuple[int, int],
) -> None:
    publisher, subscriber = clients(broker, "", versions[0]), clients(broker, "", versions[1])
    subscriber.subscribe(name, qos=subscribed)
    publisher.deliver(name, b"reading 21.5", published)
    found = subscriber.receive()
    assert (found.topic, found.payload) == (name, b"reading 21.5")
    assert found.qos == min(published, subscribed)
    assert (found.dup, found.retain) == (False, False)
    assert subscriber.ping() == []


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_payload_arrives_byte_for_byte(broker: BrokerProcess, clients: Clients, name: str, size: int) -> None:
    payload = os.urandom(size)
    client = clients(broker)
    client.subscribe(name, qos=1)
    client.deliver(name, payload)
    assert client.receive().payload == payload


def test_acks_come_in_the_order_of_the_publishes(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    sent = [client.publish(name, b"x", 1, packet_id=identifier) for identifier in (9, 3, 65535, 1, 500, 2)]
    assert [client.expect(PUBACK).packet_id for _ in sent] == sent  # [MQTT-4.6.0-2]
    sent = [client.publish(name, b"x", 2, packet_id=identifier) for identifier in (9, 3, 65535)]
    assert [client.expect(PUBREC).packet_id for _ in sent] == sent  # [MQTT-4.6.0-3]


def test_order_of_one_publisher_is_kept(broker: BrokerProcess, clients: Clients, name: str) -> None:
    publisher, subscriber = clients(broker), clients(broker)
    for qos in (0, 1, 2):
        subscriber.subscribe(f"{name}/{qos}", qos=qos)
        for number in range(200):
            publisher.deliver(f"{name}/{qos}", str(number), qos)
        assert [int(subscriber.receive().payload) for _ in range(200)] == list(range(200))


def test_puback_frees_the_packet_id(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.subscribe(name, qos=1)
    for number in range(20):
        client.deliver(name, str(number), 1, packet_id=7)
        assert client.receive().payload == str(number).encode()


def test_qos2_resent_before_pubrel_is_one_message(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client, subscriber = clients(broker), clients(broker)
    subscriber.subscribe(name, qos=2)
    for dup in (False, True, True):
        client.publish(name, b"once", 2, packet_id=11, dup=dup)
        client.expect_ack(PUBREC, 11)
    client.ack(PUBREL, 11)
    client.expect_ack(PUBCOMP, 11)
    client.deliver(name, b"end", 2, packet_id=12)
    assert [subscriber.receive().payload for _ in range(2)] == [b"once", b"end"]
    assert subscriber.ping() == []


def test_qos2_id_used_again_after_pubcomp_is_a_new_message(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    client, subscriber = clients(broker), clients(broker)
    subscriber.subscribe(name, qos=2)
    for payload in (b"one", b"two", b"three"):
        client.deliver(name, payload, 2, packet_id=11)
    assert [subscriber.receive().payload for _ in range(3)] == [b"one", b"two", b"three"]


def test_pubrel_without_publish(broker: BrokerProcess, clients: Clients, name: str) -> None:
    for version in (4, 5):
        client = clients(broker, "", version)
        client.ack(PUBREL, 4711)
        found = client.expect(PUBCOMP)
        assert (found.packet_id, found.reason) == (4711, 0)


def test_qos2_to_a_subscriber_step_by_step(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client, subscriber = clients(broker), clients(broker)
    subscriber.subscribe(name, qos=2)
    client.deliver(name, b"x", 2)
    found = subscriber.expect(PUBLISH)
    assert subscriber.ping() == []  # no PUBREL before PUBREC
    subscriber.ack(PUBREC, found.packet_id)
    subscriber.expect_ack(PUBREL, found.packet_id)
    subscriber.ack(PUBREC, found.packet_id)  # PUBREL was lost, says the client
    subscriber.expect_ack(PUBREL, found.packet_id)
    subscriber.ack(PUBCOMP, found.packet_id)
    assert subscriber.ping() == []


def test_pubrec_with_an_error_ends_the_handshake_v5(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    client, subscriber = clients(broker), clients(broker, name, 5, properties={RECEIVE_MAXIMUM: 1})
    subscriber.subscribe(name, qos=2)
    client.deliver(name, b"refused", 2)
    subscriber.ack(PUBREC, subscriber.expect(PUBLISH).packet_id, 0x97)
    client.deliver(name, b"next", 2)  # comes only if the refused one left the window
    assert subscriber.receive().payload == b"next"
    assert subscriber.ping() == []


def test_publish_properties_are_passed_on(broker: BrokerProcess, clients: Clients, name: str) -> None:
    sent = {
        PAYLOAD_FORMAT: 1,
        CONTENT_TYPE: "application/json",
        RESPONSE_TOPIC: "answers/ü",
        CORRELATION_DATA: b"\x00\x01\xff",
        USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],  # order and repeats are kept
    }
    client = clients(broker, "", 5)
    client.subscribe(name, qos=1)
    client.deliver(name, b"{}", properties=sent)
    assert client.receive().properties == sent
    old = clients(broker, "", 4)
    old.subscribe(name, qos=1)
    client.deliver(name, b"{}", properties=sent)
    assert old.receive().payload == b"{}"


def test_topic_alias_of_a_publisher(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client, subscriber = clients(broker, "", 5), clients(broker, "", 5)
    subscriber.subscribe(f"{name}/#", qos=1)
    allowed = client.connack.properties.get(TOPIC_ALIAS_MAXIMUM, 0)
    assert allowed >= 2, "the configuration allows 16"
    client.deliver(f"{name}/long", b"1", properties={TOPIC_ALIAS: 1})
    client.deliver("", b"2", properties={TOPIC_ALIAS: 1})
    client.deliver(f"{name}/other", b"3", properties={TOPIC_ALIAS: 1})
    client.deliver("", b"4", properties={TOPIC_ALIAS: 1})
    found = [subscriber.receive() for _ in range(4)]
    assert [one.topic.rpartition("/")[2] for one in found] == ["long", "long", "other", "other"]
    assert not any(TOPIC_ALIAS in one.properties for one in found)  # it allowed us none
    client.publish("", b"5", 1, properties={TOPIC_ALIAS: 2})  # never set
    assert client.expect(DISCONNECT).reason in (0x82, 0x94)


def test_publisher_above_receive_maximum_v5(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """QoS 2 without a PUBREL keeps its place in the window, so the count is exact."""
    client = clients(broker, "", 5)
    limit = client.connack.properties.get(RECEIVE_MAXIMUM, 65535)
    if limit > 5000:
        pytest.skip("the broker allows more than this test sends")
    for _ in range(limit):
        client.publish(name, b"x", 2)
    for _ in range(limit):
        client.expect(PUBREC)
    client.publish(name, b"one too many", 2)
    assert client.expect(DISCONNECT).reason == 0x93  # [MQTT-3.3.4-9]


def test_receive_maximum_after_a_resumed_handshake_v5(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    """A PUBREL from the connection before gives no quota to this one: it never exceeds its initial value (4.9)."""
    keep = {"clean": False, "properties": {SESSION_EXPIRY: 600}}
    client = clients(broker, name, 5, **keep)
    limit = client.connack.properties.get(RECEIVE_MAXIMUM, 65535)
    if limit > 5000:
        pytest.skip("the broker allows more than this test sends")
    old = [client.publish(name, b"x", 2) for _ in range(5)]
    for packet_id in old:
        client.expect_ack(PUBREC, packet_id)
    client.leave()
    client = clients(broker, name, 5, **keep)
    for packet_id in old:
        client.ack(PUBREL, packet_id)
        client.expect_ack(PUBCOMP, packet_id)
    for number in range(limit):
        client.publish(name, b"x", 2, packet_id=100 + number)
    for _ in range(limit):
        client.expect(PUBREC)
    client.publish(name, b"one too many", 2, packet_id=100 + limit)
    assert client.expect(DISCONNECT).reason == 0x93


@pytest.mark.parametrize("version", [4, 5])
def test_qos3_is_malformed(broker: BrokerProcess, clients: Clients, name: str, version: int) -> None:
    client = clients(broker, "", version)
    client.send(packet(PUBLISH << 4 | 6, text(name) + b"\0\1" + b"\0" * (version - 4) + b"x"))
    last = client.read_to_end()
    assert [(one.kind, one.reason) for one in last] == ([(DISCONNECT, 0x81)] if version == 5 else [])


def test_ack_for_nothing_is_ignored(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    for kind in (PUBACK, PUBCOMP):
        client.ack(kind, 999)
    assert client.ping() == []
