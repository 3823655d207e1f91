"""What does it cost to ask the ACL whether a client may publish to a topic, receive it, or subscribe to a filter?

    python -m benchmarks.acl [--record]

An ACL of RULES lines for one user, in two shapes: `usual`, as a plant has them (topics by name, `+`, `#`, patterns with
the client id, some of them deny), and `worst`, where every line fits every topic up to its last level. Asked as the
broker asks, for a connection: `cached` a topic that was asked about before, `uncached` topics that never were, `deep`
topics of 64 KB that are not remembered, `subscribe` filters, which never are. Time of the processor, not of the clock,
the median of ROUNDS rounds of BATCH each. Wanted: cached below CACHED_US, uncached and subscribe below UNCACHED_US;
exit 1 beyond. `--record` writes results/acl.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.machine import machine
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.services.access import AccessSettings, FileAccess
from headrace.services.audit import Audit
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

RESULT = Path(__file__).parent / "results" / "acl.json"
RULES, BATCH, ROUNDS = 50, 500, 40
CACHED_US, UNCACHED_US = 1.0, 20.0
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cost:
    """Microseconds of the processor for one question."""

    rules: str
    cached_us: float
    uncached_us: float
    deep_us: float
    subscribe_us: float

    def beyond(self) -> list[str]:
        """What is not as wanted."""
        found = [] if self.cached_us < CACHED_US else [f"{self.rules}: cached {self.cached_us} us"]
        uncached = {"uncached": self.uncached_us, "subscribe": self.subscribe_us}
        return found + [f"{self.rules}: {what} {us} us" for what, us in uncached.items() if us >= UNCACHED_US]


def usual() -> list[str]:
    """Ten halls with a machine by name, all of a kind, a branch, something that is denied, and patterns for clients."""
    lines = ["user ada"]
    for hall in range(10):
        lines += [
            f"topic readwrite plant/{hall}/press/7/temperature",
            f"topic read plant/{hall}/+/+/state",
            f"topic read plant/{hall}/log/#",
            f"topic deny plant/{hall}/+/secret/#",
        ]
    return lines + [f"pattern readwrite clients/{kind}/%c/%u/#" for kind in range(RULES - 40)]


def worst() -> list[str]:
    """Six levels of which each is a name or `+`, in every combination until there are enough; all but the last fit."""
    shapes = (format(number, "06b") for number in range(RULES))
    filters = ["/".join("+" if bit == "1" else "plant" for bit in shape) for shape in shapes]
    return ["user ada", *(f"topic read {one}/x" for one in filters)]


def topic_of(rules: str, number: int) -> bytes:
    """One that nobody has asked about."""
    if rules == "usual":
        return b"plant/%d/press/%d/state" % (number % 10, number)
    return b"plant/plant/plant/plant/plant/plant/%d" % number


def deep_topic_of(rules: str, number: int) -> bytes:
    return (topic_of(rules, number) + b"/a" * 40_000)[:65_535]


def filter_of(rules: str, number: int) -> str:
    head = topic_of(rules, number).decode().rpartition("/")[0]
    return f"{head}/{number}/+/#" if number % 2 else f"{head}/#"


def asked(lines: Sequence[str]) -> tuple[FileAccess, MemoryLink]:
    """Access control with this ACL, and a connection of ada's."""
    with tempfile.NamedTemporaryFile("w", suffix=".acl", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        access = FileAccess(AccessSettings(acl_file=file.name), Audit(lambda *_, **__: None), Nowhere())
    broker = Worker(ManualScheduler(), Clock(), BrokerSettings()).own(0, MemoryJournal())
    link = MemoryLink(broker.worker)
    link.identity, link.client_id = broker.fold.tenant("default").identity_of("ada"), "press-7"
    return access, link


class Nowhere:
    """A loop that nobody waits for: no password is asked here."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        raise AssertionError

    call_soon = call_soon_threadsafe

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        raise AssertionError


def timed(call: Callable[[Item], object], items: Sequence[Item]) -> float:
    """Microseconds of the processor for one call."""
    began = time.thread_time()
    for item in items:
        call(item)
    return (time.thread_time() - began) / len(items) * 1e6


def measure(rules: str, lines: Sequence[str]) -> Cost:
    assert len(lines) == RULES + 1
    access, link = asked(lines)
    taken: list[tuple[float, ...]] = []
    for at in range(0, BATCH * ROUNDS, BATCH):
        numbers = range(at, at + BATCH)
        fresh = [topic_of(rules, number) for number in numbers]
        uncached = timed(lambda topic: access.may_receive(link, topic), fresh)
        cached = timed(lambda topic: access.may_receive(link, topic), fresh)
        deep = timed(lambda topic: access.may_receive(link, topic), [deep_topic_of(rules, at)] * 20)
        filters = [filter_of(rules, number) for number in numbers]
        taken.append((cached, uncached, deep, timed(lambda one: access.may_subscribe(link, one), filters)))
    access.close()
    return Cost(rules, *(round(statistics.median(column), 2) for column in zip(*taken, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.acl", description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    costs = [measure("usual", usual()), measure("worst", worst())]
    for cost in costs:
        print(asdict(cost), *cost.beyond())
    if options.record:
        result = {
            "question": __doc__,
            "machine": machine(),
            "wanted": {"cached_us": CACHED_US, "uncached_us": UNCACHED_US},
            "costs": [asdict(cost) for cost in costs],
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if any(cost.beyond() for cost in costs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
