"""Do subscriptions and retained messages cost the same at a million as at a thousand?

    PYTHONPATH=src python -m benchmarks.matching [--sizes 1000,1000000]

Subscribe, match and unsubscribe one filter among so many, a tenth of them with `+` and a hundredth with `#`: the median
of ROUNDS rounds of BATCH each, on topics spread over all of them, none of which is remembered from before. Then a
subscription to `fleet/+/state` over as many retained messages: the longest page. Writes results/matching.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.machine import machine
from headrace.core.outbound.retained_replay import PAGE_MESSAGES
from headrace.core.ports.journal import JournalPort
from headrace.core.records.message import Message, message_flags
from headrace.core.state.retained import RetainedStore
from headrace.core.state.session import Session, Subscription, Target, merge
from headrace.core.state.subscription_tree import SubscriptionTree
from headrace.core.state.tenant import Tenant
from headrace.storage.memory import MemoryJournal

RESULT = Path(__file__).parent / "results" / "matching.json"
BATCH, ROUNDS, SESSIONS = 500, 40, 10_000
NOW_US = 1_790_000_000_000_000
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cost:
    """Microseconds of one operation; of the longest page of a wildcard over the retained messages, milliseconds."""

    size: int
    subscribe_us: float
    match_us: float
    unsubscribe_us: float
    retained_pages: int
    retained_page_median_ms: float
    retained_page_longest_ms: float


def topic_filter(number: int) -> str:
    if number % 10 == 0:
        return f"fleet/{number}/+/state"
    if number % 100 == 1:
        return f"site/{number}/#"
    return f"fleet/{number}/commands"


def topic(number: int) -> bytes:
    """One that the filter of this number matches."""
    return topic_filter(number).replace("+", "left").replace("#", "door/1").encode()


class Subscribers:
    """A tree with subscriptions 0 to `size`."""

    def __init__(self, size: int, journal: JournalPort) -> None:
        tenant = Tenant("default", journal)
        self._sessions = [Session(tenant, f"c{n}", n, 0, 0) for n in range(min(size, SESSIONS))]
        self._tree: SubscriptionTree[Target] = SubscriptionTree(merge)
        self._size = size
        for number in range(size):
            self.subscribe(number)

    def _session(self, number: int) -> Session:
        return self._sessions[number % len(self._sessions)]

    def subscribe(self, number: int) -> None:
        name = topic_filter(number)
        subscription = Subscription(self._session(number), name, 1, False, False, 0, 0, b"")
        self._tree.add(name, subscription)

    def unsubscribe(self, number: int) -> None:
        self._tree.remove(topic_filter(number), self._session(number))

    def measure(self) -> tuple[float, float, float]:
        """Microseconds of subscribe, match and unsubscribe."""
        rounds = [self._round(start) for start in range(ROUNDS)]
        subscribe, match, unsubscribe = (statistics.median(column) for column in zip(*rounds, strict=True))
        return round(subscribe, 2), round(match, 2), round(unsubscribe, 2)

    def _round(self, start: int) -> tuple[float, float, float]:
        new = range(self._size, self._size + BATCH)
        spread = [(start + at * 7919) % self._size for at in range(BATCH)]
        topics = [topic(number) for number in spread]
        subscribe = timed(self.subscribe, new)
        match = timed(self._tree.match, topics)
        return subscribe, match, timed(self.unsubscribe, new)


def timed(call: Callable[[Item], object], items: Sequence[Item]) -> float:
    """Microseconds of one call."""
    began = time.perf_counter()
    for item in items:
        call(item)
    return (time.perf_counter() - began) / len(items) * 1e6


def retained_pages(size: int) -> list[float]:
    """Milliseconds of each page of a wildcard over `size` retained messages."""
    store = RetainedStore()
    flags = message_flags(1, True, False, 4)
    for number in range(size):
        message = Message(NOW_US, flags, 1, 0, "default", b"", 7, b"fleet/%d/state" % number, b"", -1, b"on")
        message.offset = number
        store.apply(message)
    walk, pages = store.walk("fleet/+/state"), []
    while not walk.done:
        began = time.perf_counter()
        walk.take(PAGE_MESSAGES)
        pages.append((time.perf_counter() - began) * 1000)
    return pages


def measure(size: int) -> Cost:
    pages = retained_pages(size)
    found = Subscribers(size, MemoryJournal()).measure()
    return Cost(size, *found, len(pages), round(statistics.median(pages), 3), round(max(pages), 3))


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.matching", description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1000,1000000")
    options = parser.parse_args()
    gc.disable()
    costs = [measure(int(size)) for size in options.sizes.split(",")]
    for cost in costs:
        print(asdict(cost), flush=True)
    first, last = costs[0], costs[-1]
    ratios = {
        name: round(getattr(last, name) / getattr(first, name), 2)
        for name in ("subscribe_us", "match_us", "unsubscribe_us")
    }
    print(f"{last.size:,} beside {first.size:,}: {ratios}")
    result = {
        "question": __doc__,
        "machine": machine(),
        "costs": [asdict(c) for c in costs],
        "ratios": ratios,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
