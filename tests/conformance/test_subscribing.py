"""SUBSCRIBE, UNSUBSCRIBE and what subscribers get: sections 3.8 to 3.11, 3.3.4, 4.4 to 4.9."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.peer import Heard, Peer
from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec
from headrace.mqtt.packets import Disconnect, Publish, Suback, SubscriptionRequest, Unsuback

FOREVER = 0xFFFFFFFF


def codes(heard: list[Heard]) -> list[int]:
    found = heard[0]
    assert isinstance(found, (Suback, Unsuback))
    assert found.packet_id == 900
    return list(found.reason_codes)


def payloads(heard: list[Heard]) -> list[bytes]:
    return [packet.payload for packet in heard if isinstance(packet, Publish)]


def unsubscribe(peer: Peer, *filters: str) -> list[Heard]:
    peer.take()
    peer.send(codec.encode_unsubscribe(peer.version, 900, filters))
    return peer.take()


def test_one_code_for_each_filter_in_order() -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2]
    [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2]"""
    peer = Peer(Harness(), "a")
    requests = [SubscriptionRequest(name, qos) for name, qos in (("a", 2), ("b", 0), ("$share/g/c", 1))]
    assert codes(peer.subscribe(*requests)) == [2, 0, 1]
    assert codes(unsubscribe(peer, "b", "x", "$share/g/c", "a", "a")) == [0, 0x11, 0, 0, 0x11]


def test_answers_know_what_is_on_its_way() -> None:
    """[MQTT-3.3.1-10] [MQTT-3.10.4-1] Packets that follow each other without waiting see each other's effect."""
    harness = Harness()
    Peer(harness, "p").publish("t", b"kept", 1, True)
    peer = Peer(harness, "a", session_expiry_interval=FOREVER)
    only_new = codec.encode_subscribe(5, 900, [SubscriptionRequest("t", 1, retain_handling=1)])
    leave = codec.encode_unsubscribe(5, 900, ["t"])
    peer.take()
    peer.send(only_new + only_new + leave + leave + only_new)
    heard = peer.take()
    assert sorted(type(packet).__name__ for packet in heard if not isinstance(packet, Publish)) == [
        "Suback", "Suback", "Suback", "Unsuback", "Unsuback",
    ]  # fmt: skip
    assert set(payloads(heard)) == {b"kept"}
    assert [list(packet.reason_codes) for packet in heard if isinstance(packet, Unsuback)] == [[0], [0x11]]


def test_a_packet_id_in_use_is_refused() -> None:
    """2.2.1: 0x91 for an id that a QoS 2 message still holds."""
    peer = Peer(Harness(), "a")
    peer.publish("t", qos=2, packet_id=900)
    assert codes(peer.subscribe("a", "b")) == [0x91, 0x91]
    assert codes(unsubscribe(peer, "a")) == [0x91]
    peer.send(codec.encode_pubrel(5, 900))
    assert codes(peer.subscribe("a")) == [1]


def test_an_answer_too_large_for_the_client_is_not_sent() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.9.2-1] [MQTT-3.11.2-1]"""
    peer = Peer(Harness(), "a", maximum_packet_size=50)
    heard = peer.subscribe(*[f"f{n}" for n in range(60)])[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x95


def test_subscription_identifier_0_is_a_protocol_error() -> None:
    """3.8.2.1.2"""
    peer = Peer(Harness(), "a")
    peer.send(bytes.fromhex("8209000102 0b00000161 00"))
    heard = peer.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x82


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_lower_qos_counts(version: int) -> None:
    """[MQTT-3.8.4-8]"""
    harness = Harness()
    for granted in (0, 1, 2):
        peer = Peer(harness, f"s{granted}", version)
        peer.subscribe("t", qos=granted)
        for sent in (0, 1, 2):
            Peer(harness, "p").publish("t", b"%d" % sent, sent)
        assert [packet.qos for packet in peer.publishes()] == [min(granted, sent) for sent in (0, 1, 2)]


def test_overlapping_subscriptions_make_one_copy_with_every_identifier() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]; equal identifiers come as often as they match (3.3.2.3.8)."""
    harness = Harness()
    peer = Peer(harness, "a")
    for topic_filter, qos, identifier in (("a/b", 0, 7), ("a/+", 2, 7), ("a/#", 1, 300), ("#", 1, 0)):
        peer.subscribe(SubscriptionRequest(topic_filter, qos), identifier=identifier)
    Peer(harness, "p").publish("a/b", b"x", 2)
    found = peer.publishes()
    assert [(packet.qos, packet.properties) for packet in found] == [(2, b"\x0b\x07\x0b\x07\x0b\xac\x02")]


