"""PUBLISH in place: topic aliases, and the one pass over the properties."""

from __future__ import annotations

import pytest

from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt.publish import TopicAliases, scan
from unit.mqtt.wire import Client, Server


def topics_of(side: Server | Client) -> list[bytes]:
    return [event[1]["topic"] for event in side.handler.events]  # type: ignore[index]


def test_an_alias_stands_for_its_topic_until_it_is_redefined() -> None:
    side = Server(5)
    for topic, alias in ((b"a", 1), (b"b", 10), (b"", 1), (b"", 10), (b"c", 1), (b"", 1)):
        side.protocol.receive_data(codec.encode_publish(5, topic, b"", topic_alias=alias))
    assert topics_of(side) == [b"a", b"b", b"a", b"b", b"c", b"c"]
    assert side.handler.errors == []


def test_aliases_of_a_server_count_on_their_own() -> None:
    side = Client(5)
    side.protocol.receive_data(codec.encode_publish(5, b"a", b"", topic_alias=2))
    side.protocol.receive_data(codec.encode_publish(5, b"", b"", topic_alias=2))
    assert topics_of(side) == [b"a", b"a"]


def test_no_aliases_where_none_were_offered() -> None:
    side = Server(5, aliases=0)
    side.protocol.receive_data(codec.encode_publish(5, b"a", b"", topic_alias=1))
    assert side.code == 0x94


def test_aliases_on_their_own() -> None:
    aliases = TopicAliases(2)
    assert aliases.resolve(2, b"a") == b"a"
    assert aliases.resolve(2, b"") == b"a"
    for alias, code in ((0, 0x94), (3, 0x94), (1, 0x82)):
        with pytest.raises(ProtocolError) as caught:
            aliases.resolve(alias, b"")
        assert caught.value.reason_code == code


def test_what_is_forwarded_is_the_same_bytes() -> None:
    kept = bytes.fromhex("01 01 26 0001 6b 0001 76 03 0000")
    found = scan(b"??" + kept + b"?", 2, 2 + len(kept), 3, False)
    assert found.properties == kept
    assert (found.topic_alias, found.message_expiry_s, found.delay_s) == (-1, -1, 0)


@pytest.mark.parametrize("order", ["EAK", "KEA", "AKE", "EKA", "KK", "E", "A", "EA"])
def test_alias_and_expiry_are_taken_out_wherever_they_stand(order: str) -> None:
    parts = {"E": "02 00000009", "A": "23 0007", "K": "26 0001 6b 0001 76"}
    raw = b"".join(bytes.fromhex(parts[letter]) for letter in order)
    found = scan(raw, 0, len(raw), 3, False)
    assert found.properties == bytes.fromhex(parts["K"]) * order.count("K")
    assert found.message_expiry_s == (9 if "E" in order else -1)
    assert found.topic_alias == (7 if "A" in order else -1)


def test_will_delay_is_taken_out_of_a_will() -> None:
    raw = bytes.fromhex("18 00000005 01 00 02 00000001")
    found = scan(raw, 0, len(raw), 0, False)
    assert (found.delay_s, found.message_expiry_s, found.properties) == (5, 1, b"\x01\x00")
