"""Which retained messages a shard keeps, and what it notes of the others while somebody asks for them."""

from __future__ import annotations

import pytest

from harness import START_US
from headrace.core.homes import Homes
from headrace.core.records.message import NO_EXPIRY, Copy, Message, message_flags
from headrace.core.state import retained_homes
from headrace.core.state.retained import RetainedStore
from headrace.core.state.retained_homes import RecentRetained, RetainedHome, origin_of

HERE = 1


def copy(source: int, source_offset: int, offset: int, topic: bytes = b"t") -> Copy:
    flags = message_flags(1, True, False, 5)
    made = Copy(
        source,
        source_offset,
        START_US,
        flags,
        "default",
        b"defaultc",
        7,
        topic,
        b"",
        NO_EXPIRY,
        b"x",
    )
    made.offset = offset
    return made


def published(offset: int, topic: bytes = b"t", payload: bytes = b"x") -> Message:
    flags = message_flags(1, True, False, 5)
    made = Message(START_US, flags, 1, 1, "default", b"defaultc", 7, topic, b"", NO_EXPIRY, payload)
    made.offset = offset
    return made


def store(recent: RecentRetained | None = None) -> RetainedStore:
    kept = RetainedStore()
    kept.home = RetainedHome(Homes(3), HERE, b"default", recent or RecentRetained(HERE))
    return kept


def topic_in(shard: int) -> bytes:
    names = (f"t/{number}" for number in range(100))
    return next(name for name in names if Homes(3).of_topic("default", name) == shard).encode()


def test_the_home_of_a_topic_is_the_same_in_text_and_in_bytes() -> None:
    homes = Homes(7)
    for topic in ("a", "a/b", "ä/ß", "$x/y"):
        assert homes.of_retained("ten\u00e4nt".encode(), topic.encode()) == homes.of_topic(
            "ten\u00e4nt", topic
        )


def test_a_store_keeps_what_is_at_home() -> None:
    kept = store()
    for shard in range(3):
        kept.arrive(published(shard, topic_in(shard)))
        kept.apply(published(shard, topic_in(shard)))
        kept.keep(published(shard, topic_in(shard)))
    assert [message.topic for message in kept.messages()] == [topic_in(HERE)]
    assert [kept.is_home(topic_in(shard)) for shard in range(3)] == [False, True, False]
    assert not any(kept.is_arriving(topic_in(shard)) for shard in range(3))


def test_a_limit_is_for_what_is_at_home() -> None:
    kept = store()
    kept.apply(published(0, topic_in(HERE)))
    other = next(name for name in (b"u/%d" % n for n in range(100)) if kept.is_home(name))
    assert kept.has_room(published(1, topic_in(0)), 1, 1)
    assert not kept.has_room(published(1, other), 1, 0)
    assert not kept.has_room(published(1, other), 0, 1)
    assert kept.has_room(published(1, other), 2, 0)
    assert kept.has_room(published(1, other, b""), 1, 1)
    assert kept.has_room(published(1, topic_in(HERE)), 1, 0)


def test_the_origin_of_a_message_is_where_it_was_published() -> None:
    assert origin_of(published(4), HERE) == (HERE, 4)
    assert origin_of(copy(2, 9, 4), HERE) == (2, 9)


def test_what_was_appended_since_somebody_asks_has_come() -> None:
    recent = RecentRetained(HERE)
    recent.arrives(copy(0, 1, 10))
    recent.begin("a", 11)
    recent.arrives(copy(0, 5, 11))
    assert not recent.has_come(copy(0, 6, -1), 11)
    assert recent.has_come(copy(0, 5, -1), 11)
    assert recent.has_come(copy(0, 4, -1), 11)
    assert not recent.has_come(copy(0, 5, -1), 12)
    assert not recent.has_come(copy(2, 5, -1), 11)
    assert not recent.has_come(copy(0, 5, -1, b"u"), 11)


def test_what_was_published_here_has_come_too() -> None:
    recent = RecentRetained(HERE)
    recent.begin("a", 0)
    store(recent).arrive(published(7, topic_in(0)))
    assert recent.has_come(copy(HERE, 6, -1, topic_in(0)), 0)


def test_nothing_is_remembered_once_nobody_asks() -> None:
    recent = RecentRetained(HERE)
    recent.begin("a", 0)
    recent.begin("b", 0)
    recent.arrives(copy(0, 1, 1))
    recent.end("a")
    assert recent.has_come(copy(0, 1, -1), 0)
    recent.end("b")
    recent.begin("c", 0)
    assert not recent.has_come(copy(0, 1, -1), 0)


def test_the_oldest_notes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    if retained_homes.__file__.endswith(".so"):
        pytest.skip("a constant of compiled code")
    monkeypatch.setattr(retained_homes, "NOTED_MAX", 2)
    recent = RecentRetained(HERE)
    recent.begin("a", 0)
    for number, topic in enumerate((b"a", b"b", b"a", b"c")):
        recent.arrives(copy(0, number, number, topic))
    found = [recent.has_come(copy(0, 0, -1, topic), 0) for topic in (b"a", b"b", b"c")]
    assert found == [True, False, True]
