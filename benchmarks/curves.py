"""What does one more of anything cost, when there are ten of it and when there are a million? No curve may have a cliff.

    python -m benchmarks.curves --record                        every curve, 10 to 1 000 000: 15 minutes, 6 GB
    python -m benchmarks.curves --only receivers,topics --most 10000
    python -m benchmarks.curves --list

Each curve of `curve_loads.py` is a broker in this process, over links in memory and a journal that is durable at once,
that gets ten times as much of one thing again and again. The CPU time of a step is divided by its units: deliveries,
messages, subscriptions, bytes. From one size to the next the price of a unit may become CLIFF times higher: caches grow
cold, trees deeper. More is a cliff, and so is a step that takes longer than PATIENCE_S, beyond which a curve ends.
`--record` writes results/curves.json and curves.png; exit 1 where there is a cliff.

The other meter counts the lines of Python that a step runs, on the interpreted build, where it is the same each time: the
tests ask it for small sizes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.curve_loads import CURVES, Curve
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
CLIFF = 3.0
PATIENCE_S = 60.0
NOISE_S = 0.001  # a step shorter than this says nothing about its units
REPEATS = 3
MOST = 1_000_000

Meter = Callable[[Callable[[], object]], float]


@dataclass(frozen=True)
class Point:
    """One size of one curve: the price of a unit in nanoseconds, or in lines, and of how many."""

    size: int
    units: int
    per_unit: float
    seconds: float


@dataclass(frozen=True)
class Found:
    """One curve as it was measured."""

    name: str
    unit: str
    points: list[Point]
    cliffs: list[str]


def cpu_ns(step: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    step()
    return time.thread_time_ns() - began


def lines(step: Callable[[], object]) -> float:
    """Lines of Python that ran: nothing of the compiled build."""
    count = 0

    def local(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(local)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


def measure(curve: Curve, most: int, meter: Meter = cpu_ns, repeats: int = REPEATS) -> Found:
    """Sizes 10, 100, ... up to `most` or what the curve can take; the least of the repeats, where it can be repeated."""
    load = curve.make()
    points: list[Point] = []
    cliffs: list[str] = []
    size = 10
    while size <= min(most, curve.most):
        began = time.monotonic()
        load.grow(size)
        prices = []
        units = 0
        for _ in range(repeats if curve.repeatable else 1):
            step, units = load.step(size)
            prices.append(meter(step) / units)
            if time.monotonic() - began > PATIENCE_S:
                break
        taken = time.monotonic() - began
        points.append(Point(size, units, round(min(prices), 2), round(taken, 3)))
        if taken > PATIENCE_S:
            cliffs.append(f"{size:,}: took {taken:.0f} s")
            break
        size *= 10
    load.close()
    return Found(curve.name, curve.unit, points, cliffs + steps_up(points, meter is cpu_ns))


def steps_up(points: list[Point], is_time: bool = True) -> list[str]:
    """Where the price of a unit rises by more than CLIFF from a size to the next."""
    found = []
    for before, after in itertools.pairwise(points):
        short = is_time and min(before.per_unit * before.units, after.per_unit * after.units) < NOISE_S * 1e9
        if not short and after.per_unit > CLIFF * before.per_unit:
            times = after.per_unit / before.per_unit
            found.append(f"{before.size:,} to {after.size:,}: {times:.1f} times dearer")
    return found


def record(found: list[Found]) -> None:
    from benchmarks.curves_chart import draw

    result = {
        "question": __doc__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "meter": "CPU time, ns",
        "cliff": CLIFF,
        "curves": [asdict(one) for one in found],
    }
    (RESULTS / "curves.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(found, RESULTS / "curves.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="curves, with commas between them")
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--meter", choices=("cpu", "lines"), default="cpu")
    parser.add_argument("--record", action="store_true", help="write the figures and the picture down")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:20} per {curve.unit}, to {curve.most:,}" for name, curve in CURVES.items()))
        return 0
    names = options.only.split(",") if options.only else list(CURVES)
    if unknown := set(names) - set(CURVES):
        parser.error(f"no such curve: {', '.join(sorted(unknown))}")
    gc.disable()
    found = []
    for name in names:
        one = measure(CURVES[name], options.most, lines if options.meter == "lines" else cpu_ns)
        found.append(one)
        prices = " ".join(f"{point.per_unit:>10,.0f}" for point in one.points)
        print(f"{name:20} {one.unit:14} {prices}  {'; '.join(one.cliffs)}", flush=True)
        gc.collect()
    if options.record:
        record(found)
    return 1 if any(one.cliffs for one in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
