"""Properties as an object: every property in every packet, right, cut, twice and out of place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.mqtt import packets
from headrace.mqtt.properties import Properties, area_length, property_area, read_properties
from headrace.mqtt.property_table import (
    ALLOWED,
    ATTRIBUTES,
    BINARY,
    BIT,
    KINDS,
    PAIRS,
    TABLE,
    TEXT,
    U16,
    U16_NONZERO,
    U32,
    U32_NONZERO,
    VARINT_LIST,
    WILL,
)
from unit.mqtt import strategies

ONE = {
    BIT: b"\x01",
    U16: b"\x00\x01",
    U16_NONZERO: b"\x00\x01",
    U32: b"\x00\x00\x00\x01",
    U32_NONZERO: b"\x00\x00\x00\x01",
    VARINT_LIST: b"\x01",
    TEXT: b"\x00\x01t",
    BINARY: b"\x00\x01\xff",
    PAIRS: b"\x00\x01k\x00\x01v",
}
VALUE = {TEXT: "t", BINARY: b"\xff", PAIRS: [("k", "v")], VARINT_LIST: [1]}
TYPES = [WILL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15]
ALLOWED_PAIRS = [(row[0], kind) for row in TABLE for kind in TYPES if row[3] >> kind & 1]
OTHER_PAIRS = [(row[0], kind) for row in TABLE for kind in TYPES if not row[3] >> kind & 1]


def code_of(raw: bytes, packet_type: int) -> int:
    with pytest.raises(ProtocolError) as caught:
        Properties.decode(raw, 0, len(raw), packet_type)
    return caught.value.reason_code


def raw_of(identifier: int) -> bytes:
    return bytes((identifier,)) + ONE[KINDS[identifier]]


@pytest.mark.parametrize(("identifier", "packet_type"), ALLOWED_PAIRS)
def test_allowed(identifier: int, packet_type: int) -> None:
    raw = raw_of(identifier)
    found = Properties.decode(raw, 0, len(raw), packet_type)
    assert found.as_dict() == {ATTRIBUTES[identifier]: VALUE.get(KINDS[identifier], 1)}
    assert found.encode() == raw


@pytest.mark.parametrize(("identifier", "packet_type"), ALLOWED_PAIRS)
def test_twice(identifier: int, packet_type: int) -> None:
    raw = raw_of(identifier) * 2
    if KINDS[identifier] == PAIRS or (KINDS[identifier] == VARINT_LIST and packet_type == packets.PUBLISH):
        assert Properties.decode(raw, 0, len(raw), packet_type).encode() == raw
    else:
        assert code_of(raw, packet_type) == 0x82


@pytest.mark.parametrize(("identifier", "packet_type"), OTHER_PAIRS)
def test_out_of_place(identifier: int, packet_type: int) -> None:
    malformed = packet_type in (packets.SUBSCRIBE, packets.UNSUBSCRIBE)
    assert code_of(raw_of(identifier), packet_type) == (0x81 if malformed else 0x82)


@pytest.mark.parametrize("packet_type", TYPES)
@pytest.mark.parametrize("identifier", ATTRIBUTES)
def test_cut_anywhere_is_malformed(identifier: int, packet_type: int) -> None:
    raw = raw_of(identifier)
    for cut in range(1, len(raw)):
        assert code_of(raw[:cut], packet_type) == 0x81


@pytest.mark.parametrize("identifier", [n for n in range(256) if n not in ATTRIBUTES])
def test_unknown(identifier: int) -> None:
    assert code_of(bytes((identifier, 1)), packets.CONNECT) == 0x81


@pytest.mark.parametrize("identifier", [n for n in ATTRIBUTES if KINDS[n] == BIT])
def test_neither_0_nor_1(identifier: int) -> None:
    packet_type = next(kind for kind in TYPES if ALLOWED[identifier] >> kind & 1)
    assert code_of(bytes((identifier, 2)), packet_type) == 0x82


@pytest.mark.parametrize("raw", ["21 0000", "27 00000000"])
def test_zero_where_it_means_nothing(raw: str) -> None:
    assert code_of(bytes.fromhex(raw), packets.CONNECT) == 0x82


def test_the_area_ends_with_its_length() -> None:
    raw = b"\x05\x11\x00\x00\x00\x07!"
    found, behind = read_properties(raw, 0, len(raw), packets.CONNECT)
    assert found.session_expiry_interval == 7
    assert behind == 6
    assert area_length(raw, 0, len(raw)) == 5


def test_nothing_is_one_byte() -> None:
    assert property_area(None) == property_area(Properties()) == b"\0"


def test_equal_properties_are_equal() -> None:
    left, right = Properties(), Properties()
    left.user_properties = right.user_properties = [("a", "b")]
    assert left == right
    assert hash(left) == hash(right)
    right.content_type = "x"
    assert left != right
    assert left != "x"
    assert repr(right) == "Properties({'content_type': 'x', 'user_properties': [('a', 'b')]})"


@given(st.data(), st.sampled_from(TYPES))
def test_round_trip(data: st.DataObject, packet_type: int) -> None:
    properties = data.draw(strategies.properties_for(packet_type))
    raw = properties.encode()
    assert Properties.decode(b"?" + raw + b"?", 1, len(raw) + 1, packet_type) == properties
