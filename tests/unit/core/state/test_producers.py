"""Idempotent producers: what was stored is not stored again, through lost connections, crashes and snapshots."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import START_US, Client, Harness, message, recover, state
from headrace.core.ports.access import Access, LinkRights, SignIn
from headrace.core.ports.clock import Scheduler
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import FLAG_PRODUCER
from headrace.core.state.producers import (
    BRIDGED_PROPERTY,
    GAP_MAX,
    MALFORMED,
    NEW,
    ORDINARY,
    REPEATED,
    SEQUENCE_MAX,
    Producers,
    client_of_producer,
    owned,
    without_producer,
)
from headrace.core.state.state import Fold
from headrace.core.worker import Worker
from headrace.mqtt import codec
from headrace.mqtt.properties import Properties

PUBACK, PUBREC, PUBCOMP = 0x40, 0x50, 0x70


def sequenced(sequence: object, producer: str | None = "job-1/0") -> bytes:
    """The properties of a message of a producer, behind some that mean nothing here."""
    properties = Properties()
    properties.content_type = "text/plain"
    properties.correlation_data = b"\x26\x00\x11producer-sequence\x00\x019"
    properties.user_properties = [("colour", "red")]
    if producer is not None:
        properties.user_properties.append(("producer-id", producer))
    properties.user_properties.append(("producer-sequence", str(sequence)))
    return properties.encode()


def stored(harness: Harness) -> list[bytes]:
    """Payloads of the messages in the journal, in order."""
    found: list[bytes] = []
    for body in harness.journal.bodies:
        found += [record.payload for record in decode_batch(body, 0) if isinstance(record, Message)]
    return found


def acknowledgements(client: Client) -> list[tuple[int, int]]:
    """(first byte, reason code) of what came back; that nobody listens (0x10) counts as 0."""
    answers = [(first, body[2:3]) for first, body in client.take() if first in (PUBACK, PUBREC)]
    return [(first, code[0] if code >= b"\x80" else 0) for first, code in answers]


@pytest.fixture
def harness() -> Harness:
    return Harness()


def publisher(harness: Harness, name: str = "p") -> Client:
    client = harness.client(name, version=5, clean=True)
    client.take()
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_a_repeated_message_is_acknowledged_and_not_stored(harness: Harness, qos: int) -> None:
    client = publisher(harness)
    for sequence in (5, 5, 4, 9, 9):
        client.publish("t", b"%d" % sequence, qos, properties=sequenced(sequence))
    assert stored(harness) == [b"5", b"9"]
    assert acknowledgements(client) == [(PUBACK if qos == 1 else PUBREC, 0)] * 5
    assert harness.broker.fold.tenant("default").counters.publishes_repeated == 3


def test_a_repeated_qos_2_message_completes_its_exchange(harness: Harness) -> None:
    client = publisher(harness)
    for _ in range(2):
        packet_id = client.publish("t", b"x", 2, properties=sequenced(1))
        client.take()
        client.feed(codec.encode_pubrel(5, packet_id))
        assert client.take() == [(PUBCOMP, packet_id.to_bytes(2, "big"))]
    assert stored(harness) == [b"x"]
    assert client.link.inbound == 0


def test_the_repeated_one_waits_until_the_first_is_durable(harness: Harness) -> None:
    client = publisher(harness)
    client.publish("t", b"x", sync=False, properties=sequenced(1))
    client.lose_unsynced()
    again = publisher(harness, "q")
    assert acknowledgements(again) == []
    back = harness.client("p", version=5, clean=True, sync=False)
    back.publish("t", b"x", sync=False, properties=sequenced(1))
    assert acknowledgements(back) == []
    harness.sync()
    assert acknowledgements(back) == [(PUBACK, 0)]
    assert stored(harness) == [b"x"]


def test_producers_are_known_by_client_and_id(harness: Harness) -> None:
    for name in ("p", "q"):
        for producer in ("one", "two"):
            publisher(harness, name).publish("t", b"x", properties=sequenced(1, producer))
    assert len(stored(harness)) == 4
    assert len(harness.broker.fold.tenant("default").producers) == 4


def test_one_property_alone_means_nothing(harness: Harness) -> None:
    client = publisher(harness)
    for _ in range(2):
        client.publish("t", b"x", properties=sequenced(1, None))
    assert len(stored(harness)) == 2
    assert len(harness.broker.fold.tenant("default").producers) == 0


@pytest.mark.parametrize("sequence", ["-1", "", "1.5", "x", str(1 << 63), "1" * 20, "²"])
def test_a_sequence_that_is_no_number_is_refused(harness: Harness, sequence: str) -> None:
    client = publisher(harness)
    client.publish("t", b"x", properties=sequenced(sequence))
    client.publish("t", b"x", properties=sequenced(1, ""))
    client.publish("t", b"x", properties=sequenced(1, "i" * 129))
    assert acknowledgements(client) == [(PUBACK, 0x83)] * 3
    assert stored(harness) == []
    assert client.link.inbound == 0


class Named(Access):
    """Everybody who has a user name is that user."""

    def authenticate(self, request: SignIn) -> Identity | int:
        return request.identity_of(request.username)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def note_denied(self, link: Link, action: str, topic: bytes) -> None: ...


class NotToSecret(Named):
    def may_publish(self, link: Link, topic: bytes) -> bool:
        return topic != b"secret"


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_of_a_producer_overtakes_a_refused_message(harness: Harness, qos: int) -> None:
    client = publisher(harness)
    client.link.rights = LinkRights(NotToSecret(), client.link)
    for sequence, topic in enumerate(["t", "secret", "t"]):
        client.publish(topic, b"%d" % sequence, qos, properties=sequenced(sequence))
    client.publish("t", b"ordinary", qos)
    assert [code for _, code in acknowledgements(client)] == [0, 0x87, 0x87, 0]
    again = publisher(harness)
    again.link.rights = LinkRights(Named(), again.link)
    for sequence in range(3):
        again.publish("t", b"%d" % sequence, qos, properties=sequenced(sequence))
    assert stored(harness) == [b"0", b"ordinary", b"1", b"2"]


def test_a_message_that_a_full_disk_refused_is_taken_later() -> None:
    limits = BrokerSettings()
    limits.refuse_when_full = True
    harness = Harness(limits)
    client = publisher(harness)
    harness.broker.set_storage_full(True)
    client.publish("t", b"1", properties=sequenced(1))
    harness.broker.set_storage_full(False)
    client.publish("t", b"2", properties=sequenced(2))
    assert acknowledgements(client) == [(PUBACK, 0x97)] * 2
    again = publisher(harness)
    for sequence in (1, 2):
        again.publish("t", b"%d" % sequence, properties=sequenced(sequence))
    assert stored(harness) == [b"1", b"2"]


class NoMemory(Scheduler):
    """Cannot ask for a pass of the loop while `armed`."""

    armed = False

    def request_tick(self) -> None:
        if self.armed:
            raise MemoryError


class Tight(Harness):
    """A broker whose memory is short for a moment, when the first record of a batch comes."""

    def _own(self) -> None:
        self.scheduler = NoMemory()
        self.worker = Worker(self.scheduler, self.clock, self.settings)
        self.broker = self.worker.own(0, self.journal)


@pytest.mark.parametrize("before", [[], [1]])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_could_not_be_appended_is_not_taken_for_stored(qos: int, before: list[int]) -> None:
    harness = Tight()
    client = publisher(harness)
    for sequence in before:
        client.publish("t", b"%d" % sequence, properties=sequenced(sequence))
    harness.scheduler.armed = True
    with suppress(MemoryError):
        client.publish("t", b"2", qos, properties=sequenced(2), sync=False)
    harness.scheduler.armed = False
    again = publisher(harness)
    for sequence in (*before, 2, 3):
        again.publish("t", b"%d" % sequence, qos, properties=sequenced(sequence))
    assert len(acknowledgements(again)) == len(before) + 2
    kept = [b"%d" % sequence for sequence in (*before, 2, 3)]
    assert stored(harness) == kept
    assert harness.broker.commit.append(message()) == harness.journal.next_offset()


def test_a_crash_keeps_what_is_durable_and_forgets_the_rest(harness: Harness) -> None:
    client = publisher(harness)
    client.publish("t", b"1", properties=sequenced(1))
    client.publish("t", b"2", sync=False, properties=sequenced(2))
    harness.crash()
    client = publisher(harness)
    for sequence in (1, 2):
        client.publish("t", b"%d" % sequence, properties=sequenced(sequence))
    assert stored(harness) == [b"1", b"2"]


# The table itself


def numbered(
    sequence: int, producer: str = "job", seconds: int = 0, user: str | None = None, client: str = "client"
) -> Message:
    """A message of a producer; with `user`, as the broker journals it where access control is on."""
    found = message(properties=owned(sequenced(sequence, producer), user, user is not None))
    found.origin = b"default" + client.encode()
    found.timestamp_us = START_US + seconds * 1_000_000
    return found


def test_what_is_taken_is_not_yet_durable() -> None:
    table = Producers()
    assert table.take(message()) == ORDINARY
    assert table.take(numbered(7)) == NEW
    assert table.take(numbered(7)) == REPEATED
    assert list(table.entries()) == []
    table.apply(numbered(7))
    restored = Producers()
    for key, sequence, last_us in next(table.entries()):
        restored.restore(key, sequence, last_us)  # type: ignore[arg-type]
    assert restored.take(numbered(7)) == REPEATED
    assert restored.take(numbered(8)) == NEW


def test_a_clock_that_is_set_ahead_forgets_nobody() -> None:
    """One record with a time far ahead, and the clock is set back: whoever sends again is known."""
    table = Producers()
    years = 10 * 365 * 86_400
    for number in range(3):
        table.apply(numbered(1, f"old-{number}"))
    table.apply(numbered(1, "new", years))
    table.apply(numbered(2, "new", years))
    assert len(table) == 4
    assert table.take(numbered(1, "old-1")) == REPEATED


def test_their_number_is_bounded() -> None:
    table = Producers(3)
    for number in (0, 1, 2, 0, 3):
        table.apply(numbered(number, client=f"c-{number}"))
    assert len(table) == 3
    assert table.take(numbered(0, client="c-0")) == REPEATED  # used again meanwhile
    assert table.take(numbered(1, client="c-1")) == NEW


def test_none_is_forgotten_while_a_message_of_it_is_on_its_way() -> None:
    """Their number does not count then; what is forgotten is the same for who reads the journal."""
    table, reader = Producers(2), Producers(2)
    week = 7 * 86_400
    for one in (table, reader):
        one.apply(numbered(1, client="slow"))
    assert table.take(numbered(2, client="slow")) == NEW
    assert table.take(numbered(9, client="fresh")) == NEW
    for number in range(5):
        for one in (table, reader):
            one.apply(numbered(1, "p", week + number + 10, client=f"c-{number}"))
        assert table.take(numbered(2, client="slow")) == REPEATED
        assert table.take(numbered(9, client="fresh")) == REPEATED
    assert list(table.entries()) == list(reader.entries())
    for one in (table, reader):
        one.apply(numbered(2, "job", week + 20, client="slow"))
    assert table.take(numbered(2, client="slow")) == REPEATED
    assert table.take(numbered(3, client="slow")) == NEW
    assert list(table.entries()) == list(reader.entries())
    assert len(table) == 2


def test_a_sequence_is_stored_once_though_its_producer_would_be_forgotten_before_it_is_durable() -> None:
    harness = Harness()
    harness.broker.fold.tenant("default").producers = Producers(1)
    client = publisher(harness)
    client.publish("t", b"once", sync=False, properties=sequenced(1))
    client.publish("t", b"x", sync=False, properties=sequenced(1, "a"))
    harness.worker.end_tick()  # the batch is on its way
    client.publish("t", b"late", sync=False, properties=sequenced(2))
    client.publish("t", b"y", sync=False, properties=sequenced(1, "b"))
    harness.journal.durable = len(harness.journal.records)
    harness.broker.commit.on_high_watermark(harness.journal.durable)
    client.publish("t", b"late", properties=sequenced(2))
    assert stored(harness).count(b"late") == 1


# Whose a sequence is


@pytest.fixture
def guarded(harness: Harness) -> Harness:
    harness.broker.sessions.access = Named()
    return harness


def sender(harness: Harness, user: str | None, name: str = "p") -> Client:
    client = harness.client(name, version=5, clean=True, username=user)
    client.take()
    return client


@pytest.mark.parametrize("stranger", ["eve", None])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_sequence_counts_for_its_user_alone(guarded: Harness, stranger: str | None, qos: int) -> None:
    """Whoever takes another user's client id for once does not silence that user."""
    sender(guarded, "ann").publish("t", b"1", qos, properties=sequenced(1))
    sender(guarded, stranger).publish("t", b"eve", qos, properties=sequenced(1_000))
    ann = sender(guarded, "ann")
    for sequence in (1, 2, 3):
        ann.publish("t", b"%d" % sequence, qos, properties=sequenced(sequence))
    assert stored(guarded) == [b"1", b"eve", b"2", b"3"]
    guarded.crash()
    guarded.broker.sessions.access = Named()
    ann = sender(guarded, "ann")
    for sequence in (2, 3, 4):
        ann.publish("t", b"%d" % sequence, qos, properties=sequenced(sequence))
    assert stored(guarded) == [b"1", b"eve", b"2", b"3", b"4"]


