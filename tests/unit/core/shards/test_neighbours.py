"""Streams and routes between brokers: what is said on wires, and what comes of it; `faults/model` has histories."""

from __future__ import annotations

import json
from collections import deque
from itertools import count

import pytest

from harness import Client, Harness, message
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.message import Message, copy_of
from headrace.core.records.record import DROP_QOS0_AWAY, DROP_QOS0_SLOW
from headrace.core.records.stream_record import FOLLOWED, TAKEN, StreamRecord
from headrace.core.shards import peer
from headrace.core.shards.group_frames import Meet
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Announced, Follow, Frame, Hello, Wire
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.worker import Worker
from headrace.mqtt import codec
from headrace.storage.memory import ManualScheduler

SUBACK = 9


class Shard(Harness):
    """A broker that is one of two; its epoch is the record of its start. Clients get a name that is at home here."""

    def __init__(self, number: int, streams: StreamSettings) -> None:
        self.number = number
        self.streams = streams
        super().__init__()
        self.neighbours.begin(0)

    def _own(self) -> None:
        self.worker = Worker(ManualScheduler(), self.clock, self.settings, Homes(2))
        self.broker = self.worker.own(self.number, self.journal)
        self.neighbours: Neighbours = self.broker.join(self.journal, Routes(), self.streams)

    def client(self, client_id: str, **options: object) -> Client:
        names = (f"{client_id}{number}" for number in count())
        homes = self.worker.homes
        name = next(name for name in names if homes.of_client(DEFAULT_TENANT, name) == self.number)
        return super().client(name, **options)

    def stream_records(self, subkind: int) -> list[list[tuple[int, int]]]:
        return [
            r.positions()
            for r in self.journal.records
            if isinstance(r, StreamRecord) and r.subkind == subkind
        ]


