"""What the encoder leaves out, and what it refuses to write. The bytes themselves are in the vectors."""

from __future__ import annotations

import pytest

from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties


@pytest.mark.parametrize(
    "encode", [codec.encode_puback, codec.encode_pubrec, codec.encode_pubrel, codec.encode_pubcomp]
)
def test_reason_codes_exist_in_version_5_only(encode: object) -> None:
    assert callable(encode)
    assert len(encode(5, 1, 0x92)) == 5
    assert len(encode(5, 1)) == len(encode(4, 1)) == len(encode(4, 1, 0x92)) == 4


def test_a_3_1_1_client_knows_one_failure() -> None:
    assert codec.encode_suback(4, 1, [0, 2, 0x87, 0x8F]) == b"\x90\x06\x00\x01\x00\x02\x80\x80"


def test_unsuback_has_codes_in_version_5_only() -> None:
    assert codec.encode_unsuback(4, 1, [0]) == b"\xb0\x02\x00\x01"
    assert codec.encode_unsuback(5, 1, [0]) == b"\xb0\x04\x00\x01\x00\x00"


def test_disconnect_says_nothing_before_version_5() -> None:
    assert codec.encode_disconnect(4, 0x87, Properties()) == b"\xe0\x00"
    assert codec.encode_disconnect(5, 0, Properties()) == b"\xe0\x02\x00\x00"
    assert codec.encode_disconnect(5) == b"\xe0\x00"


def test_publish_without_version_5_has_no_properties() -> None:
    plain = codec.encode_publish(4, b"a", b"x", properties=b"\x01\x01", message_expiry_s=5, topic_alias=1)
    assert plain == b"\x30\x04\x00\x01ax"


def test_alias_and_expiry_come_first() -> None:
    raw = codec.encode_publish(5, b"a", b"", properties=b"\x01\x01", message_expiry_s=5, topic_alias=1)
    assert raw.hex() == "300e0001610a230001" + "0200000005" + "0101"


def test_options_are_the_qos_before_version_5() -> None:
    request = SubscriptionRequest("a", 1, True, True, 2)
    assert codec.encode_subscribe(4, 1, [request])[-1] == 1
    assert codec.encode_subscribe(5, 1, [request])[-1] == 0x2D


def test_strings_have_a_limit() -> None:
    with pytest.raises(ValueError, match="65536"):
        codec.encode_connect(Connect(4, "x" * 65_536))
    with pytest.raises(ValueError, match="do not fit"):
        codec.encode_publish(4, b"x" * 65_536, b"")


def test_session_present() -> None:
    assert codec.encode_connack(4, True, 0) == b"\x20\x02\x01\x00"