def test_nobody_speaks_for_another_owner(guarded: Harness) -> None:
    """What a client says of the owner is put right, before ours or behind it."""
    forged = owned(b"", "ann", True)
    for stranger in ("eve", None):
        client = sender(guarded, stranger)
        client.publish("t", b"f", properties=forged + sequenced(9) + forged)
    sender(guarded, "ann").publish("t", b"1", properties=sequenced(1))
    assert stored(guarded) == [b"f", b"f", b"1"]
    harness = Harness()  # nobody has a name, and nobody an owner
    sender(harness, None).publish("t", b"f", properties=forged + sequenced(9))
    sender(harness, None).publish("t", b"1", properties=sequenced(1))
    assert stored(harness) == [b"f"]


def test_sequences_of_before_there_were_owners_hold_until_the_user_has_one(harness: Harness) -> None:
    """A batch that is sent again after the upgrade is known; a number that cannot be this producer's is passed over."""
    publisher(harness).publish("t", b"5", properties=sequenced(5))
    publisher(harness).publish("t", b"x", properties=sequenced(1 << 62, "silenced"))
    harness.take_snapshot()
    harness.crash()
    harness.broker.sessions.access = Named()
    ann = sender(harness, "ann")
    for sequence in (4, 5, 6, 6):
        ann.publish("t", b"%d" % sequence, properties=sequenced(sequence))
    ann.publish("t", b"alarm", properties=sequenced(1, "silenced"))
    assert [code for _, code in acknowledgements(ann)] == [0] * 5
    assert stored(harness) == [b"5", b"x", b"6", b"alarm"]


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        (0, GAP_MAX, NEW),
        (0, GAP_MAX + 1, MALFORMED),
        (3, 1 << 62, MALFORMED),
        (3, SEQUENCE_MAX, MALFORMED),
        (SEQUENCE_MAX, 0, MALFORMED),
        (GAP_MAX, 0, REPEATED),
        (1_790_000_000_000_000_000, 1_790_003_600_000_000_000, NEW),  # an hour in nanoseconds
        (7 << 32, 8 << 32, NEW),  # batches of the Spark sink
    ],
)
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_gap_that_no_honest_producer_makes_is_refused(
    first: int, then: int, found: int, is_durable: bool
) -> None:
    table = Producers()
    assert table.take(numbered(first)) == NEW
    if is_durable:
        table.apply(numbered(first))
    assert table.take(numbered(then)) == found
    assert table.take(numbered(first + 1 if first < SEQUENCE_MAX else first)) != MALFORMED


