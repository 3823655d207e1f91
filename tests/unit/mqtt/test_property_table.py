"""The property table against Table 2-4 of the specification, copied by hand."""

from __future__ import annotations

import pytest

from headrace.mqtt import packets
from headrace.mqtt.property_table import ALLOWED, ATTRIBUTES, KINDS, TABLE, WILL

NAMES = {
    "CONNECT": packets.CONNECT,
    "CONNACK": packets.CONNACK,
    "PUBLISH": packets.PUBLISH,
    "PUBACK": packets.PUBACK,
    "PUBREC": packets.PUBREC,
    "PUBREL": packets.PUBREL,
    "PUBCOMP": packets.PUBCOMP,
    "SUBSCRIBE": packets.SUBSCRIBE,
    "SUBACK": packets.SUBACK,
    "UNSUBSCRIBE": packets.UNSUBSCRIBE,
    "UNSUBACK": packets.UNSUBACK,
    "DISCONNECT": packets.DISCONNECT,
    "AUTH": packets.AUTH,
    "Will": WILL,
}
EVERYWHERE = " ".join(NAMES)
TABLE_2_4 = {
    0x01: "PUBLISH Will",
    0x02: "PUBLISH Will",
    0x03: "PUBLISH Will",
    0x08: "PUBLISH Will",
    0x09: "PUBLISH Will",
    0x0B: "PUBLISH SUBSCRIBE",
    0x11: "CONNECT CONNACK DISCONNECT",
    0x12: "CONNACK",
    0x13: "CONNACK",
    0x15: "CONNECT CONNACK AUTH",
    0x16: "CONNECT CONNACK AUTH",
    0x17: "CONNECT",
    0x18: "Will",
    0x19: "CONNECT",
    0x1A: "CONNACK",
    0x1C: "CONNACK DISCONNECT",
    0x1F: "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    0x21: "CONNECT CONNACK",
    0x22: "CONNECT CONNACK",
    0x23: "PUBLISH",
    0x24: "CONNACK",
    0x25: "CONNACK",
    0x26: EVERYWHERE,
    0x27: "CONNECT CONNACK",
    0x28: "CONNACK",
    0x29: "CONNACK",
    0x2A: "CONNACK",
}


@pytest.mark.parametrize(("identifier", "names"), TABLE_2_4.items())
def test_allowed_packets(identifier: int, names: str) -> None:
    expected = sum(1 << NAMES[name] for name in names.split())
    assert ALLOWED[identifier] == expected


def test_nothing_else_is_known() -> None:
    assert set(ATTRIBUTES) == set(TABLE_2_4)
    assert {identifier for identifier, kind in enumerate(KINDS) if kind} == set(TABLE_2_4)
    assert len({row[1] for row in TABLE}) == len(TABLE) == 27
