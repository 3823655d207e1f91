"""Who sends without a pause: a share of a pass each, and all of them together no more than a pass."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.core.inbound.turns import SHARE_LEAST, Turns
from headrace.core.ports.link import (
    HELD_FOR_DISK,
    HELD_FOR_HOME,
    HELD_FOR_SHARD,
    HELD_FOR_SHARE,
    WORK_AT_ONCE,
)
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler, MemoryLink

pytestmark = (
    pytest.mark.interpreted
)  # links made here; compiled ones are in tests/unit/net/test_connection.py


class Flood(MemoryLink):
    """Always has more: takes its share at each turn, and stands in line again."""

    def __init__(self, harness: Harness, turns: Turns) -> None:
        super().__init__(harness.worker)
        self.turns = turns
        self.work = 0

    def read_on(self) -> None:
        if self.closed:
            return
        self.work += int(self.worker.share)
        self.turns.take(self)


def crowd(count: int) -> tuple[Turns, list[Flood]]:
    harness = Harness()
    turns = Turns(harness.worker)
    floods = [Flood(harness, turns) for _ in range(count)]
    for flood in floods:
        turns.take(flood)
    return turns, floods


def test_one_has_the_pass_for_itself() -> None:
    turns, (flood,) = crowd(1)
    turns.give_turns()
    assert flood.work == WORK_AT_ONCE


def test_fifty_share_a_pass() -> None:
    turns, floods = crowd(50)
    for _ in range(10):
        turns.give_turns()
    assert {flood.work for flood in floods} == {10 * (WORK_AT_ONCE // 50)}


def test_those_whom_the_pass_has_no_room_for_come_first_in_the_next_one() -> None:
    turns, floods = crowd(1000)
    before = 0
    for _ in range(1000 * SHARE_LEAST // WORK_AT_ONCE + 1):
        turns.give_turns()
        done = sum(flood.work for flood in floods)
        assert 0 < done - before <= WORK_AT_ONCE
        before = done
    assert min(flood.work for flood in floods) == SHARE_LEAST
    assert max(flood.work for flood in floods) <= 2 * SHARE_LEAST


@pytest.mark.parametrize("reason", [HELD_FOR_SHARE, HELD_FOR_DISK, HELD_FOR_SHARD, HELD_FOR_HOME])
def test_who_was_held_and_has_gone_takes_nobodys_share(reason: int) -> None:
    """Whatever it was held for, and whoever is to free it and does not: a closed connection is in no line."""
    turns, floods = crowd(100)
    for flood in floods[1:]:
        flood.holds = reason
        flood.closed = True
    for _ in range(200):
        turns.give_turns()
    assert list(turns.waiting) == floods[:1]
    assert floods[0].worker.share == WORK_AT_ONCE


def test_a_crowd_that_has_gone_is_forgotten_bit_by_bit() -> None:
    """Who has been read to its end reads on, and is back at once: until then the share is not everybody's."""
    turns, floods = crowd(100)
    turns.waiting.clear()
    turns.give_turns()
    assert floods[0].worker.share < 2 * (WORK_AT_ONCE // 100)
    for _ in range(100):
        turns.give_turns()
    assert floods[0].worker.share == WORK_AT_ONCE
    turns.take(floods[0])
    assert floods[0].worker.share == WORK_AT_ONCE


def test_a_crowd_that_comes_while_records_wait_keeps_its_share() -> None:
    turns, (flood,) = crowd(1)

    def bring_others() -> None:
        for _ in range(64):
            turns.take(flood)

    flood.read_on = bring_others  # type: ignore[method-assign]
    turns.give_turns(behind=True)
    assert flood.worker.share == WORK_AT_ONCE // 64


def test_who_is_held_back_keeps_its_place_and_takes_nothing() -> None:
    turns, (first, second) = crowd(2)
    first.holds = HELD_FOR_SHARE
    for _ in range(3):
        turns.give_turns()
    assert first.work == 0
    assert second.work == 3 * (WORK_AT_ONCE // 2)
    first.holds = 0
    turns.give_turns()
    assert first.work == WORK_AT_ONCE // 2


def test_nothing_is_done_for_those_who_are_held() -> None:
    """A pass for nobody would be followed by the next one, with all of a core, for as long as they are held."""
    harness, scheduler = Harness(), ManualScheduler()
    worker = Worker(scheduler, harness.clock, harness.settings)
    floods = [Flood(harness, worker.turns) for _ in range(3)]
    for flood in floods:
        worker.take_turns(flood)
        flood.holds = HELD_FOR_SHARE
    assert scheduler.requests == 1
    worker.end_tick()
    assert scheduler.requests == 1
    assert list(worker.turns.waiting) == floods
    floods[1].holds = 0
    worker.end_tick()
    assert [flood.work > 0 for flood in floods] == [False, True, False]


def test_an_error_in_one_turn_leaves_the_others_theirs() -> None:
    class Broken(Flood):
        def read_on(self) -> None:
            raise RuntimeError("unexpected")

    turns, (flood,) = crowd(1)
    broken = Broken(Harness(), turns)
    turns.take(broken)
    turns.take(flood)
    turns.give_turns()
    assert broken.broken
    assert flood.work
