"""Does the broker's memory stay where it is? Half of the load that it can carry, for an hour, with an eye on its memory.

    python -m benchmarks.soak [--duration 3600] [--growth-mib 24]

The load is `headrace bench`: QoS 1, 100 persistent pairs at half of the rate that a closed loop of a few seconds reached.
Resident memory is read once a second. What the first quarter does not use yet is warm-up; from then on the highest of
the last quarter may be `--growth-mib` above the highest of the second one. Writes results/soak.json and soak.png; exit
1 when memory grew or a message was lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import Progress

from benchmarks.contestant import SCRATCH, Target, running
from benchmarks.machine import machine
from benchmarks.memory import resident_kib
from demo.services import PYTHON

RESULTS = Path(__file__).parent / "results"
PROBE_S, PAIRS, GROWTH_MIB = 5, 100, 24
PATIENCE_S = 120


def command(target: Target, report: Path, seconds: float, rate: float) -> list[str]:
    load = ["--url", f"tcp://{target.host}:{target.port}", "-n", str(PAIRS), "-c", "--rate", str(rate)]
    load += ["-w", "4", "-t", str(seconds), "--pid", target.pids, "--json", str(report)]
    return [*PYTHON, "headrace", "bench", *load]


def probe(target: Target) -> float:
    """Messages a second that a closed loop carries. Raises CalledProcessError."""
    report = SCRATCH / "soak-probe.json"
    subprocess.run(command(target, report, PROBE_S, 0), check=True, stdout=subprocess.DEVNULL)
    rate: float = json.loads(report.read_text(encoding="utf-8"))["result"]["sent_rate"]
    return rate


def soak(
    target: Target, rate: float, duration_s: float, progress: Progress
) -> tuple[list[float], dict[str, Any], str]:
    """Resident MiB second by second, what the generator found, and what it complained of."""
    report = SCRATCH / "soak.json"
    report.unlink(missing_ok=True)
    task = progress.add_task(f"{rate:,.0f} messages a second", total=duration_s)
    samples: list[float] = []
    began = time.monotonic()
    with subprocess.Popen(
        command(target, report, duration_s, rate),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as load:
        while load.poll() is None:
            samples.append(resident_kib(target) / 1024)
            progress.update(task, completed=time.monotonic() - began)
            if time.monotonic() - began > duration_s + PATIENCE_S:
                load.kill()
        assert load.stderr is not None
        said = load.stderr.read().strip() if load.returncode else ""
    result = json.loads(report.read_text(encoding="utf-8"))["result"] if report.exists() else {}
    return samples, result, said


def growth_mib(samples: list[float]) -> float:
    """From the highest of the second quarter to the highest of the last one."""
    quarter = len(samples) // 4
    if not quarter:
        raise ValueError(f"{len(samples)} samples are too few to say whether memory grows")
    return max(samples[-quarter:]) - max(samples[quarter : 2 * quarter])


def draw(samples: list[float], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    axis.plot([second / 60 for second in range(len(samples))], samples, color="#0b6e99")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("minutes")
    axis.set_ylabel("resident MiB")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--duration", type=float, default=3600, help="seconds")
    parser.add_argument("--growth-mib", type=float, default=GROWTH_MIB, help="more than this fails")
    options = parser.parse_args()
    console = Console()
    with (
        running("headrace") as target,
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        rate = probe(target) / 2
        samples, found, said = soak(target, rate, options.duration, progress)
    grown = growth_mib(samples)
    result = {
        "question": __doc__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "duration_s": options.duration,
        "rate": round(rate),
        "growth_mib": round(grown, 1),
        "bound_mib": options.growth_mib,
        "bench": {name: value for name, value in found.items() if not isinstance(value, list)},
        "resident_mib": [round(sample, 1) for sample in samples],
    }
    (RESULTS / "soak.json").write_text(json.dumps(result, indent=None) + "\n", encoding="utf-8")
    draw(samples, RESULTS / "soak.png")
    console.print(
        f"{rate:,.0f} messages a second: {samples[-1]:.1f} MiB at the end, grown by {grown:.1f} MiB"
    )
    if said:
        console.print(said, style="red")
    if grown > options.growth_mib:
        console.print(f"memory grew by more than {options.growth_mib} MiB", style="red")
    return 1 if said or grown > options.growth_mib else 0


if __name__ == "__main__":
    raise SystemExit(main())
