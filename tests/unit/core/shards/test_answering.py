"""A home gives pages of what it retains, when it has taken what the asking shard has."""

from __future__ import annotations

import pytest

from headrace.core.shards import answering
from headrace.core.shards.peer import Frame, Wire
from headrace.core.shards.peer_codec import decode
from headrace.core.shards.retained_frames import ALL, LIVE, STORED, Answered, Asked, Forgotten, More, Sought
from headrace.core.shards.stream_settings import StreamSettings
from shard_wires import End, WiredShards, received


class Heard(Wire):
    """A wire that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[Frame] = []
        self.is_full = False

    @property
    def full(self) -> bool:
        return self.is_full

    def say(self, frame: Frame) -> None:
        self.said.append(frame)

    def cut(self) -> None: ...

    def pages(self) -> list[list[bytes]]:
        found = [[copy.payload for _, copy in f.entries] for f in self.said if isinstance(f, Answered)]
        self.said = [frame for frame in self.said if not isinstance(frame, Answered)]
        return found


PAGE = StreamSettings().page_messages


def home(count: int, qos: int = 1, size: int = 1) -> tuple[WiredShards, Heard]:
    """Shard 1 keeps so many messages on a/N."""
    shards = WiredShards()
    writer = shards[1].client("w", version=5)
    homes = shards[1].worker.homes
    names = (name for name in (f"a/{n}" for n in range(10_000)) if homes.of_topic("default", name) == 1)
    for number in range(count):
        writer.publish(next(names), b"%d" % number * size, qos, retain=True, sync=False)
    shards.carry()
    return shards, Heard()


def ask(shards: WiredShards, frame: Frame, wire: Wire) -> None:
    answers = shards[1].neighbours._answering
    if isinstance(frame, Asked):
        answers.asked(99, wire, frame)
    elif isinstance(frame, More):
        answers.more(99, frame)
    else:
        assert isinstance(frame, Forgotten)
        answers.forgotten(99, frame)
    shards[1].neighbours.end_pass()


@pytest.mark.parametrize(("part", "found"), [(ALL, 3), (STORED, 3), (LIVE, 0)])
def test_a_part_is_by_the_qos_of_message_and_subscription(part: int, found: int) -> None:
    shards, wire = home(3)
    ask(shards, Asked(1, part, [], "default", [(1, "a/+")]), wire)
    assert [len(page) for page in wire.pages()] == [found]
    ask(shards, Asked(2, STORED if part == LIVE else part, [], "default", [(0, "a/+")]), wire)
    assert [len(page) for page in wire.pages()] == [3 if part == ALL else 0]


def test_one_page_is_given_for_each_time_it_is_asked() -> None:
    shards, wire = home(2 * PAGE + 1)
    ask(shards, Asked(1, ALL, [], "default", [(1, "a/+")]), wire)
    sizes = []
    for _ in range(3):
        shards[1].neighbours.end_pass()
        (page,) = wire.pages()
        sizes.append(len(page))
        ask(shards, More(1, []), wire)
    assert sizes == [PAGE, PAGE, 1]
    assert wire.pages() == []
    assert shards[1].neighbours._answering._walks == {}


def test_no_page_is_given_while_what_was_said_has_piled_up() -> None:
    shards, wire = home(1)
    wire.is_full = True
    ask(shards, Asked(1, ALL, [], "default", [(1, "a/+")]), wire)
    assert wire.pages() == []
    wire.is_full = False
    shards[1].neighbours.end_pass()
    assert wire.pages() == [[b"0"]]


class Failing(End):
    """Has no memory for a page, so often."""

    left = 1

    def say(self, frame: Frame) -> None:
        if isinstance(frame, Answered) and self.left:
            self.left -= 1
            raise MemoryError
        super().say(frame)


def test_a_page_that_cannot_be_given_is_asked_for_on_another_wire_and_keeps_nobody_waiting() -> None:
    shards, wire = home(3)
    shards.disconnect(0, 1)
    near, far = End(shards[0]), Failing(shards[1])
    shards.wires[0, 1] = near, far
    shards[0].neighbours.connect(1, near)
    shards.carry()
    reader = shards[0].client("r", clean=False)
    reader.subscribe("a/+", 1)
    shards.carry()
    assert far.is_cut
    ask(shards, Asked(1, ALL, [], "default", [(1, "a/+")]), wire)
    assert [len(page) for page in wire.pages()] == [3], "others are answered"
    shards[0].neighbours.broken(near)
    del shards.wires[0, 1]
    shards.connect(0, 1)
    shards.carry()
    assert sorted(received(reader)) == [b"0", b"1", b"2"]


def test_a_page_is_not_of_too_many_bytes() -> None:
    shards, wire = home(3, size=200_000)
    ask(shards, Asked(1, ALL, [], "default", [(1, "a/+")]), wire)
    ask(shards, More(1, []), wire)
    assert [len(page) for page in wire.pages()] == [2, 1]


def test_a_page_of_many_filters_is_not_of_too_many_bytes_either() -> None:
    shards, wire = home(5, size=200_000)
    topics = list(shards[1].retained())
    rows = [(1, topic.decode()) for topic in topics]
    ask(shards, Asked(1, ALL, [], "default", rows), wire)
    for _ in range(3):
        ask(shards, More(1, []), wire)
    assert [len(page) for page in wire.pages()] == [2, 2, 1]
    assert shards[1].neighbours._answering._walks == {}


def test_it_waits_for_what_the_other_has_and_asks_once_how_far_that_is() -> None:
    shards, wire = home(1)
    follows: End = shards.wires[1, 2][0]
    shards.held = {(1, 2)}
    position = shards[2].broker.commit.high_watermark
    ask(shards, Asked(1, ALL, [(1, 1 << 40), (2, position)], "default", [(1, "#")]), wire)
    shards[1].neighbours.end_pass()
    assert wire.pages() == []
    assert [type(decode(data)) for data in follows.said] == [Sought]
    shards.held = set()
    shards.carry()
    assert [len(page) for page in wire.pages()] == [1]


def test_what_was_published_to_a_shard_that_is_away_comes_behind_the_rest() -> None:
    shards, wire = home(1)
    topic = shards.topic_in(1, "b/")
    shards[2].client("w", version=5).publish(topic, b"old", 1, retain=True)
    shards.carry()
    shards.held = {(1, 2)}
    shards[2].client("w", version=5).publish(topic, b"new", 1, retain=True)
    shards[2].sync()
    position = shards[2].broker.commit.high_watermark
    shards.held = set()
    shards.disconnect(1, 2)
    ask(shards, Asked(1, ALL, [(2, position)], "default", [(1, "#")]), wire)
    ask(shards, More(1, [(2, position)]), wire)
    assert wire.pages() == [[b"0"], []]  # an empty one: it is to be asked for again later
    shards.connect(1, 2)
    shards.carry()
    shards.advance(1)
    assert wire.pages() == []
    ask(shards, More(1, [(2, position)]), wire)
    assert wire.pages() == [[b"new"]]


def test_what_is_forgotten_is_not_answered() -> None:
    shards, wire = home(1)
    answers = shards[1].neighbours._answering
    answers.asked(99, wire, Asked(1, ALL, [], "default", [(1, "#")]))
    answers.asked(99, wire, Asked(2, ALL, [], "default", [(1, "#")]))
    answers.asked(98, wire, Asked(1, ALL, [], "default", [(1, "#")]))
    answers.forgotten(99, Forgotten(1))
    answers.forget(98)
    ask(shards, More(7, []), wire)
    assert [frame.number for frame in wire.said if isinstance(frame, Answered)] == [2]


def test_those_who_ask_take_turns() -> None:
    shards, wire = home(3)
    answers = shards[1].neighbours._answering
    for number in range(answering.PAGES_AT_ONCE + 2):
        answers.asked(99, wire, Asked(number, ALL, [], "default", [(1, "a/+")]))
    assert answers.give_pages()
    assert not answers.give_pages()
    numbers = [frame.number for frame in wire.said if isinstance(frame, Answered)]
    assert numbers == list(range(answering.PAGES_AT_ONCE + 2))


@pytest.mark.parametrize("count", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_a_page_that_is_just_full_is_given_once(count: int) -> None:
    shards, wire = home(count)
    ask(shards, Asked(1, ALL, [], "default", [(1, "a/+"), (1, "b")]), wire)
    found: list[bytes] = []
    for _ in range(4):
        found += [payload for page in wire.pages() for payload in page]
        ask(shards, More(1, []), wire)
    assert len(found) == len(set(found)) == count
    assert shards[1].neighbours._answering._walks == {}