class End(Wire):
    """One side of a wire, whose frames wait until they are carried over."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.said: deque[Frame] = deque()
        self.is_cut = False

    def say(self, frame: Frame) -> None:
        self.said.append(frame)

    def cut(self) -> None:
        self.is_cut = True


class Pair:
    """Shard 1 follows shard 0."""

    def __init__(self, streams: StreamSettings | None = None, connected: bool = True) -> None:
        self.settings = streams or StreamSettings()
        self.source = Shard(0, self.settings)
        self.follower = Shard(1, self.settings)
        if connected:
            self.connect()

    def connect(self, carry: bool = True) -> tuple[End, End]:
        self.near, self.far = End(self.follower), End(self.source)
        self.follower.neighbours.connect(0, self.near)
        if carry:
            self.carry()
        return self.near, self.far

    def carry(self) -> None:
        """All that is said is heard, and takes effect."""
        while self.near.said or self.far.said:
            while self.near.said:
                self.source.neighbours.heard(self.far, self.near.said.popleft())
            while self.far.said:
                self.follower.neighbours.heard(self.near, self.far.said.popleft())
            self.source.sync()
            self.follower.sync()

    def talkers(self, topic_filter: str, qos: int, **options: object) -> tuple[Client, Client]:
        """A client of the follower that is subscribed, and one of the source."""
        reader, writer = self.follower.client("r", **options), self.source.client("w")
        reader.subscribe(topic_filter, qos)
        self.carry()
        return reader, writer

    def advance(self, seconds: float) -> None:
        self.source.advance(seconds)
        self.follower.advance(seconds)
        self.carry()


def received(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def has_suback(client: Client) -> bool:
    return any(first >> 4 == SUBACK for first, _ in client.drain())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_in_one_shard_reaches_the_sessions_of_another(qos: int) -> None:
    pair = Pair()
    reader, other = pair.follower.client("r", version=5), pair.follower.client("x", version=5)
    reader.subscribe("a/+", 2)
    other.subscribe("b", 2)
    pair.carry()
    writer = pair.source.client("w", version=5)
    for number in range(3):
        writer.publish("a/1", b"%d" % number, qos)
    writer.publish("c", b"nobody", qos)
    pair.carry()
    assert received(reader) == [b"0", b"1", b"2"]
    assert received(other) == []
    assert [m.payload for m in pair.follower.journal.records if isinstance(m, Message)] == (
        [b"0", b"1", b"2"] if qos else []
    )


def test_a_copy_of_another_shard_ends_the_stream_that_it_came_in_and_moves_nothing() -> None:
    pair = Pair()
    reader = pair.follower.client("r", version=5)
    reader.subscribe("a", 1)
    pair.carry()
    positions = dict(pair.follower.broker.fold.streams.taken)
    written = len(pair.follower.journal.records)
    stray = copy_of(message(b"a", b"stray"), 7, 1 << 40)
    pair.follower.neighbours.heard(pair.near, peer.Copied(stray))
    pair.follower.sync()
    assert not pair.follower.neighbours.follows(0)
    assert pair.follower.broker.fold.streams.taken == positions
    assert len(pair.follower.journal.records) == written
    pair.connect()
    pair.source.client("w").publish("a", b"next", 1)
    pair.carry()
    assert received(reader) == [b"next"]


def test_what_was_dropped_is_told_once_to_whoever_subscribed_in_any_shard() -> None:
    pair = Pair()
    for shard in (pair.source, pair.follower):
        shard.settings.drop_events, shard.settings.backlog_messages_max = True, 2
        shard.broker.fold.collect_drops()
    near, far = (shard.client("owner") for shard in (pair.source, pair.follower))
    away, writer = pair.source.client("away"), pair.source.client("w")
    away.subscribe("t", 1)
    away.lose()

    def lose_some() -> None:
        for _ in range(5):
            writer.publish("t", b"x")
        pair.advance(1.1)

    lose_some()
    assert not [m for m in pair.source.journal.records if isinstance(m, Message) and m.topic != b"t"]
    far.subscribe("$events/dropped/#", 1)
    pair.carry()
    lose_some()
    lose_some()
    assert [json.loads(event)["messages"] for event in received(far)] == [5, 5]
    near.subscribe("$events/#", 1)
    lose_some()
    assert [len(received(client)) for client in (near, far)] == [1, 1]


def test_a_copy_goes_no_further() -> None:
    """Where each follows the other, what one has from the other stays there."""
    pair = Pair()
    for shard in (pair.source, pair.follower):
        shard.client("r").subscribe("#", 1)
    back_near, back_far = End(pair.source), End(pair.follower)
    pair.source.neighbours.connect(1, back_near)
    for _ in range(3):
        pair.carry()
        while back_near.said:
            pair.follower.neighbours.heard(back_far, back_near.said.popleft())
        pair.source.client("w").publish("a", b"x", 1)
        pair.follower.sync()
        copied = [frame for frame in back_far.said if isinstance(frame, peer.Copied)]
        back_far.said.clear()
        assert copied == []


def test_suback_waits_until_the_other_shard_looks_for_it() -> None:
    pair = Pair()
    reader = pair.follower.client("r")
    reader.subscribe("a", 1)
    assert not has_suback(reader)
    writer = pair.source.client("w")
    writer.publish("a", b"before")
    pair.carry()
    assert has_suback(reader)
    writer.publish("a", b"after")
    pair.carry()
    assert received(reader) == [b"after"]


def test_suback_waits_for_nobody_whose_stream_is_cut() -> None:
    pair = Pair(connected=False)
    reader = pair.follower.client("r")
    reader.subscribe("a", 1)
    assert has_suback(reader)
    pair.source.client("w").publish("a", b"after")
    pair.connect()
    assert received(reader) == [b"after"]


def test_qos_0_that_a_shard_misses_which_wanted_it_is_counted() -> None:
    """Until it follows again; of what it wants then the new stream tells."""
    pair = Pair()
    reader, writer = pair.talkers("a/+", 0)
    drops = pair.source.broker.fold.tenant("default").counters.dropped

    def missed() -> int:
        return drops.get(DROP_QOS0_AWAY, 0)

    pair.source.neighbours.broken(pair.far)
    pair.follower.neighbours.broken(pair.near)
    for topic in ("a/1", "a/2", "b"):
        writer.publish(topic, b"missed", 0)
    assert missed() == 2
    pair.connect()
    for _ in range(2):
        writer.publish("a/1", b"here", 0)
        pair.carry()
    assert received(reader) == [b"here", b"here"]
    assert missed() == 2
    pair.source.neighbours.broken(pair.far)
    writer.publish("a/1", b"missed", 0)
    assert missed() == 3


def test_qos_0_that_a_shard_misses_while_it_announces_what_it_wants_is_counted_once() -> None:
    pair = Pair()
    _, writer = pair.talkers("a/+", 0)
    drops = pair.source.broker.fold.tenant("default").counters.dropped
    pair.source.neighbours.broken(pair.far)
    pair.follower.neighbours.broken(pair.near)
    pair.connect(carry=False)
    heard: list[Frame] = []
    while not any(isinstance(frame, Follow) for frame in heard):
        missed = sum(drops.values())
        writer.publish("a/1", b"missed", 0)
        assert sum(drops.values()) == missed + 1
        heard.append(pair.near.said.popleft())
        pair.source.neighbours.heard(pair.far, heard[-1])
    assert any(isinstance(frame, Announced) for frame in heard)


class Dumb(End):
    """Has memory for so many frames."""

    def __init__(self, shard: Shard, frames: int) -> None:
        super().__init__(shard)
        self.left = frames

    def say(self, frame: Frame) -> None:
        self.left -= 1
        if self.left < 0:
            raise MemoryError
        super().say(frame)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_a_wire_that_could_not_be_begun_is_none(frames: int) -> None:
    """Filters that are announced on it would be confirmed, and nothing would ever come."""
    pair = Pair()
    reader = pair.follower.client("r")
    reader.subscribe("a", 1)
    wire = Dumb(pair.follower, frames)
    with pytest.raises(MemoryError):
        pair.follower.neighbours.connect(0, wire)
    assert wire.is_cut
    assert not pair.follower.neighbours.follows(0)
    assert has_suback(reader), "nobody is asked"
    pair.source.client("w").publish("a", b"after")
    pair.connect()
    assert received(reader) == [b"after"]


@pytest.mark.parametrize("how", ["time", "break", "new wire"])
def test_what_is_said_on_a_wire_that_was_given_up_is_not_believed(how: str) -> None:
    """So nothing that was looked at without the new filter moves the position behind SUBACK."""
    pair = Pair()
    reader, writer = pair.follower.client("r"), pair.source.client("w")
    reader.subscribe("a", 1)
    near, far = pair.near, pair.far
    late = list(near.said)
    near.said.clear()
    if how == "time":
        pair.follower.advance(3.0)
        assert pair.follower.neighbours.cuts == 1
    elif how == "break":
        pair.follower.neighbours.broken(near)
    else:
        pair.connect(carry=False)
    assert has_suback(reader)
    assert near.is_cut
    writer.publish("a", b"after")
    pair.source.advance(1)
    for frame in far.said:  # it has looked at the message
        pair.follower.neighbours.heard(near, frame)
    assert any(isinstance(frame, peer.Looked) for frame in far.said)
    pair.connect()
    for frame in late:
        pair.source.neighbours.heard(far, frame)
    assert far.is_cut
    pair.carry()
    assert received(reader) == [b"after"]


def test_an_older_owner_and_an_older_wire_are_refused() -> None:
    pair = Pair()
    source = pair.source.neighbours
    for epoch, attempt in ((-1, 9), (0, 1), (0, 0)):
        wire = End(pair.source)
        source.heard(wire, Hello(1, epoch, attempt))
        assert wire.is_cut
    newer = End(pair.source)
    assert [pair.far.is_cut, newer.is_cut] == [False, False]
    source.heard(newer, Hello(1, 1, 0))
    assert [pair.far.is_cut, newer.is_cut] == [True, False]
    stranger = End(pair.source)
    source.heard(stranger, Hello(7, 5, 5))
    assert stranger.is_cut


@pytest.mark.parametrize("owed_max", [0, 3, 100])
def test_what_there_is_no_credit_for_comes_later_in_order_and_only_qos_0_is_lost(owed_max: int) -> None:
    streams = StreamSettings()
    streams.window_bytes = 600
    streams.read_at_once = 2
    streams.owed_max = owed_max
    pair = Pair(streams)
    reader, writer = pair.talkers("#", 1)
    for number in range(20):
        writer.publish("a", b"%d" % number, 1)
    writer.publish("a", b"lost", 0)
    copied = [frame for frame in pair.far.said if isinstance(frame, peer.Copied)]
    assert 0 < len(copied) < 5
    tenant = pair.source.broker.fold.tenant("default")
    assert tenant.counters.dropped[DROP_QOS0_SLOW] == 1
    for _ in range(20):
        pair.carry()
        pair.source.sync()
    writer.publish("a", b"last", 0)
    pair.carry()
    assert received(reader) == [b"%d" % number for number in range(20)] + [b"last"]
    assert tenant.counters.dropped[DROP_QOS0_SLOW] == 1


def owing() -> tuple[Pair, Client]:
    """A reader in a shard whose window is full: another one owes it messages."""
    streams = StreamSettings()
    streams.window_bytes = 600
    pair = Pair(streams)
    reader, writer = pair.talkers("a", 1)
    for number in range(10):
        writer.publish("a", b"%d" % number, 1)
        writer.publish("b", b"not yet", 1)
    return pair, reader


def test_a_filter_more_has_what_is_owed_looked_at_again() -> None:
    """What was told to be looked at is below what is looked at with the new filter: whoever asks the homes for what is
    retained relies on it."""
    pair, reader = owing()
    looked = [frame for frame in pair.far.said if isinstance(frame, peer.Looked)]
    assert not looked
    reader.subscribe("b", 1)
    for _ in range(40):
        pair.carry()
        pair.advance(1)
    got = received(reader)
    assert [payload for payload in got if payload != b"not yet"] == [b"%d" % number for number in range(10)]
    assert got.count(b"not yet") > 0


def test_what_is_owed_waits_while_the_journal_cannot_be_read() -> None:
    pair, reader = owing()
    pair.source.journal.reads_fail = True
    for _ in range(3):
        pair.advance(1)
    fewer = received(reader)
    pair.source.journal.reads_fail = False
    for _ in range(10):
        pair.advance(1)
    assert len(fewer) < 10
    assert fewer + received(reader) == [b"%d" % number for number in range(10)]


def test_a_stream_that_cannot_read_asks_rarely_and_goes_on_as_soon_as_another_has_read() -> None:
    pair, reader = owing()
    journal = pair.source.journal
    journal.reads_fail = True
    pair.carry()
    before = journal.failed_reads
    for _ in range(50):
        pair.source.sync()
        pair.carry()
    assert journal.failed_reads <= before + 1
    got = received(reader)
    journal.reads_fail = False
    journal.fetch(0)
    for _ in range(20):
        pair.source.sync()
        pair.carry()
    assert [*got, *received(reader)] == [b"%d" % number for number in range(10)]
    assert len(pair.source.broker.unread) == 0


def test_qos_0_overtakes_no_copy() -> None:
    pair = Pair()
    reader, writer = pair.talkers("#", 1)
    writer.publish("a", b"stored", 1)
    writer.publish("a", b"live", 0)
    while pair.far.said:
        pair.follower.neighbours.heard(pair.near, pair.far.said.popleft())
    assert received(reader) == []
    pair.carry()
    pair.follower.sync()
    assert received(reader) == [b"stored", b"live"]


def test_a_filter_is_withdrawn_a_minute_after_nobody_has_it() -> None:
    pair = Pair()
    reader = pair.follower.client("r")
    reader.subscribe("a", 1)
    pair.carry()
    routes = pair.source.neighbours.followers.routes
    reader.feed(codec.encode_unsubscribe(4, 9, ["a"]))
    pair.advance(59)
    assert routes.match("default", b"a")
    reader.subscribe("a", 1)
    assert has_suback(reader)  # it is looked for all the time
    pair.advance(59)
    assert routes.match("default", b"a")
    reader.feed(codec.encode_unsubscribe(4, 11, ["a"]))
    pair.advance(61)
    assert not routes.match("default", b"a")


@pytest.mark.parametrize("qos", [0, 1])
def test_who_wants_a_topic_is_asked_again_when_routes_have_changed(qos: int) -> None:
    pair = Pair()
    writer = pair.source.client("w")
    reader = pair.follower.client("r")

    def told(payload: bytes) -> list[bytes]:
        for _ in range(3):  # the first of a topic is remembered, the second knows of whom
            writer.publish("a", payload, qos)
        pair.carry()
        return received(reader)

    assert told(b"nobody") == []
    reader.subscribe("a", 1)
    pair.carry()
    assert told(b"one") == [b"one"] * 3
    writer.publish("b", b"nobody", qos)
    assert told(b"again") == [b"again"] * 3
    pair.source.neighbours.broken(pair.far)
    pair.connect()
    assert told(b"another wire") == [b"another wire"] * 3
    reader.feed(codec.encode_unsubscribe(4, 9, ["a"]))
    pair.advance(61)
    copies = pair.source.neighbours.followers.copies_sent
    assert told(b"nobody") == []
    assert pair.source.neighbours.followers.copies_sent == copies


@pytest.mark.interpreted
@pytest.mark.parametrize("qos", [0, 1])
def test_who_wants_a_topic_is_looked_up_twice_at_most_for_a_publisher_that_stays_with_it(qos: int) -> None:
    pair = Pair(connected=False)
    routes = pair.source.neighbours.followers.routes = Counting()
    reader, writer = pair.follower.client("r"), pair.source.client("w")
    reader.subscribe("a", 1)
    pair.connect()
    for topic in ("a", "nobody"):
        asked = routes.asked
        for _ in range(5):
            writer.publish(topic, b"x", qos)
        pair.carry()
        assert 1 <= routes.asked - asked <= 2
    assert received(reader) == [b"x"] * 5


@pytest.mark.slow
def test_filters_beyond_what_may_wait_are_withdrawn_at_once() -> None:
    pair = Pair()
    reader = pair.follower.client("r")
    names = [f"{number}/" + "x" * 60_000 for number in range(300)]
    for name in names:
        reader.subscribe(name, 1)
        reader.feed(codec.encode_unsubscribe(4, 9, [name]))
    pair.carry()
    looked_for = [
        name for name in names if pair.source.neighbours.followers.routes.match("default", name.encode())
    ]
    assert looked_for == names[-len(looked_for) :]
    assert 0 < len(looked_for) < 200


def test_positions_are_journaled_over_long_stretches_and_told() -> None:
    streams = StreamSettings()
    streams.note_step = 10
    pair = Pair(streams)
    writer = pair.source.client("w")
    for _ in range(30):
        writer.publish("a", b"x")
    for _ in range(4):
        pair.advance(1)
    [[(source, taken)], *_] = pair.follower.stream_records(TAKEN)
    assert source == 0
    assert taken >= 30
    [[(shard, followed)], *_] = pair.source.stream_records(FOLLOWED)
    assert (shard, followed) == (1, taken)
    assert pair.source.broker.fold.streams.floor([1]) == taken
    before = written(pair)
    for _ in range(50):
        pair.advance(1)
    assert written(pair) <= before + 4


def written(pair: Pair) -> int:
    return len(pair.source.journal.records) + len(pair.follower.journal.records)


def test_a_follower_is_asked_how_far_it_is_when_much_may_be_kept_for_it() -> None:
    """Few large messages are many bytes and few offsets, whether they are for the other shard or not."""
    streams = StreamSettings()
    streams.note_bytes = 10_000
    pair = Pair(streams)
    reader, writer = pair.talkers("a", 1)
    for topic in ("a", "b"):
        for _ in range(10):
            writer.publish(topic, bytes(1000))
            pair.carry()
            for packet_id, *_ in reader.publishes():
                reader.ack(packet_id)
        end = len(pair.source.journal.records)
        for _ in range(3):
            pair.advance(1)
        assert pair.source.broker.fold.streams.floor([1]) >= end
    before = written(pair)
    for _ in range(50):
        pair.advance(1)
    assert written(pair) == before, "who is idle asks nobody"


def test_what_the_journal_says_of_a_follower_is_not_journaled_again_after_a_start() -> None:
    streams = StreamSettings()
    streams.note_step = 10
    pair = Pair(streams)
    writer = pair.source.client("w")
    for _ in range(30):
        writer.publish("a", b"x")
    for _ in range(4):
        pair.advance(1)
    noted = pair.source.stream_records(FOLLOWED)
    pair.source.crash()
    pair.source.neighbours.begin(len(pair.source.journal.records))
    pair.connect()
    for _ in range(4):
        pair.advance(1)
    assert len(noted) == 1
    assert pair.source.stream_records(FOLLOWED) == noted


def test_a_follower_that_is_ahead_of_a_journal_that_lost_its_end_gets_nothing() -> None:
    pair = Pair()
    _, writer = pair.talkers("a", 1, version=5)
    writer.publish("a", b"1")
    pair.carry()
    taken = pair.follower.broker.fold.streams.taken[0]
    pair.source = Shard(0, pair.settings)  # restored from an older backup, say
    assert pair.source.broker.commit.high_watermark < taken
    pair.connect()
    assert pair.source.neighbours.ahead == {1: taken}
    assert not pair.source.neighbours.followers.is_followed(1)
    assert pair.far.is_cut


def restored(pair: Pair, of_before: list[bytes]) -> None:
    """The source alone is put back from an older copy, and grows past what the follower has taken."""
    pair.advance(1)
    pair.source._open(of_before)
    pair.source.neighbours.begin(len(of_before))
    writer = pair.source.client("other")
    for number in range(20):
        writer.publish("a", b"after%d" % number)


def test_a_follower_gets_nothing_of_a_journal_that_was_put_back_alone_and_has_grown_past_it() -> None:
    pair = Pair()
    _, writer = pair.talkers("a", 1, version=5)
    writer.publish("a", b"0")
    pair.carry()
    copied = list(pair.source.journal.bodies)
    for number in range(5):
        writer.publish("a", b"%d" % number)
        pair.carry()
    taken = pair.follower.broker.fold.streams.taken[0]
    restored(pair, copied)
    assert pair.source.broker.commit.high_watermark > taken
    for _ in range(2):
        pair.connect()
        assert pair.source.neighbours.ahead == {1: taken}
        assert pair.far.is_cut
        pair.follower.crash()  # it is remembered
        pair.follower.neighbours.begin(len(pair.follower.journal.records))
        pair.source.crash()
        pair.source.neighbours.begin(len(pair.source.journal.records))


def test_a_follower_goes_on_with_a_journal_that_was_put_back_from_behind_what_it_has_taken() -> None:
    pair = Pair()
    reader, writer = pair.talkers("a", 1)
    writer.publish("a", b"0")
    pair.carry()
    restored(pair, list(pair.source.journal.bodies))
    pair.connect()
    assert pair.source.neighbours.ahead == {}
    assert received(reader) == [b"0"] + [b"after%d" % number for number in range(20)]


def test_a_follower_that_was_put_back_alone_is_told_of() -> None:
    """It asks for what the source has let go of, since the follower had it."""
    streams = StreamSettings()
    streams.note_step = 10
    pair = Pair(streams)
    _, writer = pair.talkers("a", 1)
    copied = list(pair.follower.journal.bodies)
    for number in range(30):
        writer.publish("a", b"%d" % number)
    for _ in range(4):
        pair.advance(1)
    [[(_, followed)]] = pair.source.stream_records(FOLLOWED)
    pair.follower._open(copied)
    pair.follower.neighbours.begin(len(pair.follower.journal.records))
    pair.connect()
    [(asked, before)] = pair.source.neighbours.behind.values()
    assert asked < before == followed
    assert not pair.source.neighbours.followers.is_followed(1)


def test_a_follower_that_has_less_than_it_told_of_is_refused_before_that_is_journaled() -> None:
    """Else it was journaled later on, and what it asks for now was not kept."""
    pair = Pair()
    _, writer = pair.talkers("a", 1)
    copied = list(pair.follower.journal.bodies)
    for number in range(9):
        writer.publish("a", b"%d" % number)
        pair.carry()
    told = pair.follower.broker.fold.streams.taken[0]
    pair.source.neighbours.heard(pair.far, peer.Durable(told))
    assert pair.source.stream_records(FOLLOWED) == []
    put_back(pair.follower, copied)
    pair.connect()
    [(asked, before)] = pair.source.neighbours.behind.values()
    assert asked < before == told
    assert not pair.source.neighbours.followers.is_followed(1)


def put_back(shard: Shard, bodies: list[bytes]) -> None:
    """The shard begins again, with what is given of its journal."""
    shard._open(bodies)
    shard.neighbours.begin(len(shard.journal.records))


def test_whoever_has_begun_before_an_owner_that_was_talked_to_is_told_of_on_both_sides() -> None:
    """What is said of groups is believed of the newest owner: one of before may be a shard that was put back alone."""
    pair = Pair()
    of_before = [list(shard.journal.bodies) for shard in (pair.source, pair.follower)]
    newest = []
    for shard in (pair.source, pair.follower):
        shard.client("c").subscribe("a", 1)
        put_back(shard, list(shard.journal.bodies))
        newest.append(shard.neighbours.epoch)
    pair.connect(carry=False)
    pair.near.say(Meet())
    pair.carry()
    both = [list(shard.journal.bodies) for shard in (pair.source, pair.follower)]
    put_back(pair.follower, of_before[1])
    pair.connect()
    assert pair.far.is_cut
    assert pair.source.neighbours.older_followers == {1: (pair.follower.neighbours.epoch, newest[1])}
    put_back(pair.follower, both[1])
    pair.connect()
    assert pair.source.neighbours.older_followers == {}
    put_back(pair.source, of_before[0])
    put_back(pair.follower, both[1])
    pair.connect(carry=False)
    pair.near.say(Meet())
    pair.carry()
    assert pair.near.is_cut
    assert pair.follower.neighbours.older_sources == {0: (pair.source.neighbours.epoch, newest[0])}


def test_a_stream_begins_when_the_record_of_the_start_is_durable() -> None:
    """After a crash another owner would begin there, and take who has heard of this one for a stranger."""
    pair = Pair(connected=False)
    source = pair.source
    source.broker.sessions.absences.start()
    start = source.broker.fold.streams.starts[-1]
    near, far = pair.connect(carry=False)
    while near.said:
        source.neighbours.heard(far, near.said.popleft())
    assert not any(isinstance(frame, peer.Started) for frame in far.said)
    assert not source.neighbours.followers.is_followed(1)
    source.sync()
    said = [(frame.offset, frame.timestamp_us) for frame in far.said if isinstance(frame, peer.Started)]
    assert said == [start]
    assert source.neighbours.followers.is_followed(1)


def test_a_stream_goes_on_where_the_follower_has_appended() -> None:
    pair = Pair()
    reader, writer = pair.talkers("a", 2, version=5)
    for number in range(3):
        writer.publish("a", b"%d" % number)
    pair.follower.neighbours.heard(pair.near, pair.far.said.popleft())
    near, _ = pair.connect(carry=False)
    follow = [frame for frame in near.said if isinstance(frame, peer.Follow)]
    assert [frame.offset for frame in follow] == [
        pair.follower.broker.commit._pending[-1].source_offset + 1  # type: ignore[attr-defined]
    ]
    pair.carry()
    assert received(reader) == [b"0", b"1", b"2"]


def test_a_copy_that_cannot_be_appended_is_asked_for_again() -> None:
    pair = Pair()
    reader, writer = pair.talkers("a", 1)
    writer.publish("a", b"x")
    [frame] = [frame for frame in pair.far.said if isinstance(frame, peer.Copied)]
    pair.far.said.clear()
    topic, frame.copy.topic = frame.copy.topic, bytes(70_000)
    pair.follower.neighbours.heard(pair.near, frame)
    assert pair.near.is_cut
    assert pair.follower.worker.failures.counts["apply"] == 1
    frame.copy.topic = topic
    pair.connect()
    assert received(reader) == [b"x"]


class Failing(Routes):
    """There is no memory for a match, once."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def match(self, tenant: str, topic: bytes) -> list[int]:
        if self.fails:
            self.fails = False
            raise MemoryError
        return super().match(tenant, topic)