def test_a_subscription_is_replaced_whole() -> None:
    """[MQTT-3.8.4-3] [MQTT-3.8.4-4] [MQTT-3.3.1-9]"""
    harness = Harness()
    publisher = Peer(harness, "p")
    publisher.publish("t", b"kept", 2, True, packet_id=1)
    peer = Peer(harness, "a")
    peer.subscribe(SubscriptionRequest("t", 2, retain_as_published=True), identifier=5)
    again = [packet for packet in peer.subscribe("t", qos=0) if isinstance(packet, Publish)]
    assert [(packet.qos, packet.retain, packet.properties) for packet in again] == [(0, True, b"")]
    publisher.publish("t", b"live", 1, True)
    live = peer.publishes()
    assert [(packet.qos, packet.retain, packet.properties) for packet in live] == [(0, False, b"")]


def test_retain_handling_and_retain_as_published() -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    harness = Harness()
    publisher = Peer(harness, "p")
    publisher.publish("t", b"kept", 1, True)
    for handling, first, second in ((0, [b"kept"], [b"kept"]), (1, [b"kept"], []), (2, [], [])):
        for as_published in (False, True):
            peer = Peer(harness, "a")
            request = SubscriptionRequest("t", 1, False, as_published, handling)
            assert payloads(peer.subscribe(request)) == first
            assert payloads(peer.subscribe(request)) == second
            publisher.publish("t", b"kept", 1, True)
            publisher.publish("t", b"plain", 1)
            assert [packet.retain for packet in peer.publishes()] == [as_published, False]


def test_a_shared_subscription_gets_nothing_retained() -> None:
    """4.8.2"""
    harness = Harness()
    Peer(harness, "p").publish("t", b"kept", 1, True)
    for handling in (0, 1):
        peer = Peer(harness, "a")
        assert payloads(peer.subscribe(SubscriptionRequest("$share/g/t", 1, retain_handling=handling))) == []


def test_no_local_is_about_ones_own_messages_retained_ones_too() -> None:
    """[MQTT-3.8.3-3] [MQTT-3.8.3-4]"""
    harness = Harness()
    peer = Peer(harness, "a")
    peer.publish("t", b"kept", 1, True)
    assert payloads(peer.subscribe(SubscriptionRequest("t", 1, no_local=True))) == []
    assert peer.publish("t", b"mine", 1) == [("PUBACK", 7, 0)]
    Peer(harness, "b").publish("t", b"yours", 1)
    assert [packet.payload for packet in peer.publishes()] == [b"yours"]
    peer.subscribe(SubscriptionRequest("$share/g/t", 1, no_local=True))
    assert peer.link.closed


def test_aliases_towards_a_subscriber() -> None:
    """[MQTT-3.1.2-26] [MQTT-3.3.2-10] [MQTT-3.3.2-11]: each alias is named once, then it stands for the topic."""
    harness = Harness()
    peer = Peer(harness, "a", topic_alias_maximum=2)
    peer.subscribe("#", qos=1)
    publisher = Peer(harness, "p")
    wire: list[bytes] = []
    for name in ("topic/one", "topic/two", "topic/one", "topic/three", "topic/three", "topic/two"):
        publisher.publish(name, b"x", 1, properties=b"\x01\x01")
        peer.link.flush()
        wire.append(peer.link.sent)
        peer.hear()
    assert [packet.topic.decode() for packet in peer.publishes()] == [
        "topic/one", "topic/two", "topic/one", "topic/three", "topic/three", "topic/two",
    ]  # fmt: skip
    assert [b"topic/" in data for data in wire] == [True, True, False, True, True, False]


