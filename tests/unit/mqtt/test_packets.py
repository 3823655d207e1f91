"""Packet objects say what a packet says when nothing was said."""

from __future__ import annotations

from headrace.mqtt import packets
from headrace.mqtt.packets import Connect, SubscriptionRequest, Will


def test_names_are_in_the_order_of_the_types() -> None:
    assert packets.NAMES[packets.CONNECT] == "CONNECT"
    assert packets.NAMES[packets.PUBCOMP] == "PUBCOMP"
    assert packets.NAMES[packets.AUTH] == "AUTH"
    assert len(packets.NAMES) == 16


def test_a_connect_has_properties_of_its_own() -> None:
    first, second = Connect(5, "a"), Connect(5, "b")
    first.properties.user_properties.append(("k", "v"))
    assert second.properties.user_properties == []


def test_defaults() -> None:
    will = Will("t", b"")
    assert (will.qos, will.retain, will.delay_s, will.message_expiry_s) == (0, False, 0, packets.NO_EXPIRY)
    request = SubscriptionRequest("a/#")
    assert (request.filter, request.qos, request.no_local) == ("a/#", 0, False)
    connect = Connect(4, "a")
    assert (connect.clean_start, connect.keep_alive_s, connect.username, connect.bridge) == (
        True,
        60,
        None,
        False,
    )
