"""CONNECT, CONNACK and DISCONNECT: sections 3.1, 3.2 and 3.14, beyond what the codec's own tests show."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec
from headrace.mqtt.packets import Connack, Connect, Disconnect, Publish, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties

FOREVER = 0xFFFFFFFF


def test_a_connack_that_would_be_too_large_is_not_sent_and_nothing_happens() -> None:
    """[MQTT-3.1.2-24] The client's Maximum Packet Size binds every packet, CONNACK too."""
    harness = Harness()
    first = Peer(harness, "me", clean=False, session_expiry_interval=FOREVER)
    small = Peer(harness, "me", maximum_packet_size=10)
    assert small.heard == []
    assert small.link.closed
    assert not first.link.closed  # not even a takeover


def test_response_information_is_for_who_asks_and_has_room() -> None:
    """[MQTT-3.1.2-28] [MQTT-3.2.2-19]"""
    settings = BrokerSettings()
    settings.response_information = "answers/" + "x" * 40
    harness = Harness(settings)
    assert Peer(harness, "a").connack.properties.response_information is None
    assert Peer(harness, "b", request_response_information=0).connack.properties.response_information is None
    asked = Peer(harness, "c", request_response_information=1).connack.properties
    assert asked.response_information == settings.response_information
    narrow = Peer(harness, "d", request_response_information=1, maximum_packet_size=40).connack.properties
    assert narrow.response_information is None


def test_an_empty_client_id_gets_a_new_one_in_version_5() -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]"""
    harness = Harness()
    names = {Peer(harness).connack.properties.assigned_client_identifier for _ in range(3)}
    assert len(names) == 3
    assert None not in names
    assert Peer(harness, "named").connack.properties.assigned_client_identifier is None


@pytest.mark.parametrize(
    ("version", "clean", "code"), [(3, True, 2), (3, False, 2), (4, True, 0), (4, False, 2)]
)
def test_an_empty_client_id_before_version_5(version: int, clean: bool, code: int) -> None:
    """[MQTT-3.1.3-8] of 3.1.1; 3.1 demands one to 23 characters."""
    peer = Peer(Harness(), "", version, clean=clean)
    assert peer.connack.reason_code == code
    assert peer.link.closed == (code != 0)


def test_the_server_keep_alive_replaces_the_clients() -> None:
    """[MQTT-3.2.2-21] [MQTT-3.2.2-22]"""
    settings = BrokerSettings()
    settings.keep_alive_max_s = 60
    harness = Harness(settings)
    assert Peer(harness, "a", keep_alive_s=0).connack.properties.server_keep_alive == 60
    assert Peer(harness, "b", keep_alive_s=61).connack.properties.server_keep_alive == 60
    shorter = Peer(harness, "c", keep_alive_s=10)
    assert shorter.connack.properties.server_keep_alive is None
    assert shorter.link.keep_alive_ms == 15_000


def test_nobody_is_heard_for_one_and_a_half_keep_alives() -> None:
    """[MQTT-3.1.2-22]"""
    harness = Harness()
    peer = Peer(harness, "a", keep_alive_s=10)
    harness.advance(14.9)
    assert not peer.link.closed
    harness.advance(0.5)
    heard = peer.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x8D
    assert peer.link.closed


def test_a_second_connect_ends_the_connection() -> None:
    """[MQTT-3.1.0-2] [MQTT-4.13.1-1] [MQTT-4.13.2-1]"""
    peer = Peer(Harness(), "a")

    peer.send(codec.encode_connect(Connect(5, "a")))
    heard = peer.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x82
    assert peer.link.closed


def test_an_unknown_authentication_method_is_refused() -> None:
    """[MQTT-4.12.0-1]"""
    peer = Peer(Harness(), "a", authentication_method="NONE-SUCH")
    assert peer.connack.reason_code == 0x8C
    assert peer.link.closed


@pytest.mark.parametrize("code", [0x00, 0x18, 0x19])
@pytest.mark.parametrize("method", [None, "", "NONE-SUCH"])
def test_auth_where_no_method_was_agreed(code: int, method: str | None) -> None:
    """[MQTT-4.12.0-6] 4.13: AUTH belongs to an exchange that CONNECT began; without one it is a Protocol Error."""
    peer = Peer(Harness(), "a")
    peer.take()
    properties = Properties()
    properties.authentication_method = method
    peer.send(codec.encode_auth(code, properties))
    heard = peer.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x82
    assert peer.link.closed


def test_packets_behind_a_refused_method_are_not_heard() -> None:
    """[MQTT-4.12.0-1] [MQTT-3.1.4-6]: CONNACK 0x8C, then nothing, whatever was sent in advance."""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe("#")
    behind = codec.encode_auth(0x18) + codec.encode_publish(5, b"t", b"x") + codec.PINGREQ
    peer = Peer(harness, "a", behind=behind, authentication_method="M", authentication_data=b"x")
    assert [type(packet) for packet in peer.heard] == [Connack]
    assert peer.connack.reason_code == 0x8C
    assert peer.link.closed
    assert watcher.publishes() == []
    assert Peer(harness, "a", 4).connack.reason_code == 0  # no session was touched


@pytest.mark.parametrize("version", [3, 4])
def test_auth_before_version_5_ends_the_connection(version: int) -> None:
    peer = Peer(Harness(), "a", version)
    peer.take()
    peer.send(codec.encode_auth(0x18))
    assert peer.take() == []
    assert peer.link.closed


def test_session_present_and_expiry() -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-4.1.0-2]"""
    harness = Harness()
    expects = [(False, False), (False, True), (True, False), (False, True)]
    for clean, present in expects:
        peer = Peer(harness, "a", clean=clean, session_expiry_interval=100)
        assert peer.connack.session_present == present
        peer.send(codec.encode_disconnect(5))
    harness.advance(101)
    assert not Peer(harness, "a", clean=False).connack.session_present


