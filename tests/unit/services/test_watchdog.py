"""The watchdog over a clock that the test moves, and over a real stall."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest

from harness import Harness
from headrace.services.metrics import BrokerCollector
from headrace.services.watchdog import KINDS, LIMIT_S, Watchdog


class Hand:
    """A clock that stands until it is moved, in seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


def test_only_what_is_too_long_is_counted() -> None:
    hand = Hand()
    watchdog = Watchdog(hand)
    watchdog.watched("tick", hand.move)(LIMIT_S / 2)
    assert watchdog.stalls == dict.fromkeys(KINDS, 0)
    for seconds in (0.125, 0.25):
        watchdog.watched("timer", hand.move)(seconds)
    assert watchdog.stalls == dict.fromkeys(KINDS, 0) | {"timer": 2}
    assert watchdog.stalled_s["timer"] == 0.375
    assert watchdog.longest_s == 0.25


def test_each_slice_counts_alone_and_the_time_between_them_does_not() -> None:
    hand = Hand()
    watchdog = Watchdog(hand)

    def slices() -> Iterator[int]:
        for number, seconds in enumerate((0.0, 0.5, 0.0)):
            hand.move(seconds)
            yield number

    found = []
    for number in watchdog.steps("snapshot", slices()):
        found.append(number)
        hand.move(10)
    assert found == [0, 1, 2]
    assert watchdog.stalls["snapshot"] == 1
    assert watchdog.stalled_s["snapshot"] == 0.5


def test_an_injected_stall_is_seen_in_the_metrics() -> None:
    worker = Harness().worker
    watchdog = Watchdog()
    watchdog.watched("tick", time.sleep)(2 * LIMIT_S)
    found = CollectorRegistry()
    found.register(BrokerCollector(worker, watchdog))
    lines = generate_latest(found).decode().splitlines()
    assert 'headrace_loop_stalls_total{what="tick"} 1.0' in lines
    assert 'headrace_loop_stalls_total{what="apply"} 0.0' in lines
    seconds = next(
        line for line in lines if line.startswith('headrace_loop_stalled_seconds_total{what="tick"}')
    )
    assert float(seconds.split()[-1]) >= 2 * LIMIT_S
