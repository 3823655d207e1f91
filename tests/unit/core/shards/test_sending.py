"""The sending side of a stream by itself: what it sends as it passes by, what it owes, and what it reads."""

from __future__ import annotations

import pytest

from harness import message
from headrace.core.homes import Homes
from headrace.core.outbound.journal_queues import JournalQueues
from headrace.core.ports.journal import NOT_NOW, OTHER_RECORD, Absent, JournalPort
from headrace.core.records.message import Message
from headrace.core.shards.peer import Copied, Frame, Looked, Wire, weight_of
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.routes import Routes
from headrace.core.shards.sending import Sender
from headrace.core.shards.stream_settings import StreamSettings

PAYLOAD = b"x" * 50


class Heard(Wire):
    def __init__(self) -> None:
        self.copies: list[int] = []
        self.looked: list[int] = []
        self.fails = False
        self.is_full = False

    @property
    def full(self) -> bool:
        return self.is_full

    def say(self, frame: Frame) -> None:
        if self.fails:
            raise MemoryError
        if isinstance(frame, Copied):
            self.copies.append(frame.copy.source_offset)
        elif isinstance(frame, Looked):
            self.looked.append(int(frame.offset))

    def cut(self) -> None:
        raise AssertionError("nothing is wrong")


class Kept(JournalPort):
    """Messages, and what was asked for."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.asked: list[int] = []
        self.fails = False

    def fetch(self, offset: int) -> Message | Absent:
        self.asked.append(offset)
        return NOT_NOW if self.fails else self.messages.get(offset, OTHER_RECORD)


class Stream:
    """A sender that is live from offset 0 on, with credit for `credit` messages."""

    def __init__(self, credit: int, owed_max: int = 100) -> None:
        self.wire, self.journal, self.routes = Heard(), Kept(), Routes()
        settings = StreamSettings()
        settings.owed_max = owed_max
        slot = self.routes.open()
        self.routes.add(slot, "default", "a")
        self.sender = Sender(self.wire, 0, 1, slot, Homes(2), QueuePort(), settings)
        self.weight = int(weight_of(message(qos=1, topic=b"a", payload=PAYLOAD)))
        self.granted = credit * self.weight
        self.end = 0
        self.sender.follow(0, self.granted)
        self.read()
        assert self.sender.live

    def read(self, looks: int = 1000) -> bool:
        return self.sender.read(JournalQueues(self.journal), self.routes, self.end, looks)

    def grant(self, messages: int) -> None:
        self.granted += messages * self.weight
        self.sender.grant(self.granted)

    def publish(self, topic: bytes = b"a") -> Message:
        """A message takes effect: it passes by the sender if it is wanted there."""
        published = message(qos=1, topic=topic, payload=PAYLOAD)
        published.offset = self.end
        self.journal.messages[self.end] = published
        self.end += 1
        if topic == b"a":
            self.sender.passes(published)
        return published


def test_what_it_has_credit_for_is_sent_as_it_passes_by() -> None:
    stream = Stream(2)
    passed = [stream.publish() for _ in range(2)]
    assert stream.wire.copies == [0, 1]
    assert stream.journal.asked == []
    assert not any(one.waits for one in passed)


def test_what_it_owes_is_fetched_and_nothing_else_is_looked_at() -> None:
    stream = Stream(1)
    for _ in range(3):
        stream.publish()
        stream.publish(b"b")
    assert stream.wire.copies == [0]
    assert [stream.sender.live, stream.sender.reads] == [True, False]
    assert stream.sender.position(stream.end) == 2  # all below it is sent, or not wanted
    assert [stream.journal.messages[offset].waits for offset in (0, 2, 4)] == [False, True, True]
    stream.grant(1)
    assert [stream.sender.live, stream.sender.reads] == [True, True]
    stream.publish()  # offset 6: it has credit, and stays behind what is owed
    assert stream.wire.copies == [0]
    stream.read()
    stream.grant(10)
    stream.read()
    assert stream.wire.copies == [0, 2, 4, 6]
    assert stream.journal.asked == [2, 4, 6]
    assert stream.sender.position(stream.end) == stream.end
    stream.publish()
    assert stream.wire.copies[-1] == 7


@pytest.mark.parametrize("owed_max", [0, 100])
def test_nothing_is_sent_while_what_was_sent_has_piled_up(owed_max: int) -> None:
    """Each shard at the other side has credit for a large message, and all of them have one link."""
    stream = Stream(10, owed_max)
    stream.wire.is_full = True
    for _ in range(3):
        stream.publish()
    assert not stream.sender.passes_live(message(qos=0, topic=b"a"))
    reads = [stream.sender.reads, stream.read()]
    assert stream.wire.copies == []
    stream.wire.is_full = False
    assert [*reads, stream.sender.reads] == [False, False, True]
    stream.read()
    stream.publish()
    assert stream.wire.copies == [0, 1, 2, 3]


def test_nothing_is_said_to_be_looked_at_that_is_owed() -> None:
    stream = Stream(1)
    for _ in range(3):
        stream.publish()
    stream.sender.look(stream.end)
    assert stream.wire.looked == []  # offset 1 is owed, and behind 0 there is nothing between
    stream.grant(10)
    stream.read()
    stream.publish(b"b")
    stream.sender.look(stream.end)
    assert stream.wire.looked == [4]


def test_who_owes_too_many_reads_them_from_the_journal() -> None:
    stream = Stream(0, owed_max=2)
    for _ in range(4):
        stream.publish()
    assert not stream.sender.live
    assert stream.sender.position(stream.end) == 0
    stream.grant(10)
    assert stream.read(looks=3)
    assert stream.wire.copies == [0, 1, 2]
    stream.read()
    assert stream.wire.copies == [0, 1, 2, 3]
    assert stream.sender.live


def test_a_route_more_has_everything_behind_the_position_looked_at_again() -> None:
    stream = Stream(1)
    stream.publish()
    stream.publish()
    stream.publish(b"b")
    stream.routes.add(stream.sender.slot, "default", "b")
    stream.sender.look_again()
    assert (stream.sender.live, stream.sender.position(stream.end)) == (False, 1)
    stream.grant(10)
    stream.read()
    assert stream.wire.copies == [0, 1, 2]


def test_a_route_more_changes_nothing_where_nothing_is_owed() -> None:
    stream = Stream(1)
    stream.publish(b"b")
    stream.sender.look_again()
    assert (stream.sender.live, stream.sender.position(stream.end)) == (True, 1)


def test_what_is_owed_and_gone_is_passed_over() -> None:
    stream = Stream(0)
    stream.publish()
    stream.publish()
    del stream.journal.messages[0]
    stream.grant(10)
    stream.read()
    assert stream.wire.copies == [1]


def test_what_cannot_be_read_now_stays_owed() -> None:
    stream = Stream(0)
    stream.publish()
    stream.publish()
    stream.grant(10)
    stream.journal.fails = True
    assert not stream.read()
    assert (stream.wire.copies, stream.sender.position(stream.end)) == ([], 0)
    assert (stream.sender.unread, stream.sender.reads) == (True, False), "it waits"
    stream.journal.fails = False
    stream.read()
    assert stream.wire.copies == [0, 1]


def test_a_new_stream_owes_nothing() -> None:
    stream = Stream(0)
    stream.publish()
    stream.sender.follow(1, stream.granted)
    assert stream.sender.position(stream.end) == 1


def test_what_could_not_be_sent_costs_no_credit() -> None:
    stream = Stream(1)
    stream.wire.fails = True
    with pytest.raises(MemoryError):
        stream.publish()
    stream.wire.fails = False
    stream.sender.fall_back(0)
    stream.read()
    assert stream.wire.copies == [0]


def test_publishers_wait_for_a_sender_that_lags_only_while_it_falls_behind() -> None:
    stream = Stream(0, owed_max=10_000)
    stream.sender.follow(0, 0)  # not live: its first look is still to come
    far = 4 * StreamSettings().crowded_at

    def noted(end: int) -> bool:
        stream.end = end
        stream.sender.note_lag(end)
        return not stream.sender.passes(stream.publish())

    assert not noted(900)
    assert noted(2000)
    assert noted(1500)
    assert stream.sender.is_crowded(0)
    assert not noted(1000)  # by half
    assert not stream.sender.is_crowded(0)
    assert not noted(900)
    assert noted(far)
    assert not noted(500)
    assert not noted(40_001)


def test_it_starves_when_something_waits_and_nothing_is_granted_from_one_question_to_the_next() -> None:
    stream = Stream(1)
    starves = stream.sender.starves
    assert not any([starves(), starves()]), "nothing waits"
    stream.publish()
    stream.publish()
    assert starves()
    stream.grant(1)
    assert not starves()
    stream.read()
    assert not any([starves(), starves()]), "all is sent"
    stream.publish()
    assert starves()
    stream.sender.fall_back(2)
    assert starves(), "neither does it read the journal on"
