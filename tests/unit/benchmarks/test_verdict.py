"""From runs to ratios: the best of one beside the best of the other."""

from __future__ import annotations

from benchmarks.generator import Run
from benchmarks.verdict import verdict
from benchmarks.workload import WORKLOADS, Workload


def run(contestant: str, per_cpu_s: int, p99_ms: float = 1.0, workload: str = "w") -> Run:
    return Run(workload, contestant, 1000, per_cpu_s, 0.1, 0.5, p99_ms, 0)


def test_the_best_run_of_each_is_compared() -> None:
    runs = [run("headrace", 100), run("headrace", 300), run("mosquitto", 100), run("mosquitto", 90)]
    row = verdict(Workload("w", "", target=2.0), runs)
    assert (row.ratio, row.reached) == (3.0, True)
    assert row.as_row()["ratios"] == {"mosquitto": 3.0}


def test_a_fixed_rate_is_judged_by_latency() -> None:
    runs = [run("headrace", 100, 5.0), run("headrace", 50, 2.0)]
    assert verdict(Workload("w", "", rate=100), runs).best["headrace"].delivery_p99_ms == 2.0


def test_access_control_is_compared_with_headrace_itself() -> None:
    workload = next(workload for workload in WORKLOADS if workload.name == "acl")
    runs = [run("headrace", 200, workload="acl"), run("headrace+acl", 100, workload="acl")]
    row = verdict(workload, runs)
    assert (row.ratio, row.reached) == (0.5, False)


def test_who_did_not_run_has_no_ratio() -> None:
    row = verdict(Workload("w", "", target=2.0), [run("headrace", 100)])
    assert (row.ratio, row.reached) == (None, None)
