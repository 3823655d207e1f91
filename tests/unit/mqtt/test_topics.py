"""Topic names, topic filters, shared subscriptions: section 4.7 and 4.8.2."""

from __future__ import annotations

import pytest
from hypothesis import given

from headrace.errors import MalformedPacket
from headrace.mqtt import topics
from headrace.mqtt.topics import (
    checked_topic,
    filter_error,
    matches,
    split_share,
    topic_or_none,
    valid_filter,
    valid_topic,
)
from unit.mqtt import strategies

# The examples of section 4.7 and the corners between them.
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player2", False),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("#", "a", True),
    ("#", "/", True),
    ("#", "a//b", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("+", "finance", True),
    ("+/tennis/#", "sport/tennis", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport//player1", True),
    ("sport/+/player1", "sport/player1", False),
    ("a/b", "a/b", True),
    ("a/b", "A/b", False),
    ("a/b", "a/b/", False),
    ("/a", "a", False),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("#", "$SYS/broker", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("+", "$SYS", False),
    ("$SYS/#", "$SYS/broker", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("a/#", "a/$SYS", True),
    ("+/b", "$a/b", False),
    ("$share/g/sport/+", "sport/a", True),
    ("$share/g/#", "$SYS/a", False),
    ("$share/g/$SYS/#", "$SYS/a", True),
]


@pytest.mark.parametrize(("topic_filter", "topic", "expected"), MATCHES)
def test_matches(topic_filter: str, topic: str, expected: bool) -> None:
    assert valid_filter(topic_filter)
    assert valid_topic(topic.encode())
    assert matches(topic_filter, topic) is expected


@pytest.mark.parametrize(
    "topic", [b"a", b"/", b"a/b", b"//", b" ", b"$SYS/a", "\u00e9".encode(), b"x" * 65_535]
)
def test_valid_topic(topic: bytes) -> None:
    assert valid_topic(topic)
    assert topic_or_none(topic) == topic


@pytest.mark.parametrize(
    "topic", [b"", b"a\0", b"+", b"a/#", b"a+b", b"\xed\xa0\x80", b"\x01", b"x" * 65_536]
)
def test_invalid_topic(topic: bytes) -> None:
    assert not valid_topic(topic)
    assert topic_or_none(topic) == b""
    with pytest.raises(MalformedPacket):
        checked_topic(topic)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "a",
        "#",
        "+",
        "/",
        "a/#",
        "+/+/#",
        "/+",
        "a/+/b",
        "$share/g/a",
        "$share/g/#",
        "$share/g//",
        "$share",
        "$SYS/#",
    ],
)
def test_valid_filter(topic_filter: str) -> None:
    assert valid_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "why"),
    [
        ("", "empty"),
        ("a#", "#"),
        ("#/", "#"),
        ("a/#/b", "#"),
        ("a+", "+"),
        ("+a/b", "+"),
        ("x" * 65_536, "longer"),
        ("\u00e9" * 40_000, "longer"),
        ("$share/", "share name"),
        ("$share/g", "without a topic filter"),
        ("$share/g/", "without a topic filter"),
        ("$share//a", "share name"),
        ("$share/+/a", "share name"),
        ("$share/g+/a", "+"),
        ("$share/#/a", "#"),
        ("$share/g/a#", "#"),
    ],
)
def test_invalid_filter(topic_filter: str, why: str) -> None:
    assert why in filter_error(topic_filter)
    assert not valid_filter(topic_filter)


def test_split_share() -> None:
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("a/#") == ("", "a/#")
    assert split_share("$share") == ("", "$share")


def test_equal_topics_are_one_object() -> None:
    assert checked_topic(b"one/" + b"object") is checked_topic(b"one/ob" + b"ject")


def test_the_cache_is_bounded() -> None:
    for number in range(20_000):
        checked_topic(b"bounded/%d" % number)
    assert len(topics._valid) <= 16_384
    long = b"long/" + b"x" * 300
    assert checked_topic(long) == long
    assert long not in topics._valid


@given(strategies.topic_filters(), strategies.TOPICS)
def test_a_topic_matches_itself_and_its_parents_hash(topic_filter: str, topic: str) -> None:
    assert valid_filter(topic_filter)
    assert matches(topic, topic)
    assert matches(topic + "/#", topic)
    if matches(topic_filter, topic) and not topic.startswith("$"):
        assert matches("#", topic)