@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
def test_a_refused_gap_is_no_success_and_the_producer_goes_on(
    harness: Harness, qos: int, answer: int
) -> None:
    client = publisher(harness)
    client.publish("t", b"3", qos, properties=sequenced(3))
    client.publish("t", b"far", qos, properties=sequenced(1 << 62))
    assert acknowledgements(client) == [(answer, 0), (answer, 0x83)]
    again = publisher(harness)
    again.publish("t", b"4", qos, properties=sequenced(4))
    assert acknowledgements(again) == [(answer, 0)]
    assert stored(harness) == [b"3", b"4"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_came_over_a_bridge_is_of_no_producer(harness: Harness, qos: int) -> None:
    """An earlier headrace passes the sequences of all its devices on, under one client id; one is refused, and the others
    go on."""
    client = publisher(harness)
    client.link.rights = LinkRights(NotToSecret(), client.link)
    over = Properties()
    over.user_properties = [(BRIDGED_PROPERTY.decode(), "1234")]
    for topic, payload, sequence in (
        ("a", b"1", 1 << 62),
        ("secret", b"2", 2),
        ("b", b"3", 1),
        ("b", b"4", 1),
    ):
        client.publish(topic, payload, qos, properties=sequenced(sequence) + over.encode())
    assert [code for _, code in acknowledgements(client)] == [0, 0x87, 0, 0]
    assert stored(harness) == [b"1", b"3", b"4"]
    assert len(harness.broker.fold.tenant("default").producers) == 0


def test_what_a_bridge_takes_out_are_the_properties_of_producers_alone() -> None:
    plain = Properties()
    plain.response_topic = "producer-id"
    plain.user_properties = [("a", "producer-sequence"), ("producer-id2", "x")]
    assert without_producer(plain.encode()) == plain.encode()
    both = owned(sequenced(7) + plain.encode(), "ann", True)
    passed = without_producer(both)
    left = Properties.decode(passed, 0, len(passed), 3)
    assert left.user_properties == [("colour", "red"), ("a", "producer-sequence"), ("producer-id2", "x")]


@pytest.mark.parametrize("user", [None, "", "ann"])
def test_a_row_of_a_snapshot_says_whose_client_it_is(user: str | None) -> None:
    table = Producers()
    table.apply(numbered(1, user=user, client="über/1"))
    assert [client_of_producer("default", row) for row in next(table.entries())] == ["über/1"]


@pytest.mark.parametrize("user", ["eve", None])
def test_one_user_cannot_push_out_all_others(user: str | None) -> None:
    """Half of the room is the most that one has, whichever client ids; without a user name it is a client id's."""
    table, most = Producers(10), 5
    for number in range(3):
        table.apply(numbered(1, client=f"c-{number}"))
    for number in range(100):
        client = "eve" if user is None else f"e-{number % 3}"
        table.apply(numbered(1, f"p-{number}", user=user, client=client))
    assert len(table) == 3 + most
    assert [table.take(numbered(1, client=f"c-{number}")) for number in range(3)] == [REPEATED] * 3
    last = numbered(1, "p-99", user=user, client="eve" if user is None else "e-0")
    assert table.take(last) == REPEATED


uses = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", None]), st.integers(0, 2), st.integers(0, 5)), max_size=80
)


