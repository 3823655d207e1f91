"""A share of the histories of workers that share shards by what Kafka's group says, and mutants that each are found."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from faults.model.group_history import run
from faults.model.world import Violation
from headrace.storage.kafka.claims import Claims, HandOver, Stage

HISTORIES = 20
MUTANT_HISTORIES = 50


def test_histories_of_this_week() -> None:
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    counts: dict[str, int] = {}
    for seed in range(first, first + HISTORIES):
        for name, number in run(seed).counts.items():
            counts[name] = counts.get(name, 0) + number
    assert all(counts.values()), counts


class NamedDoesNothing(Claims):
    """Who is named and could not take a shard does not try again."""

    def on_ended(self, shard: int, now: float) -> None:
        super().on_ended(shard, now)
        self._shards[shard].retry_at = math.inf


class LostDisowns(Claims):
    """A group that is lost takes the shards with it."""

    def on_lost(self, now: float) -> None:
        super().on_lost(now)
        for number, one in enumerate(self._shards):
            if one.stage is Stage.OWNED:
                one.stage = Stage.LEAVING
                self._actions.append(HandOver(number))


class NotNamedStays(Claims):
    """Who owns a shard that another one is named for keeps it, and takes it back."""

    def on_ended(self, shard: int, now: float) -> None:
        super().on_ended(shard, now)
        if self._named is not None:
            self._named |= {shard}


@pytest.mark.parametrize("mutant", [NamedDoesNothing, LostDisowns, NotNamedStays])
def test_the_model_notices(mutant: type[Claims]) -> None:
    for seed in range(1, MUTANT_HISTORIES + 1):
        try:
            run(seed, mutant)
        except Violation:
            return
    pytest.fail(f"nobody notices in {MUTANT_HISTORIES} histories")
