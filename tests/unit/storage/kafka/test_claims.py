"""Which shards a worker takes and gives up by what the group says."""

from __future__ import annotations

from headrace.storage.kafka.claims import (
    LONGEST_S,
    STANDS_S,
    STEADY_S,
    UNNAMED_S,
    Action,
    Claims,
    HandOver,
    JoinAnew,
    Stage,
    Take,
)


class Run:
    """A worker's claims, and the time."""

    def __init__(self, shards: int = 3) -> None:
        self.now = 0.0
        self.others: set[int] = set()
        self.claims = Claims(shards, lambda: 0.5, self.now, STANDS_S, lambda shard: shard in self.others)

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        self.claims.on_time(self.now)
        return self.claims.take_actions()

    def assigned(self, *shards: int) -> list[Action]:
        self.claims.on_assigned(shards, self.now)
        return self.after(0.0)

    def owns(self, *shards: int) -> None:
        assert self.assigned(*shards) == [Take(shard) for shard in shards]
        for shard in shards:
            self.claims.on_owned(shard, self.now)


def test_what_is_named_is_taken_once() -> None:
    run = Run()
    assert run.after(1.0) == []
    assert run.assigned(0, 2) == [Take(0), Take(2)]
    assert run.after(60.0) == []
    assert [run.claims.stage(shard) for shard in range(3)] == [Stage.TAKING, Stage.AWAY, Stage.TAKING]


def test_what_is_not_had_is_tried_again_less_and_less_often() -> None:
    run = Run(1)
    run.assigned(0)
    pauses = []
    for _ in range(8):
        run.claims.on_ended(0, run.now)
        began = run.now
        while not run.after(0.25):
            assert run.now - began < 2 * LONGEST_S
        pauses.append(run.now - began)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[1], pauses[-1]) == (1.0, 2.0, LONGEST_S)


def test_what_was_owned_for_long_is_tried_again_soon() -> None:
    run = Run(1)
    run.assigned(0)
    for _ in range(5):
        run.claims.on_ended(0, run.now)
        run.after(2 * LONGEST_S)
    run.claims.on_owned(0, run.now)
    run.now += STEADY_S
    run.claims.on_ended(0, run.now)
    assert run.after(1.0) == [Take(0)]


def test_an_assignment_that_goes_by_changes_nothing() -> None:
    run = Run()
    run.owns(0, 1)
    assert run.assigned(1) == []
    assert run.after(STANDS_S - 0.1) == []
    assert run.assigned(0, 1) == []
    assert run.after(60.0) == []


def test_an_assignment_that_stands_is_followed() -> None:
    run = Run()
    run.owns(0, 1)
    run.assigned(1, 2)
    run.claims.on_owned(2, run.now)
    assert run.after(STANDS_S) == [HandOver(0)]
    assert run.after(60.0) == []
    run.claims.on_ended(0, run.now)
    assert run.claims.stage(0) is Stage.AWAY
    assert run.after(60.0) == []


def test_a_lost_group_disowns_nothing_and_is_joined_anew() -> None:
    run = Run()
    run.owns(0, 1)
    run.claims.on_lost(run.now)
    assert run.after(UNNAMED_S - 0.1) == []
    assert run.after(0.1) == [JoinAnew()]
    run.claims.on_lost(run.now)
    assert run.after(UNNAMED_S - 0.1) == []
    assert run.after(0.1) == [JoinAnew()]
    assert [run.claims.stage(shard) for shard in range(3)] == [Stage.OWNED, Stage.OWNED, Stage.AWAY]


def test_advice_is_of_a_moment_ago() -> None:
    run = Run()
    run.assigned(0)
    assert run.claims.is_advised(0, run.now + 1.0)
    assert not run.claims.is_advised(1, run.now)
    assert not run.claims.is_advised(0, run.now + 1.1)
    run.claims.on_heard(run.now + 5.0)
    assert run.claims.is_advised(0, run.now + 6.0)
    run.claims.on_lost(run.now + 5.5)
    assert not run.claims.is_advised(0, run.now + 5.6)


def test_what_is_taken_although_it_is_named_no_more_is_handed_over() -> None:
    run = Run()
    run.assigned(0)
    run.assigned()
    assert run.after(60.0) == []
    run.claims.on_owned(0, run.now)
    assert run.after(0.1) == [HandOver(0)]


def test_two_that_are_named_for_what_the_other_has_keep_what_they_have() -> None:
    run = Run()
    run.owns(1)
    run.others = {0, 2}
    run.claims.on_lost(run.now)
    assert run.assigned(0) == []
    assert run.after(60.0) == []
    assert run.claims.stage(1) is Stage.OWNED


def test_what_is_named_and_nobody_has_is_taken_and_another_one_given_up_for_it() -> None:
    run = Run()
    run.owns(1)
    run.others = {0, 2}
    run.assigned(0)
    run.others = {2}
    assert run.after(STANDS_S) == [Take(0)]
    run.claims.on_owned(0, run.now)
    assert run.after(0.1) == [HandOver(1)]


def test_who_has_fewer_than_it_is_named_for_takes_what_another_one_has() -> None:
    run = Run()
    run.owns(1)
    run.others = {0, 2}
    assert run.assigned(0, 2) == [Take(0)]
    run.claims.on_owned(0, run.now)
    assert run.after(STANDS_S) == []


def test_no_more_are_given_up_than_another_one_is_named_for() -> None:
    run = Run()
    run.owns(0, 1)
    assert run.assigned(2) == [Take(2)]
    run.claims.on_ended(2, run.now)
    run.others = {2}
    assert run.after(STANDS_S) == [HandOver(0)]
    run.claims.on_ended(0, run.now)
    assert run.after(60.0) == []
