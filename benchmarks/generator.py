"""The load: mqbench (C, one thread, epoll), and `headrace bench` where mqbench cannot go (TLS)."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestant import SCRATCH, Target, compiled
from benchmarks.workload import Workload
from demo.services import PYTHON

PATIENCE_S = 120  # beyond the time of the run itself
LINE = re.compile(
    r"total (?P<rate>\d+) msg/s \| e2e p50 (?P<p50>[\d.]+) p99 (?P<p99>[\d.]+) .*?"
    r"lost (?P<lost>\d+) .*? broker cpu (?P<cores>[\d.]+) cores, .*?, (?P<per_core>\d+) msg/s/core"
)


@dataclass(frozen=True)
class Run:
    """One contestant under one workload, once. Messages are those in and those out, latencies publish to delivery."""

    workload: str
    contestant: str
    messages_per_s: int
    messages_per_cpu_s: int
    cpu_cores: float
    delivery_p50_ms: float
    delivery_p99_ms: float
    lost: int


class RunFailed(Exception):
    """The generator gave up; the text is what it said."""


def load(workload: Workload, contestant: str, target: Target, seconds: int, warm_up_s: int) -> Run:
    """Run one workload against a broker. Raises RunFailed, subprocess.TimeoutExpired."""
    command = headrace_bench if workload.tls else mqbench
    return command(workload, contestant, target, seconds, warm_up_s)


def mqbench(workload: Workload, contestant: str, target: Target, seconds: int, warm_up_s: int) -> Run:
    command = [str(compiled("mqbench")), "-h", target.host, "-p", str(target.port), "-c"]
    command += ["-m", workload.mode.replace("-", ""), "-n", str(workload.pairs), "-q", str(workload.qos)]
    command += ["-w", str(workload.window), "-s", str(workload.size), "-x", "mb" + secrets.token_hex(3)]
    command += ["-t", str(seconds), "-W", str(warm_up_s), "-b", target.pids]
    if workload.rate:
        command += ["-r", str(workload.rate)]
    return measured(command, workload.name, contestant, seconds + warm_up_s)


def measured(command: list[str], workload: str, contestant: str, seconds: int) -> Run:
    """What a call of mqbench finds, which takes so many seconds. Raises RunFailed, subprocess.TimeoutExpired."""
    return parsed(_output(command, seconds), workload, contestant)


def parsed(said: str, workload: str, contestant: str) -> Run:
    """What mqbench has printed. Raises RunFailed."""
    found = LINE.search(said)
    if found is None:
        raise RunFailed(f"cannot read what mqbench printed: {said}")
    return Run(
        workload, contestant, int(found["rate"]), int(found["per_core"]), float(found["cores"]),
        float(found["p50"]), float(found["p99"]), int(found["lost"]),
    )  # fmt: skip


def headrace_bench(workload: Workload, contestant: str, target: Target, seconds: int, warm_up_s: int) -> Run:
    scheme = "tls" if workload.tls else "tcp"
    report = SCRATCH / "headrace-bench.json"
    command = [*PYTHON, "headrace", "bench", "--url", f"{scheme}://{target.host}:{target.port}", "-c"]
    command += ["--insecure"] if workload.tls else []
    command += ["--mode", workload.mode, "-n", str(workload.pairs), "-q", str(workload.qos)]
    command += ["-w", str(workload.window), "-s", str(workload.size), "--rate", str(workload.rate)]
    command += ["-t", str(seconds), "--warm-up", str(warm_up_s), "--pid", target.pids]
    _output([*command, "--json", str(report)], seconds + warm_up_s)
    found = json.loads(Path(report).read_text(encoding="utf-8"))["result"]
    return Run(
        workload.name, contestant,
        round(found["sent_rate"] + found["received_rate"]), round(found["messages_per_cpu_second"]),
        round(found["broker_cpu_cores"], 2), found["delivery_p50_ms"], found["delivery_p99_ms"], found["lost"],
    )  # fmt: skip


def _output(command: list[str], seconds: int) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S + seconds, check=False)
    if done.returncode:
        raise RunFailed((done.stderr or done.stdout).strip() or f"exit status {done.returncode}")
    return done.stdout
