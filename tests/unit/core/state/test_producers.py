"""Idempotent producers: what was stored is not stored again, through lost connections, crashes and snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import START_US, Client, Harness, message, recover, state
from headrace.core.ports.access import Access, LinkRights
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import FLAG_PRODUCER
from headrace.core.state.producers import NEW, ORDINARY, REPEATED, Producers
from headrace.core.state.state import Fold
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


class NotToSecret(Access):
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


def numbered(sequence: int, producer: str = "job", seconds: int = 0) -> Message:
    found = message(properties=sequenced(sequence, producer))
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
        table.apply(numbered(number, f"p-{number}"))
    assert len(table) == 3
    assert table.take(numbered(0, "p-0")) == REPEATED  # used again meanwhile
    assert table.take(numbered(1, "p-1")) == NEW


def test_none_is_forgotten_while_a_message_of_it_is_on_its_way() -> None:
    """Their number does not count then; what is forgotten is the same for who reads the journal."""
    table, reader = Producers(2), Producers(2)
    week = 7 * 86_400
    for one in (table, reader):
        one.apply(numbered(1, "slow"))
    assert table.take(numbered(2, "slow")) == NEW
    assert table.take(numbered(9, "fresh")) == NEW
    for number in range(5):
        for one in (table, reader):
            one.apply(numbered(1, f"p-{number}", week + number + 10))
        assert table.take(numbered(2, "slow")) == REPEATED
        assert table.take(numbered(9, "fresh")) == REPEATED
    assert list(table.entries()) == list(reader.entries())
    for one in (table, reader):
        one.apply(numbered(2, "slow", week + 20))
    assert table.take(numbered(2, "slow")) == REPEATED
    assert table.take(numbered(3, "slow")) == NEW
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
