"""One worker as its supervisor sees it: how soon it is started again."""

from __future__ import annotations

import socket
from itertools import pairwise
from typing import Any, cast

from headrace.workers.control import READY, RECOVERING, Report
from headrace.workers.member import LONGEST_S, PAUSE_SHARE, SHORTEST_S, Member


class Ended:
    """A process that has ended."""

    def poll(self) -> int:
        return 3

    wait = poll


class Life:
    """A worker that takes three seconds to begin, each time, and may then serve."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.member = Member(1, self.spawn, lambda: self.now_s)

    def spawn(self, _index: int, _run: int, end: socket.socket) -> Any:
        self.end = end.dup()
        return cast("Any", Ended())

    def pause(self, serves_s: float | None = None) -> float:
        """Start it; it serves for so long and ends. Returns the pause before the next start."""
        self.member.start(1)
        with self.end:
            self.says(RECOVERING)
            self.now_s += 3.0
            if serves_s is not None:
                self.says(READY)
                self.now_s += serves_s / 2
                self.says(READY)
                self.now_s += serves_s / 2
            assert self.member.has_ended()
            self.member.bury()
        return self.member.pause_s()

    def says(self, state: str) -> None:
        self.end.send(Report(state).pack())
        self.member.read()


def test_one_that_never_serves_is_started_less_and_less_often_however_long_it_takes_to_end() -> None:
    """A worker of an unusable shard takes seconds of a core to find out: without pauses it never lets go of it."""
    life = Life()
    pauses = [life.pause() for _ in range(12)]
    assert pauses[0] <= SHORTEST_S
    assert all(before < after for before, after in pairwise(pauses[:7]))
    assert min(pauses[8:]) >= LONGEST_S / 2


def test_pauses_are_a_small_part_of_the_time_that_it_serves() -> None:
    life = Life()
    assert max(life.pause(60.0) for _ in range(20)) <= SHORTEST_S
    assert max(life.pause(4.0) for _ in range(20)) <= 2 * PAUSE_SHARE * 4.0
    assert [life.pause(0.05) for _ in range(12)][-1] >= LONGEST_S / 2
    assert life.pause(1000.0) <= SHORTEST_S
