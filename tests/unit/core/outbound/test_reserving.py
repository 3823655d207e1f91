"""How far ahead a session may send, and that one entry which stays stops nothing: packet ids in use are told apart."""

from __future__ import annotations

import pytest

from harness import Client, Harness, state
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import BOUND, SENT_LIMIT, Progress
from headrace.core.state.backlog import BacklogSpace
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.queue import OutboundQueue, reference
from headrace.core.state.replay import Replay
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.mqtt import codec
from headrace.storage.memory import MemoryJournal

FEW = 8


def broker(direct: int = FEW, upper: int = 1000, backlog: int = 10_000) -> Harness:
    settings = BrokerSettings()
    settings.direct_ids, settings.upper_ids = direct, upper
    settings.backlog_messages_max = backlog
    return Harness(settings)


def pair(harness: Harness, qos: int = 1, window: int = 20) -> tuple[Client, Client]:
    subscriber = harness.client("sub", version=5, receive_maximum=window)
    subscriber.subscribe("t", qos)
    return subscriber, harness.client("pub", clean=True)


def session_of(harness: Harness) -> Session:
    return harness.broker.fold.tenant("default").sessions["sub"]


def queue_of(harness: Harness) -> OutboundQueue:
    queue = session_of(harness).queue
    assert queue is not None
    return queue


def bound_of(harness: Harness) -> dict[int, int]:
    bound = queue_of(harness).bound
    return {} if bound is None else bound.ids


def publish(publisher: Client, payloads: range, qos: int = 1) -> None:
    for number in payloads:
        publisher.publish("t", b"%d" % number, qos)


def finish(subscriber: Client, packet_id: int, qos: int) -> None:
    if qos == 1:
        subscriber.ack(packet_id)
    else:
        subscriber.feed(codec.encode_pubrec(5, packet_id))
        subscriber.feed(codec.encode_pubcomp(5, packet_id))


def drain(subscriber: Client, held: set[int]) -> list[bytes]:
    """Acknowledge all that comes, but for the held ids; the payloads that came."""
    came = []
    while got := subscriber.publishes():
        for packet_id, payload, dup, qos in got:
            assert packet_id
            if packet_id in held:
                assert dup, f"{payload!r} came under {packet_id}, which another one has"
                continue
            came.append(payload)
            finish(subscriber, packet_id, qos)
    return came


def test_a_limit_covers_the_range_of_ids_and_no_more() -> None:
    harness = broker()
    subscriber, publisher = pair(harness)
    publish(publisher, range(3))
    assert queue_of(harness).sent_limit == FEW
    subscriber.lose()
    publish(publisher, range(3, 6))
    harness.client("sub", version=5)
    assert queue_of(harness).sent_limit == FEW
    assert len(harness.client("sub", version=5).publishes()) == 6


def test_an_entry_held_over_a_reconnection_does_not_block_what_comes_behind_trimmed_ones() -> None:
    harness = broker(backlog=10)
    subscriber, publisher = pair(harness)
    publish(publisher, range(1))
    assert subscriber.publishes()[0][0] == 1
    subscriber.lose()
    publish(publisher, range(1, 60))
    subscriber = harness.client("sub", version=5)
    came = subscriber.publishes()
    assert came[0] == (1, b"0", True, 1)
    payloads = [payload for _, payload, _, _ in came[1:]]
    for packet_id, _, _, _ in came:
        subscriber.ack(packet_id)
    assert payloads + drain(subscriber, set()) == [b"%d" % number for number in range(50, 60)]
    publish(publisher, range(60, 90))
    assert len(drain(subscriber, set())) == 30


def test_an_entry_held_while_the_backlog_overflows_can_be_acknowledged() -> None:
    harness = broker(backlog=10)
    subscriber, publisher = pair(harness, window=2)
    publish(publisher, range(60))
    held, other = subscriber.publishes()
    subscriber.ack(held[0])
    subscriber.ack(other[0])
    assert len(drain(subscriber, set())) == 10
    assert queue_of(harness).inflight.count == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
