"""A message as a record of Kafka."""

from __future__ import annotations

from headrace.core.records.record import FLAG_RETAIN, FLAG_WILL
from headrace.kafka.rendering import LEFT_OUT, rendered
from headrace.mqtt.properties import Properties
from unit.kafka.journals import START_US, message

ID = bytes(range(16))


def test_every_property_is_a_header() -> None:
    properties = Properties()
    properties.payload_format_indicator = 1
    properties.content_type = "text/plain"
    properties.response_topic = "answers"
    properties.correlation_data = b"\xff\0"
    properties.user_properties = [("unit", "C"), ("unit", "F")]
    one = message("a/b", b"21", "acme", properties.encode())
    one.message_expiry_s = 60
    one.flags |= FLAG_RETAIN | FLAG_WILL
    found = rendered(one, ID, 1_000_000)
    assert (found.key, found.value, found.timestamp_ms) == (b"a/b", b"21", START_US // 1000)
    assert found.is_whole
    assert found.headers == [
        ("headrace-message-id", ID.hex().encode()),
        ("mqtt.tenant", b"acme"),
        ("mqtt.client-id", b"p"),
        ("mqtt.qos", b"1"),
        ("mqtt.retain", b"1"),
        ("mqtt.will", b"1"),
        ("mqtt.message-expiry-interval", b"60"),
        ("mqtt.payload-format-indicator", b"1"),
        ("mqtt.content-type", b"text/plain"),
        ("mqtt.response-topic", b"answers"),
        ("mqtt.correlation-data", b"\xff\0"),
        ("mqtt.user.unit", b"C"),
        ("mqtt.user.unit", b"F"),
    ]


def test_a_payload_that_is_too_large_is_left_out_and_its_size_told() -> None:
    found = rendered(message("a", bytes(1000)), ID, 1000)
    assert (found.value, found.is_whole, dict(found.headers)[LEFT_OUT]) == (b"", False, b"1000")
    assert found.size <= 1000
    assert rendered(message("a", bytes(1000)), ID, 2000).is_whole


def test_properties_that_are_too_large_are_left_out_too() -> None:
    properties = Properties()
    properties.user_properties = [("k", "v" * 900)]
    found = rendered(message("a", b"x", properties=properties.encode()), ID, 800)
    assert (found.value, [name for name, _ in found.headers if "user" in name]) == (b"", [])
    assert dict(found.headers)[LEFT_OUT] == b"1"


def test_properties_that_nobody_can_read_stop_no_sink() -> None:
    found = rendered(message("a", properties=b"\xff\xff"), ID, 1000)
    assert dict(found.headers)["mqtt.properties"] == b"\xff\xff"
    assert found.value == b"x"