@pytest.mark.parametrize("maximum", [None, 0])
def test_no_aliases_where_the_client_takes_none(maximum: int | None) -> None:
    """[MQTT-3.1.2-27]"""
    harness = Harness()
    peer = Peer(harness, "a", topic_alias_maximum=maximum)
    peer.subscribe("#")
    for _ in range(2):
        Peer(harness, "p").publish("topic/one", b"x", 1)
    assert [packet.topic for packet in peer.publishes()] == [b"topic/one"] * 2
    assert peer.errors == []


def test_an_alias_gives_way_to_the_maximum_packet_size() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]: too large for the client is dropped for it alone."""
    harness = Harness()
    peer = Peer(harness, "a", topic_alias_maximum=9, maximum_packet_size=40)
    peer.subscribe("#")
    publisher = Peer(harness, "p")
    for size in (27, 28, 29, 20):
        publisher.publish("topic", b"x" * size, 1)
    assert [len(packet.payload) for packet in peer.publishes()] == [27, 28, 20]
    assert peer.errors == []


def test_the_clients_receive_maximum_is_kept() -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3] [MQTT-3.3.4-10]"""
    harness = Harness()
    peer = Peer(harness, "a", receive_maximum=2)
    peer.subscribe("t", qos=2)
    publisher = Peer(harness, "p")
    for n in range(5):
        publisher.publish("t", b"%d" % n, 1 + n % 2, packet_id=n + 1)
    first = peer.publishes()
    assert [packet.payload for packet in first] == [b"0", b"1"]
    peer.send(codec.PINGREQ)
    publisher.publish("t", b"q0", 0)
    assert [getattr(packet, "payload", packet) for packet in peer.take()] == ["PINGRESP", b"q0"]
    peer.send(codec.encode_pubrec(5, first[1].packet_id))  # PUBREC frees no quota
    assert peer.take() == [("PUBREL", first[1].packet_id, 0)]
    peer.send(codec.encode_pubcomp(5, first[1].packet_id))
    assert [packet.payload for packet in peer.publishes()] == [b"2"]
    peer.send(codec.encode_puback(5, first[0].packet_id, 0x80))
    assert [packet.payload for packet in peer.publishes()] == [b"3"]


def test_a_refusal_by_the_subscriber_ends_the_flow() -> None:
    """[MQTT-4.4.0-2] [MQTT-4.3.3-4] [MQTT-4.8.2-6]: no PUBREL, no retransmission, no other member."""
    harness = Harness()
    for topic_filter in ("t", "$share/g/t"):
        other = Peer(harness, "b")
        if topic_filter != "t":
            other.subscribe(topic_filter, qos=2)
        peer = Peer(harness, "a", clean=False, session_expiry_interval=FOREVER)
        peer.subscribe(topic_filter, qos=2)
        for qos in (1, 2, 1, 2):
            Peer(harness, "p").publish("t", b"x", qos)
        for packet in peer.publishes():
            refuse = codec.encode_puback if packet.qos == 1 else codec.encode_pubrec
            peer.send(refuse(5, packet.packet_id, 0x83))
        assert peer.take() == []
        other.take()
        again = Peer(harness, "a", clean=False, session_expiry_interval=FOREVER)
        assert again.publishes() == []
        assert other.publishes() == []
        unsubscribe(again, topic_filter)


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
@pytest.mark.parametrize(
    ("qos", "wrong"), [(1, "pubrec"), (1, "pubcomp"), (2, "puback"), (2, "pubcomp"), (2, "pubrec puback")]
)
def test_the_wrong_answer_to_a_message_ends_the_connection(qos: int, wrong: str, topic_filter: str) -> None:
    """4.3: PUBACK is for QoS 1, PUBREC and then PUBCOMP for QoS 2; anything else is a Protocol Error."""
    harness = Harness()
    for version in (4, 5):
        peer = Peer(harness, "a", version)
        peer.subscribe(topic_filter, qos=2)
        Peer(harness, "p").publish("t", b"x", qos)
        packet_id = peer.publishes()[0].packet_id
        answers = {
            "puback": codec.encode_puback,
            "pubrec": codec.encode_pubrec,
            "pubcomp": codec.encode_pubcomp,
        }
        for name in wrong.split():
            assert not peer.link.closed
            peer.send(answers[name](version, packet_id))
        assert peer.link.closed
        assert [packet.reason_code for packet in peer.take() if isinstance(packet, Disconnect)] == (
            [0x82] if version == 5 else []
        )


