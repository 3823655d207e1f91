"""Positions of streams are a fold: each copy takes effect once, live, replayed and behind a snapshot of any moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness import Client, Harness, message, recover, state
from headrace.core.records.message import Copy, copy_of
from headrace.core.records.stream_record import (
    ANEW,
    FOLLOWED,
    OWNED,
    STARTED,
    TAKEN,
    StreamRecord,
    stream_record,
    stream_record_of,
)
from headrace.core.state.snapshots import SnapshotPass
from headrace.core.state.state import Fold
from headrace.core.state.streams import NO_START, STARTS_MAX, Streams


def copy(source: int, source_offset: int, qos: int = 1) -> Copy:
    published = message(payload=b"%d/%d" % (source, source_offset), qos=qos)
    return copy_of(published, source, source_offset)


def test_a_copy_takes_effect_once_and_moves_its_own_position() -> None:
    streams = Streams()
    assert streams.takes(copy(1, 5))
    assert not streams.takes(copy(1, 5))
    assert not streams.takes(copy(1, 4))
    assert streams.takes(copy(2, 4))
    assert streams.takes(copy(1, 6))
    assert streams.taken == {1: 7, 2: 5}


def test_positions_never_go_back() -> None:
    streams = Streams()
    for offset in (10, 4, 12):
        streams.apply(stream_record(TAKEN, 0, [(1, offset)]))
        streams.apply(stream_record(FOLLOWED, 0, [(2, offset + 1), (3, 1)]))
    assert (streams.taken, streams.followed) == ({1: 12}, {2: 13, 3: 1})
    assert not streams.takes(copy(1, 11))
    assert streams.takes(copy(1, 12))


def test_what_a_later_version_writes_is_passed_over() -> None:
    streams = Streams()
    streams.apply(StreamRecord(99, 0, bytes(16)))
    assert (streams.taken, streams.followed) == ({}, {})


def test_a_journal_is_kept_from_where_the_slowest_follower_stands() -> None:
    streams = Streams()
    streams.apply(stream_record(FOLLOWED, 0, [(1, 30), (2, 20)]))
    assert streams.floor([1, 2]) == 20
    assert streams.floor([1, 2, 3]) == 0  # that one has never said anything
    assert streams.floor([]) > 1 << 60


def subscribed(qos: int) -> tuple[Harness, Client]:
    harness = Harness()
    client = harness.client("s", version=5)
    client.subscribe("a/b", qos)
    return harness, client


def test_a_copy_reaches_the_sessions_of_its_topic_as_a_publish_does() -> None:
    harness, client = subscribed(2)
    for record in (copy(1, 3, 2), copy(1, 3, 2), copy(2, 3, 1), copy(1, 2, 1)):
        harness.broker.commit.append(record)
    harness.sync()
    assert [(payload, qos) for _, payload, _, qos in client.publishes()] == [(b"1/3", 2), (b"2/3", 1)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(1, 2), st.integers(0, 6)),
        st.tuples(st.just("taken"), st.integers(1, 2), st.integers(0, 6)),
        st.tuples(st.just("followed"), st.integers(1, 2), st.integers(0, 6)),
        st.tuples(st.just("sync")),
        st.tuples(st.just("begin")),
        st.tuples(st.just("slice")),
    ),
    max_size=30,
)


@given(steps)
def test_live_and_replayed_agree_with_a_snapshot_begun_anywhere(history: list[tuple[object, ...]]) -> None:
    harness = Harness()
    client = harness.client("s", version=5)
    client.subscribe("a/b", 1)
    client.lose()
    harness.sync()
    broker, now_us = harness.broker, harness.now_us
    walk = SnapshotPass(broker.fold, broker.commit)
    slices = walk.slices(1)
    written: list[bytes] = []
    for kind, *numbers in history:
        if kind == "copy":
            broker.commit.append(copy(*numbers))  # type: ignore[arg-type]
        elif kind == "sync":
            harness.sync()
        elif kind == "begin":
            walk = SnapshotPass(broker.fold, broker.commit)
            slices, written = walk.slices(1), []
        elif kind == "slice":
            written += next(slices, [])
        else:
            subkind = TAKEN if kind == "taken" else FOLLOWED
            broker.commit.append(stream_record(subkind, now_us, [tuple(numbers)]))  # type: ignore[list-item]
    for rest in slices:
        written += rest
    harness.sync()
    for snapshot in (None, (walk.position, written)):
        fold = Fold(harness.journal)
        recover(fold, harness.journal.bodies, snapshot)
        assert fold.streams.fields() == broker.fold.streams.fields()
        assert state(fold) == state(broker.fold)


def test_a_start_is_known_by_its_place_and_its_time() -> None:
    streams = Streams()
    assert streams.has_given((5, 700), 9)  # who knows of no start of its own believes
    for offset, time_us in ((0, 100), (10, 200), (10, 300), (20, 400)):  # the second at 10 was applied before
        streams.started(offset, time_us)
    assert streams.starts == [(0, 100), (10, 200), (20, 400)]
    for start, offset, expected in (
        (NO_START, 25, True),  # an older headrace took it
        ((0, 100), 10, True),
        ((0, 100), 11, False),  # the next owner began before
        ((10, 200), 20, True),
        ((10, 300), 12, False),  # of another history, which began at the same offset
        ((20, 400), 1000, True),
        ((30, 500), 35, False),
    ):
        assert streams.has_given(start, offset) == expected, (start, offset)


def test_of_a_start_that_is_forgotten_the_oldest_one_that_is_known_tells() -> None:
    streams = Streams()
    for number in range(STARTS_MAX + 5):
        streams.started(10 * number, number)
    assert len(streams.starts) == STARTS_MAX
    assert streams.has_given((20, 2), 50)
    assert not streams.has_given((20, 2), 51)


def test_starts_come_back_from_records_and_from_snapshots() -> None:
    streams = Streams()
    streams.started(3, 100)
    streams.started(8, 200)
    for start in ((4, 50), (9, 60), (4, 50)):
        streams.apply(stream_record_of(STARTED, 0, [1, *start, 0, 2, *start, 0]))
    assert streams.sources == {1: (9, 60), 2: (9, 60)}
    found = Streams()
    found.restore_starts(streams.start_fields(8))  # the second start was not durable when the snapshot began
    assert (found.starts, found.sources) == ([(3, 100)], streams.sources)


def test_with_a_shard_that_was_put_back_streams_begin_anew() -> None:
    streams = Streams()
    streams.apply(stream_record(TAKEN, 0, [(1, 30), (2, 30)]))
    streams.apply(stream_record(FOLLOWED, 0, [(1, 20), (2, 20)]))
    streams.apply(stream_record(OWNED, 0, [(1, 25), (2, 25)]))
    streams.apply(stream_record_of(STARTED, 0, [1, 25, 9, 0, 2, 25, 9, 0]))
    streams.apply(stream_record_of(ANEW, 0, [1, 10, 5, 0]))
    assert (streams.taken, streams.followed) == ({1: 10, 2: 30}, {1: 5, 2: 20})
    assert (streams.owners, streams.sources) == ({2: 25}, {2: (25, 9)})
    assert streams.floor([1, 2]) == 5
    assert not streams.takes(copy(1, 9))
    assert streams.takes(copy(1, 10))
