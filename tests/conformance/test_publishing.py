"""PUBLISH towards the broker: sections 3.3, 4.3 and what the broker does not take."""

from __future__ import annotations

import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_NOT_ACCEPTED, DROP_RETAINED_LIMIT
from headrace.core.state.retained import LEVEL_BYTES, LEVELS_FREE
from headrace.mqtt import codec
from headrace.mqtt.packets import Disconnect, Publish, SubscriptionRequest

TEXT = b"\x01\x01"


def retained(harness: Harness, topic_filter: str = "#") -> dict[bytes, bytes]:
    heard = Peer(harness, "reader").subscribe(topic_filter)
    return {packet.topic: packet.payload for packet in heard if isinstance(packet, Publish)}


def drops(harness: Harness, reason: int) -> int:
    return harness.broker.fold.tenant("default").counters.dropped.get(reason, 0)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_each_qos_has_its_answer(version: int) -> None:
    """[MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-4.3.3-12] [MQTT-2.2.1-5]"""
    harness = Harness()
    Peer(harness, "w").subscribe("t")
    peer = Peer(harness, "a", version)
    assert peer.publish("t", qos=0) == []
    assert peer.publish("t", qos=1, packet_id=9) == [("PUBACK", 9, 0)]
    assert peer.publish("t", qos=1, packet_id=9) == [("PUBACK", 9, 0)]  # [MQTT-4.3.2-5]
    for _ in range(2):
        assert peer.publish("t", qos=2, packet_id=9) == [("PUBREC", 9, 0)]
        peer.send(codec.encode_pubrel(version, 9))
        assert peer.take() == [("PUBCOMP", 9, 0)]


def test_a_publisher_is_told_when_nobody_listens() -> None:
    """3.4.2.1: reason code 0x10, while no subscription, shared or not, matches; not before version 5."""
    harness = Harness()
    peer, old = Peer(harness, "a"), Peer(harness, "b", 4)
    listener = Peer(harness, "l", session_expiry_interval=100)
    assert peer.publish("t", qos=1) == [("PUBACK", 7, 0x10)]
    assert old.publish("t", qos=1) == [("PUBACK", 7, 0)]
    for topic_filter in ("t", "+", "$share/g/t"):
        listener.subscribe(topic_filter)
        assert peer.publish("t", qos=1) == [("PUBACK", 7, 0)]
        listener.send(codec.encode_unsubscribe(5, 9, [topic_filter]))
        assert peer.publish("t", qos=1) == [("PUBACK", 7, 0x10)]
    listener.subscribe("t")
    listener.lose()
    assert peer.publish("t", qos=1) == [("PUBACK", 7, 0)]  # a session that is away is a subscriber


def test_an_unknown_id_is_one_whose_end_was_lost() -> None:
    """[MQTT-4.3.3-4] [MQTT-4.3.3-11]: success, as it was; 0x92 would be a failure that did not happen."""
    for version in (4, 5):
        peer = Peer(Harness(), "a", version)
        peer.take()
        peer.send(codec.encode_pubrel(version, 4711))
        peer.send(codec.encode_pubrec(version, 4712))
        peer.send(codec.encode_puback(version, 4713) + codec.encode_pubcomp(version, 4714))
        if version == 5:
            peer.send(codec.encode_pubrec(version, 4715, 0x80))  # no PUBREL for a refusal
        assert peer.take() == [("PUBCOMP", 4711, 0), ("PUBREL", 4712, 0)]
        assert not peer.link.closed


def test_a_repeated_qos_2_message_is_delivered_once() -> None:
    """[MQTT-4.3.3-10] until PUBREL, whatever its DUP flag says; [MQTT-3.3.1-3] DUP is not passed on."""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe("t", qos=2)
    peer = Peer(harness, "a")
    peer.publish("t", qos=2, packet_id=5)
    peer.take()
    peer.send(codec.encode_publish(5, b"t", b"x", 2, dup=True, packet_id=5))
    assert peer.take() == [("PUBREC", 5, 0)]
    assert [(packet.payload, packet.dup) for packet in watcher.publishes()] == [(b"x", False)]
    peer.send(codec.encode_pubrel(5, 5))
    peer.send(codec.encode_publish(5, b"t", b"y", 2, dup=True, packet_id=5))
    assert [(packet.payload, packet.dup) for packet in watcher.publishes()] == [(b"y", False)]


