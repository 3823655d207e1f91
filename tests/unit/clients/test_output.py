"""How messages are written."""

from __future__ import annotations

import json

from headrace.clients import output
from headrace.mqtt.packets import Publish

PROPERTIES = bytes.fromhex("01 01 03 0001 74 09 0002 00ff 0b 07 26 0001 6b 0001 76")


def message(payload: bytes, properties: bytes = b"", expiry_s: int = -1) -> Publish:
    return Publish(b"a/\xc3\xa9", 1, True, False, 7, properties, expiry_s, payload)


def test_plain_and_verbose() -> None:
    assert output.plain(message(b"\xff")) == b"\xff\n"
    assert output.verbose(message(b"x")) == b"a/\xc3\xa9 x\n"


def test_json() -> None:
    found = json.loads(output.as_json(message(b"hi")))
    assert found == {"topic": "a/é", "qos": 1, "retain": True, "dup": False, "packet_id": 7, "payload": "hi"}


def test_json_of_bytes_and_properties() -> None:
    found = json.loads(output.as_json(message(b"\xff\x00", PROPERTIES, 30)))
    assert found["payload_base64"] == "/wA="
    assert "payload" not in found
    assert found["message_expiry_interval"] == 30
    assert found["properties"] == {
        "payload_format_indicator": 1,
        "content_type": "t",
        "correlation_data": "AP8=",
        "subscription_identifiers": [7],
        "user_properties": [["k", "v"]],
    }
