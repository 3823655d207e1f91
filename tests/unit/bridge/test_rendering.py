"""What the remote broker gets to see of a message."""

from __future__ import annotations

from harness import Harness, message
from headrace.bridge.counters import BridgeCounters
from headrace.bridge.rendering import BridgeAccess, BridgeRendering, trace_of
from headrace.bridge.topics import Rule, TopicMap
from headrace.mqtt.data_types import text
from headrace.mqtt.publish import TopicAliases, decode_publish
from headrace.storage.memory import MemoryLink

TOPICS = TopicMap([Rule("b/#", "out", 2, "a/", "far/away/")])
TRACE = trace_of("1234")


def rendered(link: MemoryLink, rendering: BridgeRendering, first: int) -> bytes:
    rendering.write(
        link, message(b"a/b/c", b"payload", b"\x26" + text("k") + text("v"), 60), 1, 9, first, b""
    )
    link.flush()
    sent, link.sent = link.sent, b""
    return sent


def test_the_topic_is_mapped_and_the_trace_stands_behind_the_properties() -> None:
    link = MemoryLink(Harness().worker)
    link.version = 5
    rendering = BridgeRendering(TOPICS, TRACE, True, BridgeCounters())
    sent = rendered(link, rendering, 0x3B)
    found = decode_publish(sent, sent[0] & 15, 2, len(sent), 5, TopicAliases(0), True)
    assert (found.topic, found.payload, found.packet_id) == (b"far/away/b/c", b"payload", 9)
    assert (found.retain, found.dup, found.qos, found.message_expiry_s) == (True, True, 1, 60)
    assert found.properties == b"\x26" + text("k") + text("v") + TRACE
    assert len(sent) == rendering.size(
        link, message(b"a/b/c", b"payload", b"\x26" + text("k") + text("v"), 60), 1, b""
    )


def test_before_version_5_there_is_no_place_for_a_trace() -> None:
    link = MemoryLink(Harness().worker)
    link.version = 4
    counters = BridgeCounters()
    sent = rendered(link, BridgeRendering(TOPICS, b"", True, counters), 0x32)
    assert sent == b"\x32\x17\x00\x0cfar/away/b/c\x00\x09payload"
    assert counters.sent == 1


def test_a_remote_broker_without_retained_messages_gets_no_retain_flag() -> None:
    link = MemoryLink(Harness().worker)
    link.version = 4
    assert rendered(link, BridgeRendering(TOPICS, b"", False, BridgeCounters()), 0x33)[0] == 0x32


def test_what_no_rule_lets_out_any_more_may_not_leave() -> None:
    link, access = MemoryLink(Harness().worker), BridgeAccess(TOPICS)
    assert access.may_receive(link, b"a/b")
    assert not access.may_receive(link, b"b")
    assert access.may_publish(link, b"anything")


def test_what_is_counted_is_what_is_written_also_where_a_producer_is_taken_out() -> None:
    link = MemoryLink(Harness().worker)
    link.version = 5
    pairs = (("producer-id", "p"), ("producer-sequence", "7"), ("producer-owner", "0" * 32))
    properties = b"".join(b"\x26" + text(name) + text(value) for name, value in pairs)
    for topic in (b"a/b/c", b"elsewhere"):  # with another name there, and with its own
        found = message(topic, b"payload", properties)
        rendering = BridgeRendering(TOPICS, TRACE, True, BridgeCounters())
        rendering.write(link, found, 1, 9, 0x32, b"")
        link.flush()
        sent, link.sent = link.sent, b""
        assert len(sent) == rendering.size(link, found, 1, b"")
        assert b"producer-" not in sent
        assert found.properties == properties  # others get it as it is
