"""What `-d` says of packets that are sent; the whole output is compared in tests/e2e/test_like_mosquitto.py."""

from __future__ import annotations

import pytest

from headrace.clients.debug import sent
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties

PROPERTIES = Properties()
PROPERTIES.user_properties = [("k", "v" * 200)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_each_packet(version: int) -> None:
    properties = PROPERTIES if version == 5 else Properties()
    publish = codec.encode_publish(
        version, b"a/b", b"x" * 300, 2, True, False, 7, properties.encode(), 60 if version == 5 else -1
    )
    filters = [SubscriptionRequest("a/#", 1), SubscriptionRequest("b", 2)]
    said = {
        codec.encode_connect(Connect(version, "me")): ["CONNECT"],
        publish: ["PUBLISH (d0, q2, r1, m7, 'a/b', ... (300 bytes))"],
        codec.encode_publish(version, b"t", b""): ["PUBLISH (d0, q0, r0, m0, 't', ... (0 bytes))"],
        codec.encode_subscribe(version, 3, filters, properties): [
            "SUBSCRIBE (Mid: 3, Topic: a/#, QoS: 1, Options: 0x00)",
            "SUBSCRIBE (Mid: 3, Topic: b, QoS: 2, Options: 0x00)",
        ],
        codec.encode_unsubscribe(version, 4, ["a/#"], properties): ["UNSUBSCRIBE (Mid: 4, Topic: a/#)"],
        codec.encode_puback(version, 5): ["PUBACK (m5, rc0)"],
        codec.encode_pubrec(version, 5): ["PUBREC (m5, rc0)"],
        codec.encode_pubrel(version, 5): ["PUBREL (m5)"],
        codec.encode_pubcomp(version, 5): ["PUBCOMP (m5)"],
        codec.encode_pingreq(): ["PINGREQ"],
        codec.encode_disconnect(version): ["DISCONNECT"],
    }
    assert {data: sent(data, version) for data in said} == said
