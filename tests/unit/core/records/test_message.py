"""A message as PUBLISH bytes: against the codec, for every version and option."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from harness import START_US, message
from headrace.core.records.message import Message, broker_message, decode_batch, encode_varint
from headrace.mqtt.codec import encode_publish
from headrace.mqtt.data_types import varint


def rendered(
    found: Message, version: int, qos: int, first: int, ids: bytes = b"", waited_s: int = 0
) -> bytes:
    out = BytesWriter()
    found.render(out, version, qos, 0x1234, first, ids, START_US + waited_s * 1_000_000)
    data = out.getvalue()
    assert found.rendered_size(version, qos, ids) == len(data)
    return data


@given(
    st.sampled_from([3, 4, 5]),
    st.integers(0, 2),
    st.binary(min_size=1, max_size=40),
    st.binary(max_size=300),
    st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01k\x00\x01v" * 30]),
    st.sampled_from([-1, 0, 90]),
)
def test_it_is_what_the_codec_would_write(
    version: int, qos: int, topic: bytes, payload: bytes, properties: bytes, expiry_s: int
) -> None:
    found = message(topic, payload, properties, expiry_s)
    wanted = encode_publish(
        version, topic, payload, qos, False, False, 0x1234 if qos else 0, properties, expiry_s
    )
    assert rendered(found, version, qos, 0x30 | qos << 1) == wanted or version == 5
    if version == 5:  # the order of properties is free
        assert sorted(rendered(found, version, qos, 0x30 | qos << 1)) == sorted(wanted)


def test_what_is_left_of_the_expiry_is_passed_on() -> None:
    data = rendered(message(expiry_s=60), 5, 1, 0x32, waited_s=45)
    assert b"\x02" + (15).to_bytes(4, "big") in data
    late = rendered(message(expiry_s=60), 5, 1, 0x32, waited_s=90)
    assert b"\x02\x00\x00\x00\x00" in late


def test_subscription_identifiers_follow_the_properties() -> None:
    data = rendered(message(properties=b"\x01\x01"), 5, 1, 0x32, ids=b"\x0b\x05\x0b\x07")
    assert data.endswith(b"\x06\x01\x01\x0b\x05\x0b\x07x")


def test_expired_counts_from_the_receive_time() -> None:
    assert not message().expired(START_US + 10**15)
    assert not message(expiry_s=5).expired(START_US + 4_999_999)
    assert message(expiry_s=5).expired(START_US + 5_000_000)


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_varint_agrees_with_the_codec(value: int) -> None:
    assert encode_varint(value) == varint(value)


@pytest.mark.parametrize("step_s", [-1, -3600, -40 * 365 * 86_400, 0, 5, 3600, 10 * 365 * 86_400])
@pytest.mark.parametrize("expiry_s", [0, 1, 7200, 0xFFFFFFFF])
def test_no_clock_makes_an_expiry_longer(step_s: int, expiry_s: int) -> None:
    """The clock is set back or forth between the receipt and the delivery."""
    out = BytesWriter()
    message(expiry_s=expiry_s).render(out, 5, 0, 0, 0x30, b"", START_US + step_s * 1_000_000)
    packet = out.getvalue()
    left = int.from_bytes(packet[packet.index(b"\x05\x02") + 2 :][:4], "big")
    assert left == min(expiry_s, max(0, expiry_s - max(0, step_s)))


def test_records_of_several_tenants_in_turn_are_each_of_their_own() -> None:
    names = ["one", "two", "two", "one", "déjà", "one"]
    out = BytesWriter()
    for name in names:
        broker_message(START_US, 1, name, b"a", b"x").encode_into(out)
    assert [
        record.tenant for record in decode_batch(out.getvalue(), 0) if isinstance(record, Message)
    ] == names


@pytest.mark.parametrize("expiry_s", [-1, 0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF])
@pytest.mark.parametrize("client_id", ["", "c" * 0x8001])
def test_every_expiry_interval_is_read_as_it_was_written(expiry_s: int, client_id: str) -> None:
    out = BytesWriter()
    origin = b"default" + client_id.encode()
    sent = Message(START_US, 1, 7, 3, "default", origin, 7, b"t", b"", expiry_s, b"x")
    sent.offset = 5
    sent.encode_into(out)
    sent.copy_into(out, 2)
    for found in decode_batch(out.getvalue(), 5):
        assert isinstance(found, Message)
        assert (found.message_expiry_s, found.tenant, found.client_id) == (expiry_s, "default", client_id)


def test_the_longest_interval_of_before_is_none_as_it_was() -> None:
    out = BytesWriter()
    Message(START_US, 1, 7, 3, "default", b"default", 7, b"t", b"", -1, b"x").encode_into(out)
    data = out.getvalue()
    assert data[24:30] == b"\xff\xff\xff\xff\x07\x00"
    (found,) = decode_batch(data, 5)
    assert isinstance(found, Message)
    assert found.message_expiry_s == -1