class Counting(Routes):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def match(self, tenant: str, topic: bytes) -> list[int]:
        self.asked += 1
        return super().match(tenant, topic)


@pytest.mark.interpreted
def test_what_failed_on_its_way_by_is_read_from_the_journal() -> None:
    pair = Pair(connected=False)
    routes = pair.source.neighbours.followers.routes = Failing()
    reader, writer = pair.follower.client("r"), pair.source.client("w")
    reader.subscribe("a", 1)
    pair.connect()
    routes.fails = True
    writer.publish("a", b"x")
    pair.carry()
    pair.source.sync()
    pair.carry()
    assert received(reader) == [b"x"]


def test_an_answer_that_waits_counts_against_its_client() -> None:
    pair = Pair()
    reader = pair.follower.client("r")
    reader.subscribe("a", 1)
    waiting = reader.link.deferred
    assert waiting > 0
    pair.carry()
    assert reader.link.deferred == 0
    assert pair.follower.broker.commit.deferred_bytes == 0


def test_puback_says_that_nobody_hears_only_where_all_shards_have_said_so() -> None:
    pair = Pair(connected=False)
    writer = pair.source.client("w", version=5)

    def code() -> int:
        writer.take()
        writer.publish("a", b"x", 1)
        [body] = [body for first, body in writer.take() if first >> 4 == 4]
        return body[2] if len(body) > 2 else 0

    assert code() == 0  # the other one may want it
    pair.connect()
    assert code() == 0x10
    pair.follower.client("r").subscribe("a", 1)
    pair.carry()
    assert code() == 0


