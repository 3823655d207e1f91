"""What a trace shows of the bytes that a server writes."""

from __future__ import annotations

import pytest

from headrace.mqtt import codec
from headrace.mqtt.properties import Properties
from headrace.services.packet_rows import rows_of


def test_several_packets_of_one_write() -> None:
    data = codec.encode_publish(5, b"a/b", b"payload", 1, True, False, 7, b"\x23\x00\x03", -1)
    data += codec.encode_puback(5, 9, 0x87) + codec.encode_puback(5, 10) + codec.PINGRESP
    data += codec.encode_suback(5, 3, [0, 1]) + codec.encode_disconnect(5, 0x8E)
    assert list(rows_of(data, 5)) == [
        {
            "packet": "PUBLISH",
            "topic": "a/b",
            "qos": 1,
            "retain": True,
            "dup": False,
            "id": 7,
            "alias": 3,
            "bytes": 7,
        },
        {"packet": "PUBACK", "id": 9, "reason": "Not authorized"},
        {"packet": "PUBACK", "id": 10},
        {"packet": "PINGRESP"},
        {"packet": "SUBACK", "id": 3},
        {"packet": "DISCONNECT", "reason": "Session taken over"},
    ]


@pytest.mark.parametrize(("version", "reason"), [(5, "Not authorized"), (4, "5")])
def test_connack(version: int, reason: str) -> None:
    code = 0x87 if version == 5 else 5
    data = codec.encode_connack(version, False, code, Properties() if version == 5 else None)
    assert list(rows_of(data, version)) == [{"packet": "CONNACK", "reason": reason, "session": "new"}]


def test_a_large_message_and_one_of_version_3() -> None:
    data = codec.encode_publish(4, b"t", b"x" * 20_000, 0, False, False, 0, b"", -1)
    [row] = rows_of(data, 4)
    assert (row["topic"], row["bytes"], row["qos"]) == ("t", 20_000, 0)
    assert "id" not in row


def test_what_is_no_packet_is_an_error_and_no_row() -> None:
    with pytest.raises(IndexError):
        list(rows_of(b"\x30\xff", 4))
