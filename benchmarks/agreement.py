"""Do `headrace bench` and mqbench say the same about a broker?

    python -m benchmarks.agreement [--rounds 5] [--seconds 4] [--contestant headrace]

The same load by both, in turns, each against a broker started for it. Compared is the processor time that the broker
needs for a message: the best run of each, since a busy machine only ever adds to it. The two may differ by ALLOWED.
Writes results/agreement.json; exit 1 when they differ by more.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.contestant import OURS, running
from benchmarks.generator import headrace_bench, mqbench
from benchmarks.machine import machine
from benchmarks.workload import WORKLOADS, Workload

RESULT = Path(__file__).parent / "results" / "agreement.json"
NAMES = ("w1-100", "w16", "fan-in", "fan-out")
ALLOWED = 0.10


@dataclass(frozen=True)
class Compared:
    """One load: messages per CPU-second of the broker in every run, best first; `ratio` is the processor time of a
    message under `headrace bench` as a part of that under mqbench."""

    workload: str
    ratio: float
    headrace_bench: list[int]
    mqbench: list[int]


def compared(workload: Workload, contestant: str, rounds: int, seconds: int) -> Compared:
    ours, theirs = [
        sorted(rates, reverse=True)
        for rates in zip(
            *[in_turns(workload, contestant, seconds, turn) for turn in range(rounds)], strict=True
        )
    ]
    return Compared(workload.name, round(theirs[0] / ours[0], 3), ours, theirs)


def in_turns(workload: Workload, contestant: str, seconds: int, turn: int) -> tuple[int, int]:
    """Messages per CPU-second under both, `headrace bench` and mqbench; who is first changes from turn to turn."""
    rates = {}
    for generator in [headrace_bench, mqbench] if turn % 2 else [mqbench, headrace_bench]:
        with running(contestant) as target:
            rates[generator] = generator(workload, contestant, target, seconds, 1).messages_per_cpu_s
    return rates[headrace_bench], rates[mqbench]


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
