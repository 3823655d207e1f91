"""Do `headrace bench` and mqbench say the same about a broker?

    python -m benchmarks.agreement [--rounds 5] [--seconds 4] [--contestant headrace]

The same load by both, in turns, each against a broker started for it. Compared is the processor time that the broker
needs for a message: the median of the ratios of neighbours, since a machine that slows down slows both. The two may
differ by ALLOWED. Writes results/agreement.json; exit 1 when they differ by more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.contestant import OURS, running
from benchmarks.generator import headrace_bench, mqbench
from benchmarks.machine import machine
from benchmarks.workload import WORKLOADS, Workload

RESULT = Path(__file__).parent / "results" / "agreement.json"
NAMES = ("w1-100", "w16", "fan-in", "fan-out")
ALLOWED = 0.10


def ratio(workload: Workload, contestant: str, seconds: int, bench_first: bool) -> float:
    """Processor time of a message under `headrace bench`, as a part of that under mqbench."""
    generators = [headrace_bench, mqbench] if bench_first else [mqbench, headrace_bench]
    rates = {}
    for generator in generators:
        with running(contestant) as target:
            rates[generator] = generator(workload, contestant, target, seconds, 1).messages_per_cpu_s
    return rates[mqbench] / rates[headrace_bench]


@dataclass(frozen=True)
class Compared:
    """The ratios of one load, and their median."""

    workload: str
    ratio: float
    ratios: list[float]


def compared(workload: Workload, contestant: str, rounds: int, seconds: int) -> Compared:
    ratios = sorted(round(ratio(workload, contestant, seconds, turn % 2 == 1), 3) for turn in range(rounds))
    return Compared(workload.name, statistics.median(ratios), ratios)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.agreement", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--contestant", choices=sorted(OURS), default="headrace")
    options = parser.parse_args()
    loads = [workload for workload in WORKLOADS if workload.name in NAMES]
    rows = []
    for load in loads:
        rows.append(compared(load, options.contestant, options.rounds, options.seconds))
        print(rows[-1], flush=True)
    result = {
        "question": __doc__,
        "machine": machine(),
        "load_average": os.getloadavg(),
        "contestant": options.contestant,
        "rows": [asdict(row) for row in rows],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(abs(row.ratio - 1) <= ALLOWED for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
