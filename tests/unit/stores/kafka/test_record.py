"""Records of a client's topic: what other consumers see, and that the broker has back what it put."""

from __future__ import annotations

import pytest

from headrace.core.outbound.stored_session import entry_of
from headrace.core.ports.queue_store import IN_JOURNAL, NOTHING
from headrace.core.records.message import Message
from headrace.core.records.record import FLAG_RETAIN
from headrace.mqtt.properties import Properties, property_area
from headrace.stores.kafka.record import PROPERTIES_MAX, StreamKey, found_in, record_of

KEY = StreamKey("5f" * 16, 7, 3)


def message(payload: bytes = b"21.5", properties: Properties | None = None) -> Message:
    area = property_area(properties)[1:] if properties is not None else b""
    return Message(1_700_000, 1 | FLAG_RETAIN, 0, 9, "default", b"sensor", 0, b"plant/a", area, 60, payload)


def told() -> Properties:
    properties = Properties()
    properties.content_type = "text/plain"
    properties.response_topic = "answer"
    properties.correlation_data = b"\0\1"
    properties.user_properties = [("site", "1"), ("site", "2"), ("headrace.serial", "99"), ("mqtt.qos", "7")]
    return properties


def test_a_record_says_what_the_message_is() -> None:
    key, value, headers = record_of(KEY, 12, entry_of(5, message(properties=told())))
    assert (key, value) == (b"plant/a", b"21.5")
    assert [text for name, text in headers if name == "site"] == [b"1", b"2"]
    found = dict(headers)
    assert (found["headrace.serial"], found["headrace.incarnation"]) == (b"12", b"7")
    assert (found["headrace.generation"], found["headrace.journal"]) == (b"3", b"5f" * 16)
    assert (found["mqtt.qos"], found["mqtt.retain"], found["mqtt.expiry_s"]) == (b"1", b"1", b"60")
    assert (found["mqtt.content-type"], found["mqtt.response-topic"]) == (b"text/plain", b"answer")
    assert (found["mqtt.correlation-data"], found["mqtt.timestamp_us"]) == (b"\0\1", b"1700000")


@pytest.mark.parametrize(
    "entry",
    [
        entry_of(5, message()),
        entry_of(5, message(payload=b"")),
        entry_of(1 << 40, message(bytes(range(256)), told())),
        NOTHING,
        IN_JOURNAL,
        b"no message, and longer than a reference",
    ],
)
def test_what_was_put_comes_back_byte_for_byte(entry: bytes) -> None:
    _, value, headers = record_of(KEY, 12, entry)
    found = found_in(40, headers, value, wanted=True)
    assert found == (40, KEY, 12, entry)
    assert found_in(40, headers, value, wanted=False).entry is None


def test_a_placeholder_has_neither_key_nor_value() -> None:
    assert record_of(KEY, 12, NOTHING)[:2] == record_of(KEY, 12, IN_JOURNAL)[:2] == (None, None)


def test_a_record_of_others_is_none_of_ours() -> None:
    for headers in (None, [], [("headrace.serial", b"1")], [("headrace.serial", b"x")]):
        assert found_in(1, headers, b"x", wanted=True).key is None


def test_more_properties_than_a_few_are_for_the_broker_alone() -> None:
    properties = Properties()
    properties.user_properties = [("a", "b" * PROPERTIES_MAX)]
    area = property_area(properties)[3:]  # behind a length of three bytes
    entry = entry_of(5, Message(1, 1, 0, 9, "default", b"s", 0, b"t", area, -1, b"x"))
    _, value, headers = record_of(KEY, 1, entry)
    assert "a" not in dict(headers)
    assert found_in(1, headers, value, wanted=True).entry == entry