def test_puback_does_not_say_that_nobody_hears_before_a_shard_has_announced_its_filters() -> None:
    pair = Pair(connected=False)
    near, far = pair.connect(carry=False)
    pair.source.neighbours.heard(far, near.said.popleft())  # HELLO, and nothing else yet
    writer = pair.source.client("w", version=5)
    codes = []
    for _ in range(2):
        writer.take()
        writer.publish("a", b"x", 1)
        codes += [body[2:] for first, body in writer.take() if first >> 4 == 4]
        pair.carry()
    assert codes == [b"", b"\x10"]


def test_what_was_dropped_before_a_shard_has_announced_its_filters_is_told_there() -> None:
    pair = Pair(connected=False)
    owner = pair.follower.client("owner")
    owner.subscribe("$events/dropped/#", 1)
    pair.source.settings.drop_events, pair.source.settings.backlog_messages_max = True, 2
    pair.source.broker.fold.collect_drops()
    away, writer = pair.source.client("away"), pair.source.client("w")
    away.subscribe("t", 1)
    away.lose()
    near, far = pair.connect(carry=False)
    pair.source.neighbours.heard(far, near.said.popleft())  # HELLO
    for _ in range(5):
        writer.publish("t", b"x")
    pair.source.advance(1.1)
    pair.carry()
    assert [json.loads(event)["messages"] for event in received(owner)] == [3]


def test_before_it_has_begun_a_shard_speaks_to_nobody() -> None:
    source = Pair(connected=False).source
    neighbours = source.broker.join(source.journal, Routes(), StreamSettings())
    wire = End(source)
    neighbours.heard(wire, Hello(1, 1, 1))
    assert wire.is_cut
    assert not neighbours.follows(1)
