"""Packets that are not CONNECT, PUBLISH or acknowledgements have to end where they say."""

from __future__ import annotations

import pytest

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt import decoder
from headrace.mqtt.decoder import (
    decode_auth,
    decode_connack,
    decode_disconnect,
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
)
from unit.mqtt.wire import describe


def test_subscribe_options_bit_by_bit() -> None:
    for options in range(64):
        raw = b"\x00\x01\x00\x00\x01a" + bytes((options,))
        if options & 3 == 3 or options >> 4 == 3:
            with pytest.raises(MalformedPacket):
                decode_subscribe(raw, 0, len(raw), 5)
            continue
        request = decode_subscribe(raw, 0, len(raw), 5).filters[0]
        assert request.qos == options & 3
        assert request.no_local == bool(options & 4)
        assert request.retain_as_published == bool(options & 8)
        assert request.retain_handling == options >> 4


def test_a_shared_subscription_without_no_local() -> None:
    raw = b"\x00\x01\x00\x00\x0a$share/g/a\x09"
    assert decode_subscribe(raw, 0, len(raw), 5).filters[0].retain_as_published


def subscribing_to(topic_filter: bytes, options: int = 1) -> bytes:
    return b"\x00\x01\x00" + len(topic_filter).to_bytes(2, "big") + topic_filter + bytes((options,))


def test_queue_is_the_short_form_of_a_shared_subscription() -> None:
    for short, long in (
        (b"$queue/a/+", "$share/$queue/a/+"),
        (b"$queue", "$queue"),
        (b"$queued/a", "$queued/a"),
    ):
        raw = subscribing_to(short)
        assert decode_subscribe(raw, 0, len(raw), 5).filters[0].filter == long
        assert decode_unsubscribe(raw, 0, len(raw) - 1, 5).filters == [long]
    for raw in (subscribing_to(b"$queue/"), subscribing_to(b"$queue/a", 5)):  # no filter; No Local
        with pytest.raises(ProtocolError) as refused:
            decode_subscribe(raw, 0, len(raw), 5)
        assert refused.value.reason_code == 0x82


@pytest.mark.parametrize("code", range(256))
def test_auth_codes(code: int) -> None:
    raw = bytes((code,))
    if code in (0, 0x18, 0x19):
        assert decode_auth(raw, 0, 1).reason_code == code
    else:
        with pytest.raises(ProtocolError):
            decode_auth(raw, 0, 1)


def test_a_packet_ends_at_its_end_and_not_at_the_buffers() -> None:
    raw = bytes.fromhex("0001 0001 61 00 ffff")
    assert describe(decode_subscribe(raw, 0, 6, 4).filters)
    assert decode_unsubscribe(raw, 0, 5, 4).filters == ["a"]
    assert decode_suback(raw, 0, 4, 4).reason_codes == b"\0\x01"
    assert decode_unsuback(raw, 0, 2, 4).packet_id == 1
    assert decode_disconnect(raw, 8, 8, 5).reason_code == 0
    assert decode_connack(raw, 2, 4, 4).reason_code == 1


def test_expect_end() -> None:
    decoder.expect_end(3, 3)
    with pytest.raises(MalformedPacket):
        decoder.expect_end(2, 3)