def test_a_repeated_pubrec_is_answered_again() -> None:
    """[MQTT-4.3.3-4]"""
    harness = Harness()
    peer = Peer(harness, "a")
    peer.subscribe("t", qos=2)
    Peer(harness, "p").publish("t", b"x", 2)
    packet_id = peer.publishes()[0].packet_id
    peer.send(codec.encode_pubrec(5, packet_id))
    peer.send(codec.encode_pubrec(5, packet_id))
    peer.send(codec.encode_pubcomp(5, packet_id))
    assert peer.take() == [("PUBREL", packet_id, 0)] * 2


def test_what_is_unacknowledged_comes_again_with_dup_and_its_id() -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.6.0-1] [MQTT-2.2.1-4] [MQTT-4.1.0-1]"""
    harness = Harness()
    options: dict[str, Any] = {"clean": False, "session_expiry_interval": FOREVER}
    peer = Peer(harness, "a", **options)
    peer.subscribe("t", qos=2)
    for n in range(4):
        Peer(harness, "p").publish("t", b"%d" % n, 1 + n % 2)
    sent = peer.publishes()
    assert [packet.dup for packet in sent] == [False] * 4
    peer.send(codec.encode_pubrec(5, sent[1].packet_id))
    peer.lose()
    heard = Peer(harness, "a", **options).take()[1:]
    assert heard[1] == ("PUBREL", int(sent[1].packet_id), 0)
    again = [packet for packet in heard if isinstance(packet, Publish)]
    expected = [(packet.packet_id, packet.payload, True) for packet in (sent[0], sent[2], sent[3])]
    assert [(packet.packet_id, packet.payload, packet.dup) for packet in again] == expected


def test_what_is_in_flight_does_not_expire() -> None:
    """[MQTT-4.3.3-7] [MQTT-4.3.3-13] [MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    harness = Harness()
    options: dict[str, Any] = {"clean": False, "session_expiry_interval": FOREVER, "receive_maximum": 1}
    peer = Peer(harness, "a", **options)
    peer.subscribe("t", qos=2)
    publisher = Peer(harness, "p")
    for n, expiry_s in ((1, 10), (2, 10), (3, 100)):
        publisher.publish("t", b"%d" % n, 2, packet_id=n, expiry_s=expiry_s)
    assert [packet.message_expiry_s for packet in peer.publishes()] == [10]
    peer.lose()
    harness.advance(30)
    back = Peer(harness, "a", **options)
    first = back.publishes()
    assert [(packet.payload, packet.dup) for packet in first] == [(b"1", True)]
    back.send(codec.encode_pubrec(5, first[0].packet_id))
    back.send(codec.encode_pubcomp(5, first[0].packet_id))
    assert [(packet.payload, packet.message_expiry_s) for packet in back.publishes()] == [(b"3", 70)]


def test_unsubscribing_ends_new_messages_not_those_in_flight() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]"""
    harness = Harness()
    peer = Peer(harness, "a")
    peer.subscribe("t", "T/+", qos=2)
    Peer(harness, "p").publish("t", b"x", 2)
    sent = peer.publishes()[0]
    assert codes(unsubscribe(peer, "t", "T/#")) == [0, 0x11]
    Peer(harness, "p").publish("t", b"y", 2)
    Peer(harness, "p").publish("T/a", b"z", 0)
    peer.send(codec.encode_pubrec(5, sent.packet_id))
    heard = peer.take()
    assert payloads(heard) == [b"z"]
    assert heard[-1] == ("PUBREL", sent.packet_id, 0)


def test_wildcards_do_not_see_dollar_topics() -> None:
    """[MQTT-4.7.2-1] [MQTT-3.3.2-3]"""
    harness = Harness()
    peer = Peer(harness, "a")
    peer.subscribe("#", "+/x", "$d/+")
    for topic in ("$d/x", "$e/x", "d/x"):
        Peer(harness, "p").publish(topic, topic.encode())
    assert [packet.payload for packet in peer.publishes()] == [b"$d/x", b"d/x"]


def test_filters_of_many_levels() -> None:
    """A filter may have as many levels as fit into 65,535 bytes (4.7.3), if allowed; nothing recurses over them."""
    settings = BrokerSettings()
    settings.filter_levels_max = settings.topic_levels_max = 0
    harness = Harness(settings)
    peer = Peer(harness, "a")
    deep = "/".join(["+"] * 20_000)
    assert codes(peer.subscribe(deep, deep + "/#")) == [1, 1]
    publisher = Peer(harness, "p")
    publisher.publish("/" * 19_999, b"x", 1, True)
    assert len(peer.publishes()) == 1
    assert payloads(Peer(harness, "b").subscribe(deep)) == [b"x"]
    assert codes(unsubscribe(peer, deep)) == [0]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_filters_of_too_many_levels_are_refused(version: int) -> None:
    """3.9.3: 0x97, an implementation limit; the other filters of the packet are granted."""
    peer = Peer(Harness(), "a", version)
    most, over = "/" * 255, "/" * 256
    refused = 0x97 if version == 5 else 0x80
    assert codes(peer.subscribe(most, over, "a")) == [1, refused, 1]
    if version == 5:
        assert codes(peer.subscribe("$share/g/" + most, "$share/g/" + over)) == [1, refused]
    assert peer.publish(over, b"x", 0) == []  # a topic may have as many as fit


@pytest.mark.parametrize("what", ["publish", "subscribe", "unsubscribe"])
def test_who_gives_the_disk_too_much_is_not_read_from_until_it_is_written(what: str) -> None:
    settings = BrokerSettings()
    settings.commit_bytes_max = 1000
    harness = Harness(settings)
    peer = Peer(harness, "a", session_expiry_interval=FOREVER)
    packet = {
        "publish": codec.encode_publish(5, b"t", b"x" * 400, 1, packet_id=1),
        "subscribe": codec.encode_subscribe(5, 1, [SubscriptionRequest("t" * 400, 1)]),
        "unsubscribe": codec.encode_unsubscribe(5, 1, ["t" * 400]),
    }[what]
    peer.server.receive_data(packet)
    assert peer.link.reading
    for _ in range(3):
        peer.server.receive_data(packet)
    slow = peer.link.reading
    harness.sync()
    assert (slow, peer.link.reading) == (False, True)


def test_qos_0_of_an_away_session_is_not_stored() -> None:
    """[MQTT-4.5.0-1]: QoS 1 and 2 are session state, QoS 0 is not (4.1)."""
    harness = Harness()
    options: dict[str, Any] = {"clean": False, "session_expiry_interval": FOREVER}
    peer = Peer(harness, "a", **options)
    peer.subscribe("t", qos=2)
    peer.lose()
    for qos in (0, 1, 2):
        Peer(harness, "p").publish("t", b"%d" % qos, qos)
    assert [packet.payload for packet in Peer(harness, "a", **options).publishes()] == [b"1", b"2"]


def test_order_of_one_publisher_is_kept() -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    settings = BrokerSettings()
    settings.page_messages = 3
    harness = Harness(settings)
    peer = Peer(harness, "a", receive_maximum=5)
    peer.subscribe("t", qos=1)
    publisher = Peer(harness, "p")
    for n in range(30):
        publisher.publish("t", b"%d" % n, 1)
    got: list[bytes] = []
    while batch := peer.publishes():
        got += [packet.payload for packet in batch]
        for packet in reversed(batch):
            peer.send(codec.encode_puback(5, packet.packet_id))
    assert got == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_has_a_limit_of_subscriptions(version: int) -> None:
    """3.9.3: 0x97 beyond it, whether they come in one packet, in several at once or one by one; shared ones count."""
    settings = BrokerSettings()
    settings.subscriptions_max = 4
    harness = Harness(settings)
    refused = 0x97 if version == 5 else 0x80
    peer = Peer(harness, "a", version)
    assert codes(peer.subscribe("a", "b", "a")) == [1, 1, 1]
    last = "$share/g/c" if version == 5 else "c"
    assert codes(peer.subscribe(last, "d", "e", "a")) == [1, 1, refused, 1]
    assert codes(peer.subscribe("f")) == [refused]
    unsubscribe(peer, "b")
    assert codes(peer.subscribe("f", "g")) == [1, refused]


def test_what_is_on_its_way_counts_against_the_limit() -> None:
    settings = BrokerSettings()
    settings.subscriptions_max = 3
    harness = Harness(settings)
    client = harness.client("c")
    packets = [codec.encode_subscribe(4, 1 + n, [SubscriptionRequest(f"t{n}", 1)]) for n in range(5)]
    client.feed(b"".join(packets))
    answers = {body[1]: body[2] for first, body in client.take() if first == 0x90}
    assert answers == {1: 1, 2: 1, 3: 1, 4: 0x80, 5: 0x80}
    harness.crash()
    again = harness.client("c")
    again.feed(codec.encode_subscribe(4, 9, [SubscriptionRequest(name, 1) for name in ("t9", "t0")]))
    assert [body[2:] for first, body in again.take() if first == 0x90] == [b"\x80\x01"]


def test_filters_count_by_what_they_take() -> None:
    settings = BrokerSettings()
    settings.subscription_bytes_max = 200_000
    harness = Harness(settings)
    client = harness.client("c")
    session = harness.broker.fold.tenant("default").sessions["c"]
    deep = [SubscriptionRequest(f"{n}/" + "/".join(["+"] * 200), 1) for n in range(5)]
    client.feed(codec.encode_subscribe(4, 1, deep))
    assert [body[2:] for first, body in client.take() if first == 0x90] == [b"\x01\x01\x80\x80\x80"]
    assert 0 < session.filter_bytes <= 200_000
    client.feed(codec.encode_unsubscribe(4, 1, [request.filter for request in deep]))
    assert session.filter_bytes == session.subscribing == session.subscribing_bytes == 0


def test_queue_as_emqx_has_it() -> None:
    """`$queue/FILTER` and `$share/$queue/FILTER` are one group; either name ends a subscription to it."""
    harness = Harness()
    members = [Peer(harness, name) for name in "ab"]
    members[0].subscribe("$queue/plant/+")
    members[1].subscribe("$share/$queue/plant/+")
    publisher = Peer(harness, "p")
    for number in range(4):
        publisher.publish("plant/boiler", str(number).encode(), 1, packet_id=number + 1)
    got = [[packet.payload for packet in member.publishes()] for member in members]
    assert sorted(got[0] + got[1]) == [b"0", b"1", b"2", b"3"]
    assert got[0]
    assert got[1]
    assert codes(unsubscribe(members[1], "$queue/plant/+")) == [0]
    assert publisher.publish("$queue/plant/boiler", b"x", 1) == [("PUBACK", 7, 0x87)]