def test_one_held_entry_stops_nothing(qos: int, crash: bool) -> None:
    harness = broker()
    subscriber, publisher = pair(harness, qos)
    publish(publisher, range(1), qos)
    assert subscriber.publishes()[0][0] == 1
    for start in range(1, 201, 20):
        publish(publisher, range(start, start + 20), qos)
        assert drain(subscriber, {1}) == [b"%d" % number for number in range(start, start + 20)]
        if crash:
            harness.crash()
            subscriber, publisher = pair(harness, qos)
            assert subscriber.publishes() == [(1, b"0", True, qos)]
    finish(subscriber, 1, qos)
    publish(publisher, range(201, 221), qos)
    assert len(drain(subscriber, set())) == 20
    assert queue_of(harness).unfinished() == 0


def test_ids_in_flight_are_told_apart_and_stay_the_same_over_crashes() -> None:
    harness = broker()
    subscriber, publisher = pair(harness, 2, window=1000)
    publish(publisher, range(100), 2)
    first = {packet_id: payload for packet_id, payload, _, _ in subscriber.publishes()}
    assert len(first) == 100
    for packet_id in list(first)[::2]:
        finish(subscriber, packet_id, 2)
        del first[packet_id]
    for snapshot in (False, True):
        if snapshot:
            harness.take_snapshot()
        harness.crash()
        subscriber = harness.client("sub", version=5, receive_maximum=1000)
        again = {packet_id: payload for packet_id, payload, dup, _ in subscriber.publishes() if dup}
        assert again == first
    for packet_id in first:
        finish(subscriber, packet_id, 2)
    assert queue_of(harness).unfinished() == 0
    assert min(bound_of(harness), default=101) > 100


def test_a_given_id_is_durable_before_the_limit_that_covers_its_entry() -> None:
    harness = broker()
    subscriber, publisher = pair(harness, window=1000)
    publish(publisher, range(100))
    bound: dict[int, int] = {}
    limit, packet_ids = 0, 0
    for record in harness.journal.records:
        if isinstance(record, Progress) and record.subkind == BOUND:
            values = record.values()
            bound.update({values[at + 1]: values[at + 2] for at in range(0, len(values), 3)})
        elif isinstance(record, Progress) and record.subkind == SENT_LIMIT:
            limit = record.values()[-1]
            ids = [bound.get(serial, 1 + (serial - 1) % FEW) for serial in range(1, limit + 1)]
            assert len(set(ids)) == len(ids)
            packet_ids = len(ids)
    assert packet_ids >= 100
    assert len(subscriber.publishes()) == 100


def test_when_no_id_is_free_the_session_waits_for_one() -> None:
    harness = broker(upper=2)
    subscriber, publisher = pair(harness, window=1000)
    publish(publisher, range(50))
    waiting = subscriber.publishes()
    assert 0 < len(waiting) <= FEW + 2
    came = 0
    while waiting:
        came += 1
        subscriber.ack(waiting.pop(0)[0])
        waiting += subscriber.publishes()
        assert len({packet_id for packet_id, _, _, _ in waiting} - {0}) == len(waiting)
    assert came == 50


def test_nothing_is_bound_while_nothing_is_held() -> None:
    harness = broker(direct=64)
    subscriber, publisher = pair(harness, window=2)
    publish(publisher, range(500))
    assert len(drain(subscriber, set())) == 500
    queue = queue_of(harness)
    assert (queue.held, queue.bound) == (None, None)
    assert not [r for r in harness.journal.records if isinstance(r, Progress) and r.subkind == BOUND]


def test_ids_of_entries_that_are_never_sent_are_free_again() -> None:
    harness = broker(backlog=5)
    subscriber, publisher = pair(harness, window=FEW)
    publish(publisher, range(40))
    subscriber.lose()
    assert bound_of(harness) == {}
    live = state(harness.broker.fold, harness.broker.commit)
    harness.crash()
    assert state(harness.broker.fold, harness.broker.commit) == live