def test_disconnect_ends_the_session_when_it_says_so() -> None:
    """3.14.2.2.2: a Session Expiry Interval of 0 in DISCONNECT."""
    harness = Harness()
    peer = Peer(harness, "a", clean=False, session_expiry_interval=100)
    properties = Properties()
    properties.session_expiry_interval = 0
    peer.send(codec.encode_disconnect(5, 0, properties))
    assert not Peer(harness, "a", clean=False).connack.session_present


def test_disconnect_may_not_revive_a_session_without_expiry() -> None:
    """3.14.2.2.2: from 0 to anything else is a Protocol Error."""
    peer = Peer(Harness(), "a")
    properties = Properties()
    properties.session_expiry_interval = 100
    peer.send(codec.encode_disconnect(5, 0, properties))
    heard = peer.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x82


@pytest.mark.parametrize(("code", "fires"), [(0, False), (4, True), (0x81, True), (0x8E, True)])
def test_only_a_normal_disconnect_discards_the_will(code: int, fires: bool) -> None:
    """[MQTT-3.14.4-3] [MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe("will")
    peer = Peer(harness, "a", will=Will("will", b"gone"))
    peer.send(codec.encode_disconnect(5, code))
    assert [packet.payload for packet in watcher.publishes()] == ([b"gone"] if fires else [])
    assert peer.link.closed


def test_a_will_is_published_as_it_was_given() -> None:
    """[MQTT-3.1.2-7] [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.3-10]: QoS, retain, properties in their order."""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe(SubscriptionRequest("will", 2, retain_as_published=True))
    properties = b"\x26\x00\x01b\x00\x01y\x26\x00\x01a\x00\x01x"
    peer = Peer(harness, "a", will=Will("will", b"gone", 2, True, properties, 0, 50))
    peer.lose()
    found = watcher.publishes()[0]
    assert (found.qos, found.retain, found.properties, found.message_expiry_s) == (2, True, properties, 50)
    late = Peer(harness, "late").subscribe("will")
    assert [packet.payload for packet in late if isinstance(packet, Publish)] == [b"gone"]


def test_a_return_within_the_delay_keeps_the_will() -> None:
    """[MQTT-3.1.3-9]; the end of the session is the latest moment (3.1.3.2.2)."""
    harness = Harness()
    watcher = Peer(harness, "w")
    watcher.subscribe("will")
    for returns in (True, False):
        peer = Peer(
            harness, "a", clean=False, session_expiry_interval=20, will=Will("will", b"gone", delay_s=30)
        )
        peer.lose()
        harness.advance(19)
        assert watcher.publishes() == []
        if returns:
            Peer(harness, "a", clean=False, session_expiry_interval=20).send(codec.encode_disconnect(5))
    harness.advance(2)
    assert len(watcher.publishes()) == 1


def test_the_older_connection_is_told_why_it_ends() -> None:
    """[MQTT-3.1.4-3]"""
    harness = Harness()
    older = Peer(harness, "a")
    Peer(harness, "a")
    heard = older.take()[-1]
    assert isinstance(heard, Disconnect)
    assert heard.reason_code == 0x8E
    assert heard.properties.session_expiry_interval is None  # [MQTT-3.14.2-2]


def test_nothing_comes_before_connack() -> None:
    """[MQTT-3.2.0-1] [MQTT-3.2.0-2] Packets behind CONNECT are answered behind CONNACK."""
    harness = Harness()
    behind = b"\xc0\x00" + codec.encode_pubrec(5, 77) + codec.encode_publish(5, b"t", b"", 1, packet_id=3)
    peer = Peer(harness, "a", behind=behind, session_expiry_interval=9)
    assert isinstance(peer.heard[0], Connack)
    assert peer.heard[1:] == ["PINGRESP", ("PUBREL", 77, 0), ("PUBACK", 3, 0x10)]


@pytest.mark.parametrize("declined", [False, True])
def test_reason_strings_where_they_are_wanted(declined: bool) -> None:
    """[MQTT-3.1.2-29] [MQTT-3.14.2-3]"""
    settings = BrokerSettings()
    settings.reason_strings = True
    harness = Harness(settings)
    options: dict[str, Any] = {"request_problem_information": 0} if declined else {}
    for size, explained in ((None, True), (20, False)):
        peer = Peer(harness, "a", maximum_packet_size=size, **options)
        peer.send(b"\x82\x00")
        heard = peer.take()[-1]
        assert isinstance(heard, Disconnect)
        assert (heard.properties.reason_string is not None) == (explained and not declined)


def test_a_will_on_a_topic_of_the_broker_is_refused() -> None:
    assert Peer(Harness(), "a", will=Will("$SYS/broker/version", b"")).connack.reason_code == 0x90
    assert Peer(Harness(), "a", 4, will=Will("$SYS/broker/version", b"")).connack.reason_code == 5


def test_ping() -> None:
    """[MQTT-3.12.4-1]"""
    peer = Peer(Harness(), "a")
    peer.take()
    peer.send(codec.PINGREQ)
    assert peer.take() == ["PINGRESP"]