def test_a_refused_qos_2_message_leaves_its_id_free() -> None:
    """[MQTT-4.3.3-9] [MQTT-3.5.2-1] [MQTT-3.4.2-1]"""
    peer = Peer(Harness(), "a")
    assert peer.publish("$SYS/x", qos=2, packet_id=5) == [("PUBREC", 5, 0x87)]
    assert peer.publish("t", qos=2, packet_id=5) == [("PUBREC", 5, 0)]
    peer.send(codec.encode_pubrel(5, 5))
    assert peer.take() == [("PUBCOMP", 5, 0)]


@pytest.mark.parametrize("version", [4, 5])
def test_topics_of_the_broker_are_not_for_clients(version: int) -> None:
    harness = Harness()
    watcher = Peer(harness, "w", version)
    watcher.subscribe("$SYS/#")
    peer = Peer(harness, "a", version)
    refused = 0x87 if version == 5 else 0
    assert peer.publish("$SYS/broker/x", qos=0) == []
    assert peer.publish("$SYS/broker/x", qos=1) == [("PUBACK", 7, refused)]
    assert peer.publish("$SYS/broker/x", qos=2) == [("PUBREC", 7, refused)]
    assert watcher.publishes() == []
    assert drops(harness, DROP_NOT_ACCEPTED) == 3
    assert peer.publish("$share/g/t", qos=1) == [("PUBACK", 7, refused)]  # nobody could subscribe to it
    assert peer.publish("$other", qos=1) == [("PUBACK", 7, 0x10 if version == 5 else 0)]