def test_entries_that_an_older_broker_left_under_one_id_get_one_each() -> None:
    """It reserved beyond the range when a client came back: after a crash two entries had one id."""
    harness = broker()
    subscriber, publisher = pair(harness)
    subscriber.lose()
    publish(publisher, range(20))
    session = session_of(harness)
    harness.broker.commit.progress.sent_limit(session.incarnation, 20)
    queue_of(harness).close(20)
    harness.sync()
    subscriber = harness.client("sub", version=5, receive_maximum=100)
    came = subscriber.publishes()
    assert [payload for _, payload, _, _ in came] == [b"%d" % number for number in range(20)]
    assert len({packet_id for packet_id, _, _, _ in came}) == 20
    harness.crash()
    subscriber = harness.client("sub", version=5, receive_maximum=100)
    assert [row[0] for row in subscriber.publishes()] == [row[0] for row in came]
    assert len(drain(subscriber, set())) == 0
    for packet_id, _, _, _ in came:
        subscriber.ack(packet_id)
    assert queue_of(harness).unfinished() == 0


def test_unknown_ids_are_answered_as_before() -> None:
    harness = broker()
    subscriber, publisher = pair(harness, 2)
    publish(publisher, range(1), 2)
    subscriber.take()
    for packet_id in (7, 40, 49_152, 65_535):
        subscriber.ack(packet_id)
        assert subscriber.take() == []
        subscriber.feed(codec.encode_pubrec(5, packet_id))
        assert [first for first, _ in subscriber.take()] == [0x62]
    assert queue_of(harness).inflight.count == 1


@pytest.mark.slow
def test_a_thousand_held_entries_cost_no_more_than_a_look_per_message() -> None:
    """The boundary moves on and takes up what is held anew each time; only what meets a held id is bound."""
    harness = broker(direct=4000, upper=16_000)
    subscriber, publisher = pair(harness, window=2000)
    publish(publisher, range(1000))
    held = {packet_id for packet_id, _, _, _ in subscriber.publishes()}
    for start in range(1000, 21_000, 500):
        for number in range(start, start + 500):
            publisher.publish("t", b"%d" % number, sync=False)
        harness.sync()
        assert len(drain(subscriber, held)) == 500
    queue = queue_of(harness)
    assert queue.inflight.slots <= 4096
    records = [r for r in harness.journal.records if isinstance(r, Progress) and r.subkind == BOUND]
    bound = sum(len(record.values()) // 3 for record in records)
    assert 4000 <= bound <= 6000  # one in four turns of the range meets them all


def test_a_replay_without_a_live_broker_finds_the_ids_too() -> None:
    harness = broker()
    subscriber, publisher = pair(harness, window=30)
    publish(publisher, range(30))
    subscriber.take()
    fold = Fold(harness.journal, PacketIds(FEW))
    replay = Replay(fold)
    for record in harness.journal.records:
        replay.record(record)
    replayed = fold.tenant("default").sessions["sub"].queue
    assert replayed is not None
    queue = queue_of(harness)
    for serial in queue.inflight.serials():
        assert replayed.packet_id(serial) == queue.packet_id(serial)


def test_a_lookup_looks_at_two_entries_however_many_were_sent() -> None:
    queue = OutboundQueue(BacklogSpace(MemoryJournal()), FEW)
    queue.push(reference(1, 0, False, 1), 0)
    queue.take()
    for number in range(2, 20_000):
        queue.push(reference(number, 0, False, 1), 0)
        serial = queue.take()
        if number % 4 == 0:
            queue.settle()
        assert queue.serial_of(1) in (1, serial)
        queue.finish(serial)
    assert queue.serial_of(1) == 1
    assert [queue.serial_of(packet_id) for packet_id in (0, 2, FEW, FEW + 1, 65_535)] == [0] * 5
