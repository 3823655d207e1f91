"""Answers become types: bytes of base64, null as None, and what a later broker adds is left out."""

from __future__ import annotations

import msgspec
import pytest

from headrace.clients.admin.rows import BacklogRow, Reloaded, RetainedMessage

RETAINED = {
    "tenant": "t",
    "topic": "a",
    "qos": 1,
    "size": 3,
    "client_id": "",
    "is_will": False,
    "received_at_us": 1,
    "expires_at_us": None,
    "shard": 0,
    "worker": 0,
    "payload": "AP8=",
    "text": None,
    "properties": {"user_properties": [["a", "b"]], "of_a_later_broker": 1},
    "of_a_later_broker": 1,
}


def test_a_message() -> None:
    found = msgspec.convert(RETAINED, RetainedMessage)
    assert (found.payload, found.text, found.expires_at_us) == (b"\x00\xff", None, None)
    assert found.properties["user_properties"] == [("a", "b")]


def test_what_is_missing_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"changed": []}, Reloaded)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(RETAINED, BacklogRow)