def test_payload_format_is_checked_when_configured() -> None:
    """3.3.2.3.2: 0x99 in PUBACK, PUBREC and DISCONNECT."""
    settings = BrokerSettings()
    settings.payload_format_check = True
    harness = Harness(settings)
    Peer(harness, "w").subscribe("t")
    peer = Peer(harness, "a")
    assert peer.publish("t", "ö".encode(), 1, properties=TEXT) == [("PUBACK", 7, 0)]
    assert peer.publish("t", b"\xff", 1) == [("PUBACK", 7, 0)]
    assert peer.publish("t", b"\xff", 1, properties=TEXT) == [("PUBACK", 7, 0x99)]
    assert peer.publish("t", b"\xff", 2, properties=b"\x03\x00\x01c" + TEXT) == [("PUBREC", 7, 0x99)]
    heard = peer.publish("t", b"\xff", 0, properties=TEXT)[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x99
    unchecked = Peer(Harness(), "a")
    assert unchecked.publish("t", b"\xff", 2, properties=TEXT) == [("PUBREC", 7, 0)]


def test_what_is_retained_has_a_limit() -> None:
    """0x97 where the publisher can be told; otherwise it is delivered, not kept, and counted."""
    settings = BrokerSettings()
    settings.retained_messages_max = 2
    harness = Harness(settings)
    watcher = Peer(harness, "w")
    watcher.subscribe("#")
    peer, old = Peer(harness, "a"), Peer(harness, "o", 4)
    assert peer.publish("t/1", b"1", 1, True) == [("PUBACK", 7, 0)]
    assert peer.publish("t/2", b"2", 0, True) == []
    assert peer.publish("t/3", b"3", 1, True) == [("PUBACK", 7, 0x97)]
    assert peer.publish("t/4", b"4", 0, True) == []
    assert old.publish("t/5", b"5", 1, True) == [("PUBACK", 7, 0)]
    assert old.publish("t/1", b"new", 1, True) == [("PUBACK", 7, 0)]  # replaces
    assert [packet.payload for packet in watcher.publishes()] == [b"1", b"2", b"4", b"5", b"new"]
    assert retained(harness) == {b"t/1": b"new", b"t/2": b"2"}
    assert drops(harness, DROP_RETAINED_LIMIT) == 2
    assert peer.publish("t/1", b"", 1, True) == [("PUBACK", 7, 0)]  # a delete makes room
    assert peer.publish("t/3", b"3", 1, True) == [("PUBACK", 7, 0)]
    harness.crash()
    assert retained(harness) == {b"t/2": b"2", b"t/3": b"3"}


def test_the_limit_counts_what_is_on_its_way_and_bytes() -> None:
    settings = BrokerSettings()
    settings.retained_messages_max, settings.retained_bytes_max = 3, 30
    harness = Harness(settings)
    peer = Peer(harness, "a")
    several = [codec.encode_publish(5, b"t%d" % n, b"x", 0, True) for n in range(5)]
    peer.send(b"".join(several))
    assert len(retained(harness)) == 3
    assert peer.publish("t1", b"y" * 40, 1, True) == [("PUBACK", 7, 0x97)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_retained_messages_are_set_replaced_and_deleted(version: int) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]"""
    harness = Harness()
    peer = Peer(harness, "a", version)
    peer.publish("t", b"1", 2, True, packet_id=1)
    peer.publish("t", b"2", 0, True)
    assert retained(harness) == {b"t": b"2"}
    peer.publish("t", b"3", 1)
    peer.publish("t", b"", 1)
    assert retained(harness) == {b"t": b"2"}
    peer.publish("t", b"", 0, True)
    assert retained(harness) == {}


def test_expired_retained_messages_are_removed() -> None:
    """[MQTT-3.3.2-5]: nobody gets them, and they take no place after the sweep."""
    harness = Harness()
    peer = Peer(harness, "a")
    peer.publish("short", b"1", 1, True, expiry_s=5)
    peer.publish("long", b"1", 1, True, expiry_s=50)
    peer.publish("short", b"2", 1, True, expiry_s=10)
    store = harness.broker.fold.tenant("default").retained
    harness.advance(6)
    assert len(store) == 2
    harness.advance(5)
    assert [message.topic for message in store.messages()] == [b"long"]
    harness.crash()
    assert retained(harness) == {b"long": b"1"}


def test_aliases_of_a_publisher() -> None:
    """[MQTT-3.3.2-7] [MQTT-3.3.2-12] [MQTT-3.3.2-8]: accepted up to the maximum, gone with the connection."""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe("t")
    peer = Peer(harness, "a")
    maximum = peer.connack.properties.topic_alias_maximum
    assert maximum == 10
    peer.send(codec.encode_publish(5, b"t", b"1", topic_alias=maximum))
    peer.send(codec.encode_publish(5, b"", b"2", topic_alias=maximum))
    assert [packet.payload for packet in watcher.publishes()] == [b"1", b"2"]
    for data, code in (
        (codec.encode_publish(5, b"", b"2", topic_alias=maximum), 0x82),
        (codec.encode_publish(5, b"t", b"2", topic_alias=maximum + 1), 0x94),
        (b"\x30\x07\x00\x01t\x03\x23\x00\x00", 0x94),
        (b"\x30\x03\x00\x00\x00", 0x81),  # neither topic nor alias
    ):
        again = Peer(harness, "a")
        again.send(data)
        heard = again.take()[-1]
        assert isinstance(heard, Disconnect), data
        assert heard.reason_code == code, data


def test_more_than_receive_maximum_ends_the_connection() -> None:
    """[MQTT-3.3.4-7]: counted until PUBCOMP (4.9)."""
    settings = BrokerSettings()
    settings.receive_maximum = 2
    peer = Peer(Harness(settings), "a")
    assert peer.connack.properties.receive_maximum == 2
    for packet_id in (1, 2):
        peer.publish("t", qos=2, packet_id=packet_id)
    assert peer.publish("t", qos=0) == []
    heard = peer.publish("t", qos=1, packet_id=3)[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x93


def test_what_a_subscriber_sees_is_what_was_published() -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe(SubscriptionRequest("+/t", 2))
    properties = (
        TEXT + b"\x26\x00\x01b\x00\x01y" + b"\x03\x00\x04text" + b"\x08\x00\x01r" + b"\x09\x00\x02\x00\xff"
        b"\x26\x00\x01a\x00\x01x" + b"\x26\x00\x01b\x00\x01y"
    )
    Peer(harness, "a").publish("ö/t", b"x", 2, properties=properties)
    found = watcher.publishes()[0]
    assert (found.topic, found.properties) == ("ö/t".encode(), properties)


@pytest.mark.parametrize("topic", ["/", "//", "a//b", "/a", " ", "a" * 65_535, "/" * 65_535, "\ufeffa", "$x"])
def test_topics_at_the_edge(topic: str) -> None:
    """[MQTT-4.7.3-1] [MQTT-4.7.3-3] [MQTT-4.7.3-4] [MQTT-1.5.4-3]: empty levels, the longest, no normalization."""
    settings = BrokerSettings()
    settings.filter_levels_max = settings.topic_levels_max = 0
    harness = Harness(settings)
    watcher = Peer(harness, "w")
    hash_hides = topic.startswith("$")
    watcher.subscribe(topic, "#")
    peer = Peer(harness, "a")
    assert peer.publish(topic, b"x", 1, True) == [("PUBACK", 7, 0)]
    assert [packet.topic for packet in watcher.publishes()] == [topic.encode()]
    assert set(retained(harness)) == (set() if hash_hides else {topic.encode()})
    assert set(retained(harness, topic)) == {topic.encode()}
    assert peer.publish(topic, b"", 1, True) == [("PUBACK", 7, 0)]
    assert retained(harness, topic) == {}


def test_the_limit_does_not_count_a_topic_twice_that_is_kept_already() -> None:
    """At the limit, known topics are set again and again in one read, and at once one is deleted for another."""
    settings = BrokerSettings()
    settings.retained_messages_max = 3
    harness = Harness(settings)
    peer = Peer(harness, "a")
    for number in range(2):
        peer.publish(f"t{number}", b"x", 1, True)
    again = [codec.encode_publish(5, b"t%d" % (n % 2), b"y", 0, True) for n in range(10)]
    peer.send(b"".join([*again, codec.encode_publish(5, b"t2", b"y", 1, True, False, 9)]))
    assert set(retained(harness)) == {b"t0", b"t1", b"t2"}
    assert peer.publish("t3", b"x", 1, True) == [("PUBACK", 7, 0x97)]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("retain", [False, True])
def test_topics_of_too_many_levels_are_refused(version: int, retain: bool) -> None:
    """3.4.2.1: 0x90, not malformed but not accepted; who cannot be told has it dropped and counted."""
    harness = Harness()
    watcher = Peer(harness, "w", version)
    watcher.subscribe("#")
    peer = Peer(harness, "a", version)
    most, over = "/" * 255, "/" * 256
    assert peer.publish(most, b"x", 1, retain) == [("PUBACK", 7, 0)]
    assert peer.publish(over, b"x", 1, retain) == [("PUBACK", 7, 0x90 if version == 5 else 0)]
    assert peer.publish(over, b"x", 2, retain) == [("PUBREC", 7, 0x90 if version == 5 else 0)]
    assert peer.publish(over, b"x", 0, retain) == []
    assert [packet.topic for packet in watcher.publishes()] == [most.encode()]
    assert drops(harness, DROP_NOT_ACCEPTED) == 3


def test_a_flood_of_deep_retained_topics_takes_what_the_limit_says() -> None:
    settings = BrokerSettings()
    settings.retained_bytes_max = 1 << 20
    harness = Harness(settings)
    peer = Peer(harness, "a")
    for number in range(30):
        peer.publish(f"{number}/" + "/".join(["x"] * 200), b"x", 1, True)
    assert len(retained(harness)) == (1 << 20) // (LEVEL_BYTES * (201 - LEVELS_FREE) + 403)
    assert drops(harness, DROP_NOT_ACCEPTED) == 30 - len(retained(harness))
