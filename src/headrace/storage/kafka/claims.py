"""Which shards a worker takes and gives up: a state machine without I/O over what Kafka's group says, and what becomes of
the shards. Events in, actions out.

The group gives advice and no more: it may name nobody, or two workers, and say to one of them what is no longer so. What
settles who owns a shard is its partition (`owner`). So a worker takes what it is named for, again and again until it has
it; it gives a shard up when an assignment without it has stood for a while, or another worker has it; and as long as the
group says nothing, everything stays as it is.

A group whose coordinator died forgets who had what, and names each of the same workers for shards of the others. So of an
assignment the number counts first: who has as many shards as it is named for gives up none, and takes none that another
worker has. Each hand-over brings a shard to whom it is named for, so they end.

    a shard is   until
    AWAY         it is named, nobody has it or there are fewer than are named, and the pause after the last attempt is
                 over: Take, TAKING
    TAKING       it is owned: OWNED; it could not be taken, or another one has it: AWAY, after a longer pause
    OWNED        another one has it: AWAY; an assignment without it, and with fewer than there are, has stood for 3 s:
                 HandOver, LEAVING
    LEAVING      nothing of it is left here: AWAY

Time is in seconds, as whoever drives it reads it, and never goes back; `on_time` is to be called every 0.1 s or so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

STANDS_S: Final = 3.0
ADVISED_S: Final = 1.0  # what the group said counts for so long, when OWNED is appended
SHORTEST_S: Final = 1.0  # between two attempts at a shard
LONGEST_S: Final = 30.0
STEADY_S: Final = 60.0  # owned for so long, a shard is taken at once if it is lost
UNNAMED_S: Final = 30.0  # without an assignment for so long, a new member joins in place of this one


@dataclass(frozen=True, slots=True)
class Take:
    """Take a shard, and tell `on_owned` or `on_ended`. `is_advised` is to be asked before OWNED is appended."""

    shard: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give a shard up in good order, and tell `on_ended` when nothing of it is left."""

    shard: int


@dataclass(frozen=True, slots=True)
class JoinAnew:
    """Leave the group, and join it as a new member."""


Action = Take | HandOver | JoinAnew


class Stage(Enum):
    """What a worker does with a shard."""

    AWAY = "away"
    TAKING = "taking"
    OWNED = "owned"
    LEAVING = "leaving"


@dataclass(slots=True)
class _Shard:
    """One shard. `pause_s` is how long the next attempt waits behind this one, and `retry_at` when it may begin."""

    stage: Stage = Stage.AWAY
    pause_s: float = SHORTEST_S
    retry_at: float = -math.inf
    owned_at: float = math.inf


def _nobodys(_shard: int) -> bool:
    """Say of every shard that no other worker is known to have it."""
    return False


class Claims:
    """The shards of one cluster, as one worker sees them."""

    def __init__(
        self,
        shards: int,
        draw: Callable[[], float],
        now: float,
        stands_s: float = STANDS_S,
        is_others: Callable[[int], bool] = _nobodys,
    ) -> None:
        """Begin without a group. `draw` gives a number from 0 up to 1, another one at each call; an assignment counts
        against an owner once it has stood for `stands_s`; `is_others` says whether another worker that lives has a
        shard."""
        self._stands_s = stands_s
        self._is_others = is_others
        self._shards = [_Shard() for _ in range(shards)]
        self._draw = draw
        self._named: frozenset[int] | None = None  # None: the group says nothing
        self._assigned_at = now
        self._unnamed_at = now
        self._heard_at = -math.inf
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """Return what is to be done now, in order."""
        actions, self._actions = self._actions, []
        return actions

    def stage(self, shard: int) -> Stage:
        """Return what is done with a shard."""
        return self._shards[shard].stage

    def is_advised(self, shard: int, now: float) -> bool:
        """Return whether the group names this worker for a shard, as of a moment ago."""
        return self._named is not None and shard in self._named and now - self._heard_at <= ADVISED_S

    # What the group says

    def on_assigned(self, shards: Collection[int], now: float) -> None:
        """Note the shards that this worker is named for, all of them."""
        self._named = frozenset(shards)
        self._assigned_at = self._heard_at = now

    def on_heard(self, now: float) -> None:
        """Note that the group takes this worker for a member, with the assignment of before."""
        self._heard_at = now

    def on_lost(self, now: float) -> None:
        """Note that the group takes this worker for none, or is not reached. Nothing is given up for that."""
        if self._named is not None:
            self._unnamed_at = now
        self._named = None

    # What becomes of shards

    def on_owned(self, shard: int, now: float) -> None:
        """Note that a shard is owned."""
        one = self._shards[shard]
        one.stage = Stage.OWNED
        one.owned_at = now

    def on_ended(self, shard: int, now: float) -> None:
        """Note that a shard is not owned any more, or could not be taken."""
        one = self._shards[shard]
        if one.stage is Stage.LEAVING or now - one.owned_at >= STEADY_S:
            one.pause_s = SHORTEST_S
        one.stage = Stage.AWAY
        one.owned_at = math.inf
        one.retry_at = now + one.pause_s * (0.5 + self._draw())
        one.pause_s = min(2 * one.pause_s, LONGEST_S)

    def on_time(self, now: float) -> None:
        """Do what is due."""
        if self._named is None:
            self._wait_for_a_name(now)
            return
        stands = now - self._assigned_at >= self._stands_s
        for number, one in enumerate(self._shards):
            if number in self._named:
                if one.stage is Stage.AWAY and now >= one.retry_at and self._may_take(number):
                    one.stage = Stage.TAKING
                    self._actions.append(Take(number))
            elif one.stage is Stage.OWNED and stands and self._count(Stage.OWNED) > len(self._named):
                one.stage = Stage.LEAVING
                self._actions.append(HandOver(number))

    def _count(self, *stages: Stage) -> int:
        return sum(one.stage in stages for one in self._shards)

    def _may_take(self, shard: int) -> bool:
        """Return whether a shard that is named is to be taken: who has enough leaves another worker what it has."""
        assert self._named is not None, "asked about what is named"
        return self._count(Stage.OWNED, Stage.TAKING) < len(self._named) or not self._is_others(shard)

    def _wait_for_a_name(self, now: float) -> None:
        if now - self._unnamed_at >= UNNAMED_S:
            self._unnamed_at = now
            self._actions.append(JoinAnew())
