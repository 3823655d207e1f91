"""Formats of `sub -F`; what they write is compared with mosquitto_sub in tests/e2e/test_like_mosquitto.py."""

from __future__ import annotations

import json

import pytest

from headrace.clients.format import Arrived, NotJson, parse, render
from headrace.mqtt.packets import NO_EXPIRY, Publish
from headrace.mqtt.properties import Properties

NOW_NS = 1_795_365_703_110_765_412


def arrived(payload: bytes = b"hello", qos: int = 1, expiry_s: int = 100) -> Arrived:
    properties = Properties()
    properties.content_type = "text/plain"
    properties.response_topic = "r/t"
    properties.correlation_data = b"cd"
    properties.payload_format_indicator = 1
    properties.user_properties = [("k", "v"), ("l", "w")]
    properties.subscription_identifiers = [7]
    message = Publish(b"a/b", qos, True, False, 3 if qos else 0, properties.encode(), expiry_s, payload)
    return Arrived(message, NOW_NS)


def shown(text: str, message: Arrived | None = None) -> bytes:
    return render(parse(text), message or arrived())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        ("%t|%p|%q|%r|%l|%m", b"a/b|hello|1|1|5|3"),
        ("%x %X", b"68656c6c6f 68656C6C6F"),
        ("%C %D %E %F %R %S %P|%A", b"text/plain cd 100 1 r/t 7 k:v l:w|"),
        ("100 %% @@ \\\\", b"100 % @ \\"),
        ("\\n\\t\\r\\0\\a\\e\\v", b"\n\t\r\0\a\x1b\v"),
        ("%5t|%-8t|%05l|%5l|%.1t|%10.1t", b"  a/b|a/b     |00005|    5|a|         a"),
        ("%05q%-5qX", b"11X"),
        ("%U", b"1795365703.110765412"),
        ("grüße", "grüße".encode()),
    ],
)
def test_what_is_written(text: str, expected: bytes) -> None:
    assert shown(text) == expected


def test_what_is_not_there_is_empty() -> None:
    bare = Arrived(Publish(b"t", 0, False, False, 0, b"", NO_EXPIRY, b""), NOW_NS)
    assert shown("%A|%C|%E|%F|%R|%S|%P|%D|%5E|", bare) == b"||||||||     |"


def test_json() -> None:
    found = json.loads(shown("%j"))
    assert found.pop("tst").startswith("20")
    assert found == {
        "topic": "a/b",
        "qos": 1,
        "retain": 1,
        "payloadlen": 5,
        "mid": 3,
        "properties": {
            "payload-format-indicator": 1,
            "content-type": "text/plain",
            "response-topic": "r/t",
            "correlation-data": "cd",
            "user-properties": {"k": "v", "l": "w"},
            "message-expiry-interval": 100,
        },
        "payload": "hello",
    }
    assert json.loads(shown("%J", arrived(b'{"x": [1, null]}')))["payload"] == {"x": [1, None]}
    with pytest.raises(NotJson, match="a/b"):
        shown("%J", arrived(b"{"))
    assert b'"payload":"\xff"' in shown("%j", arrived(b"\xff"))


@pytest.mark.parametrize("text", ["%", "@", "\\", "%Z", "\\q", "%5", "%-", "a%"])
def test_wrong_formats(text: str) -> None:
    with pytest.raises(ValueError, match="specifier"):
        parse(text)
