"""Serial numbers, packet ids and the backlog, against plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.inflight import DIRECT_IDS, Backlog, OutboundQueue, packet_id_of, reference


def test_a_packet_id_is_a_function_of_the_serial_number() -> None:
    assert [packet_id_of(serial) for serial in (1, 2, DIRECT_IDS, DIRECT_IDS + 1)] == [1, 2, DIRECT_IDS, 1]


@given(st.lists(st.one_of(st.integers(0, 2**43 - 1), st.none()), max_size=3000), st.booleans())
def test_a_backlog_is_a_queue(steps: list[int | None], sized: bool) -> None:
    backlog, plain = Backlog(sized), []
    for step in steps:
        if step is not None:
            ref = reference(step, 5, True, 1)
            backlog.push(ref, step % 1000)
            plain.append((ref, step))
        elif plain:
            assert backlog.peek() == plain[0][0]
            assert backlog.pop() == plain.pop(0)[0]
        assert backlog.count == len(plain)
    assert backlog.lowest_offset() == min((offset for _, offset in plain), default=-1)
    if sized:
        assert backlog.bytes == sum(offset % 1000 for _, offset in plain)


@given(st.integers(1, 3 * DIRECT_IDS), st.sets(st.integers(0, 200), min_size=1))
def test_an_acknowledgement_finds_its_entry(first: int, in_flight: set[int]) -> None:
    queue = OutboundQueue(False)
    queue.next_serial = first + 201
    for distance in sorted(in_flight):
        queue.inflight[first + distance] = 1
    for distance in range(201):
        wanted = first + distance if distance in in_flight else 0
        assert queue.serial_of(packet_id_of(first + distance)) == wanted
    assert queue.serial_of(DIRECT_IDS + 1) == 0


@given(st.lists(st.sampled_from(["push", "take", "finish", "drop"]), max_size=200))
def test_replay_gives_what_happened(steps: list[str]) -> None:
    live, replayed = OutboundQueue(False), OutboundQueue(False)
    pushed = 0
    for step in steps:
        if step == "push":
            pushed += 1
            live.push(pushed, 0)
            replayed.push(pushed, 0)
        elif step == "take" and live.backlog.count:
            live.take()
        elif step == "finish" and live.inflight:
            serial = max(live.inflight)
            live.finish(serial)
            replayed.replay_finished(serial)
        elif step == "drop" and live.backlog.count:
            first = live.head_serial()
            live.backlog.pop()
            replayed.replay_dropped(first, 1)
    replayed.replay_sent_up_to(live.last_sent())
    assert replayed.inflight == live.inflight
    assert replayed.next_serial == live.next_serial
    assert replayed.backlog.to_bytes() == live.backlog.to_bytes()
    assert replayed.floor() == live.floor()
