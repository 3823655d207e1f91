"""From runs to the table: the best run of each contestant, and the ratios between them.

The best of one is compared with the best of the other: on a shared machine the others measure the neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.generator import Run
from benchmarks.workload import Workload


@dataclass(frozen=True)
class Verdict:
    """One row of the table: the best run of each contestant, and headrace's ratio to the others."""

    workload: Workload
    best: dict[str, Run]

    @property
    def measured(self) -> str:
        """The contestant whose ratio the target is about."""
        return "headrace" if self.workload.against != "headrace" else "headrace+acl"

    def ratio_to(self, other: str) -> float | None:
        """Messages per broker CPU-second, ours by theirs; None when one of them has no run."""
        ours, theirs = self.best.get(self.measured), self.best.get(other)
        if ours is None or theirs is None or not theirs.messages_per_cpu_s:
            return None
        return round(ours.messages_per_cpu_s / theirs.messages_per_cpu_s, 2)

    @property
    def ratio(self) -> float | None:
        return self.ratio_to(self.workload.against)

    @property
    def reached(self) -> bool | None:
        target = self.workload.target
        return None if target is None or self.ratio is None else self.ratio >= target

    def as_row(self) -> dict[str, object]:
        return {
            "workload": self.workload.name,
            "title": self.workload.title,
            "target": self.workload.target,
            "against": self.workload.against,
            "ratios": {name: self.ratio_to(name) for name in self.best if name != self.measured},
        }


def verdict(workload: Workload, runs: list[Run]) -> Verdict:
    best: dict[str, Run] = {}
    for run in runs:
        if run.workload == workload.name and (
            run.contestant not in best or _better(workload, run, best[run.contestant])
        ):
            best[run.contestant] = run
    return Verdict(workload, best)


def _better(workload: Workload, run: Run, other: Run) -> bool:
    """At a fixed rate the latency decides, else the CPU time."""
    if workload.rate:
        return run.delivery_p99_ms < other.delivery_p99_ms
    return run.messages_per_cpu_s > other.messages_per_cpu_s