@settings(max_examples=300)
@given(uses, st.integers(0, 80), st.integers(0, 80))
def test_the_same_producers_are_forgotten_from_wherever_a_replay_begins(
    history: list[tuple[str | None, int, int]], position: int, written: int
) -> None:
    """A snapshot may hold what the records behind its position say, too."""
    messages = [
        numbered(at, f"p-{producer}", at, user, f"c-{client}")
        for at, (user, client, producer) in enumerate(history)
    ]
    written = min(max(position, written), len(messages))
    live, restored = Producers(8), Producers(8)
    for found in messages[:written]:
        live.apply(found)
    for rows in live.entries():
        for key, sequence, last_us in rows:
            restored.restore(key, sequence, last_us)  # type: ignore[arg-type]
    for found in messages[written:]:
        live.apply(found)
    for found in messages[position:]:
        restored.apply(found)
    assert list(live.entries()) == list(restored.entries())


# Histories

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3), st.sampled_from([1, 2])),
        st.tuples(st.just("sync")),
        st.tuples(st.just("reconnect")),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("other")),
    ),
    max_size=40,
)


class Sender:
    """Sends 0, 1, 2, ... in order; after each loss whatever is not acknowledged comes again."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.acked = 0
        self.next = 0
        self.client = publisher(self.harness)

    def send(self, count: int, qos: int) -> None:
        for _ in range(count):
            self.client.publish("t", b"%d" % self.next, qos, sync=False, properties=sequenced(self.next))
            self.next += 1
        self.heard()

    def heard(self) -> None:
        codes = [code for _, code in acknowledgements(self.client)]
        assert not any(codes)
        self.acked += len(codes)

    def sync(self) -> None:
        self.harness.sync()
        self.heard()

    def snapshot(self) -> None:
        self.harness.take_snapshot()

    def other(self) -> None:
        self.harness.client("other", version=5, clean=True).publish("t", b"-", properties=sequenced(1, "x"))
        self.heard()

    def reconnect(self) -> None:
        """All over again, from any point at or before the last acknowledged message."""
        self.client.lose_unsynced()
        self.client = self.harness.client("p", version=5, clean=True, sync=False)
        self.next = self.acked = max(0, self.acked - 2)

    def crash(self) -> None:
        self.harness.crash()
        self.client = publisher(self.harness)
        self.next = self.acked = max(0, self.acked - 2)


@settings(max_examples=150)
@given(steps)
def test_every_message_is_stored_once_in_order(history: list[tuple[object, ...]]) -> None:
    sender = Sender()
    for step in history:
        getattr(sender, str(step[0]))(*step[1:])
    sender.sync()
    numbers = [int(payload) for payload in stored(sender.harness) if payload != b"-"]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= sender.acked
    assert stored(sender.harness).count(b"-") <= 1
    live = state(sender.harness.broker.fold)
    for snapshot in (None, sender.harness.snapshot):
        fold = Fold(sender.harness.journal)
        recover(fold, sender.harness.journal.bodies, snapshot)
        assert state(fold) == live


def test_the_record_says_that_it_is_one(harness: Harness) -> None:
    publisher(harness).publish("t", b"x", properties=sequenced(1))
    records = [record for body in harness.journal.bodies for record in decode_batch(body, 0)]
    flags = [record.flags for record in records if isinstance(record, Message)]
    assert [flag & FLAG_PRODUCER for flag in flags] == [FLAG_PRODUCER]
