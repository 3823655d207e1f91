"""Wires within a worker: in order, in a later pass, never from within a call; their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from harness import message
from headrace.build import PURE, build
from headrace.core.records.message import Message
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Announced, Confirmed, Frame, Hello, Wire
from headrace.peers.channel import Carrier
from headrace.peers.peer_frames import CLOSE, SAY, BrokenLink
from headrace.peers.wires import LOCAL_AT_ONCE, Exchange, LinkWire, ShardWire, Wires

if build() != PURE:
    pytest.skip("a shard that writes down what it hears is a subclass of one", allow_module_level=True)


class Ends(Wires):
    def __init__(self) -> None:
        self.ended: list[ShardWire] = []
        self.errors: list[Exception] = []

    def wire_ended(self, wire: ShardWire) -> None:
        self.ended.append(wire)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Ear(Neighbours):
    """A shard that writes down what it hears."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.said: list[Frame] = []
        self.wires: list[Wire] = []
        self.lost: list[Wire] = []
        self.raises: Exception | None = None

    def heard(self, wire: Wire, frame: Frame) -> None:
        self.wires.append(wire)
        self.said.append(frame)
        if self.raises is not None:
            raise self.raises

    def broken(self, wire: Wire) -> None:
        self.lost.append(wire)


class Line(Carrier):
    """A link that writes down what is sent."""

    def __init__(self) -> None:
        super().__init__(1000)
        self.sent: list[tuple[int, int, bytes]] = []
        self.forgotten: list[int] = []
        self.calls: list[Callable[[], None]] = []

    def send(self, kind: int, channel: int, body: bytes) -> None:
        self.sent.append((kind, channel, body))

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def later(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


class Local:
    """Shard 1 follows shard 0 in one worker."""

    def __init__(self) -> None:
        self.passes: list[Callable[[], None]] = []
        self.ends = Ends()
        self.follower, self.source = Ear(1), Ear(0)
        self.exchange = Exchange(self.passes.append)
        self.near = self.exchange.pair(self.ends, self.follower, self.source)
        assert self.near.other is not None
        self.far = self.near.other

    def turn(self) -> None:
        """One pass of the loop."""
        passes, self.passes[:] = list(self.passes), []
        for call in passes:
            call()


def numbers(ear: Ear) -> list[int]:
    return [cast(Confirmed, frame).number for frame in ear.said]


def test_what_is_said_arrives_in_order_and_in_a_later_pass() -> None:
    local = Local()
    for number in range(3):
        local.near.say(Confirmed(number))
    local.far.say(Confirmed(9))
    assert local.source.said == local.follower.said == []
    local.turn()
    assert (numbers(local.source), numbers(local.follower)) == ([0, 1, 2], [9])
    assert local.source.wires == [local.far] * 3


def test_an_answer_waits_for_the_next_pass() -> None:
    local = Local()

    class Answering(Ear):
        def heard(self, wire: Wire, frame: Frame) -> None:
            super().heard(wire, frame)
            wire.say(Confirmed(7))

    local.far.near = Answering(0)
    local.near.say(Confirmed(1))
    local.turn()
    assert local.follower.said == []
    local.turn()
    assert numbers(local.follower) == [7]


def test_what_arrives_is_as_it_was_when_it_was_said() -> None:
    local = Local()
    filters = [("t", "a")]
    local.near.say(Announced(filters))
    filters.append(("t", "b"))
    local.turn()
    [frame] = local.source.said
    assert isinstance(frame, Announced)
    assert frame.filters == [("t", "a")]


def test_a_pass_hands_over_a_share() -> None:
    local = Local()
    for number in range(LOCAL_AT_ONCE + 1):
        local.near.say(Confirmed(number))
    local.turn()
    assert len(local.source.said) == LOCAL_AT_ONCE
    local.turn()
    assert numbers(local.source)[-1] == LOCAL_AT_ONCE


def test_a_cut_arrives_behind_what_was_said_before_it() -> None:
    local = Local()
    local.near.say(Confirmed(1))
    local.near.cut()
    local.near.say(Confirmed(2))
    local.far.say(Confirmed(3))
    assert local.ends.ended == [local.near]
    local.turn()
    assert numbers(local.source) == [1]
    assert local.source.lost == [local.far]
    assert local.follower.said == [], "a wire that was cut hears nothing"
    assert local.follower.lost == [], "who has cut it knows"
    assert local.ends.ended == [local.near, local.far]


def test_what_a_shard_raises_ends_the_wire_at_both_sides() -> None:
    local = Local()
    local.source.raises = ValueError("no")
    local.near.say(Confirmed(1))
    local.near.say(Confirmed(2))
    local.turn()
    local.turn()
    assert [str(error) for error in local.ends.errors] == ["no"]
    assert len(local.source.said) == 1
    assert local.source.lost == [local.far]
    assert local.follower.lost == [local.near]


def test_a_wire_over_a_link_says_frames_on_its_channel() -> None:
    ends, line, ear = Ends(), Line(), Ear(1)
    wire = LinkWire(ends, ear, 0, True, line, 5)
    wire.say(Confirmed(3))
    wire.take(Confirmed(4).encode())
    assert line.sent == [(SAY, 5, Confirmed(3).encode())]
    assert numbers(ear) == [4]
    wire.cut()
    wire.cut()
    wire.say(Confirmed(5))
    wire.take(Confirmed(6).encode())
    assert line.sent[1:] == [(CLOSE, 5, b"")]
    assert line.forgotten == [5]
    assert numbers(ear) == [4]
    assert ear.lost == []


def test_what_no_shard_says_breaks_the_link() -> None:
    follows = LinkWire(Ends(), Ear(1), 0, True, Line(), 5)
    followed = LinkWire(Ends(), Ear(1), 0, False, Line(), 6)
    for wire, body in (
        (follows, b""),
        (follows, b"\xff"),
        (follows, Hello(0, 1, 1).encode()),  # it is this side that says who it is
        (followed, Hello(2, 1, 1).encode()),  # of another shard than the wire is
    ):
        with pytest.raises(BrokenLink) as raised:
            wire.take(body)
        assert raised.value.reason == "garbage"


class NoMemory(Line):
    """A link that has no memory for what is said, and has some again for the word that a conversation has ended."""

    def send(self, kind: int, channel: int, body: bytes) -> None:
        if kind == SAY:
            raise MemoryError
        super().send(kind, channel, body)

    def send_copied(self, channel: int, message: Message, source: int) -> None:
        raise MemoryError


@pytest.mark.parametrize("copied", [False, True])
def test_what_cannot_be_said_ends_the_wire_and_is_told_later(copied: bool) -> None:
    """What was counted as said is not: a number that nobody confirms, a credit that nobody has."""
    ends, line, ear = Ends(), NoMemory(), Ear(1)
    wire = LinkWire(ends, ear, 0, True, line, 5)
    if copied:
        wire.say_copied(message(), 1)
    else:
        wire.say(Confirmed(3))
    assert [type(error) for error in ends.errors] == [MemoryError]
    assert ends.ended == [wire]
    assert line.sent == [(CLOSE, 5, b"")]
    assert line.forgotten == [5]
    assert ear.lost == [], "nobody is told from within what it says"
    wire.say(Confirmed(4))
    wire.lose()
    [call] = line.calls
    call()
    assert ear.lost == [wire]
    assert len(line.sent) == 1


def test_what_cannot_be_said_within_a_worker_ends_the_wire_at_both_sides() -> None:
    local = Local()
    local.near.say(Confirmed(1))
    local.near.say(Announced([("t" * 256, "a")]))  # no frame has room for that name
    local.near.say(Confirmed(2))
    assert local.follower.lost == []
    local.turn()
    assert (numbers(local.source), len(local.ends.errors)) == ([1], 1)
    assert (local.source.lost, local.follower.lost) == ([local.far], [local.near])


def test_what_waits_is_handed_over_although_a_pass_could_not_be_asked_for() -> None:
    """For want of memory; the next frame asks again."""
    local = Local()
    passes = local.passes

    def later(call: Callable[[], None]) -> None:
        if wanting:
            raise wanting.pop()
        passes.append(call)

    wanting: list[Exception] = []
    local.exchange.later = later
    for number in range(LOCAL_AT_ONCE + 1):
        local.near.say(Confirmed(number))
    wanting = [MemoryError()]
    with pytest.raises(MemoryError):
        local.turn()
    assert len(local.source.said) == LOCAL_AT_ONCE
    local.near.say(Confirmed(LOCAL_AT_ONCE + 1))
    local.turn()
    assert numbers(local.source) == list(range(LOCAL_AT_ONCE + 2))
