"""Serial numbers, packet ids and what a replay makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.records.record import DIRECT_IDS
from headrace.core.state.backlog import BacklogSpace
from headrace.core.state.queue import OutboundQueue
from headrace.core.state.queue_replay import replay_dropped, replay_finished
from headrace.storage.memory import MemoryJournal

SPACE = BacklogSpace(MemoryJournal())


def test_a_packet_id_is_a_function_of_the_serial_number() -> None:
    queue = OutboundQueue(SPACE)
    assert [queue.packet_id(n) for n in (1, 2, DIRECT_IDS, DIRECT_IDS + 1)] == [1, 2, DIRECT_IDS, 1]


@given(st.integers(1, 3 * DIRECT_IDS), st.sets(st.integers(0, 200), min_size=1))
def test_an_acknowledgement_finds_its_entry(first: int, in_flight: set[int]) -> None:
    queue = OutboundQueue(SPACE)
    queue.next_serial = first + 201
    for distance in sorted(in_flight):
        queue.inflight.put(first + distance, 1)
    for distance in range(201):
        wanted = first + distance if distance in in_flight else 0
        assert queue.serial_of(queue.packet_id(first + distance)) == wanted
    assert queue.serial_of(DIRECT_IDS + 1) == 0


@given(st.lists(st.sampled_from(["push", "take", "finish", "drop"]), max_size=200))
def test_replay_gives_what_happened(steps: list[str]) -> None:
    live, replayed = OutboundQueue(SPACE), OutboundQueue(SPACE)
    pushed = 0
    for step in steps:
        if step == "push":
            pushed += 1
            live.push(pushed, 0)
            replayed.push(pushed, 0)
        elif step == "take" and live.backlog.count:
            live.take()
        elif step == "finish" and live.inflight.count:
            serial = max(live.inflight.serials())
            live.finish(serial)
            replay_finished(replayed, serial)
        elif step == "drop" and live.backlog.count:
            first = live.head_serial()
            live.backlog.pop()
            replay_dropped(replayed, first, 1)
    replayed.replay_sent_up_to(live.last_sent())
    assert replayed.inflight.items() == live.inflight.items()
    assert replayed.next_serial == live.next_serial
    assert replayed.backlog.fields() == live.backlog.fields()
    assert replayed.floor() == live.floor()
