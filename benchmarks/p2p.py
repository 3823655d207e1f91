"""QoS 1 between 100 pairs: messages in and out per broker CPU-second, headrace (fsync) beside Mosquitto.

    python -m benchmarks.p2p [--pairs 5] [--seconds 5] [--windows 1,16] [--label text]

The two take turns, each time on a fresh data directory. Writes results/p2p-<date>.json and results/p2p.png.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from demo.services import PYTHON, Service, free_port

HERE = Path(__file__).parent
RESULTS = HERE / "results"
GENERATOR = HERE / "mqbench"
SCRATCH = HERE.parent / "build" / "bench"
CLIENT_PAIRS, PAYLOAD_BYTES, WARM_UP_S = 100, 64, 2
COLOURS = {"headrace": "#0b6e99", "mosquitto": "#9aa5b1"}

LINE = re.compile(
    r"total (?P<rate>\d+) msg/s \| e2e p50 (?P<p50>[\d.]+) p99 (?P<p99>[\d.]+) .*?"
    r"lost (?P<lost>\d+) .*? broker cpu (?P<cores>[\d.]+) cores, .*?, (?P<per_core>\d+) msg/s/core"
)


@dataclass(frozen=True)
class Run:
    """One broker, one window, once."""

    broker: str
    window: int
    messages_per_s: int
    messages_per_cpu_s: int
    cpu_cores: float
    e2e_p50_ms: float
    e2e_p99_ms: float
    lost: int


def headrace(folder: Path, port: int) -> tuple[Service, str]:
    listen = ("--data-dir", str(folder / "data"), "--listen", f"tcp://127.0.0.1:{port}")
    return Service("headrace", folder / "log", *PYTHON, "headrace", "serve", *listen), "ready"


def mosquitto(folder: Path, port: int) -> tuple[Service, str]:
    """Debian's, with persistence on, nothing held back and nothing dropped."""
    settings = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "log_dest stderr",
        "set_tcp_nodelay true",
    ]
    settings += ["persistence true", f"persistence_location {folder}/", "max_queued_messages 0"]
    settings += ["max_inflight_messages 0", "user root"] if os.getuid() == 0 else ["max_inflight_messages 0"]
    (folder / "mosquitto.conf").write_text("\n".join(settings) + "\n", encoding="utf-8")
    return Service("mosquitto", folder / "log", _mosquitto(), "-c", str(folder / "mosquitto.conf")), "running"


BROKERS: dict[str, Callable[[Path, int], tuple[Service, str]]] = {
    "headrace": headrace,
    "mosquitto": mosquitto,
}


def measure(name: str, window: int, seconds: int) -> Run:
    """Start a broker on a fresh folder, load it, stop it."""
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    broker, sign = BROKERS[name](folder, port)
    try:
        broker.start_ready(30, sign)
        assert broker.process is not None
        load = [
            "-p",
            str(port),
            "-m",
            "p2p",
            "-n",
            str(CLIENT_PAIRS),
            "-q",
            "1",
            "-s",
            str(PAYLOAD_BYTES),
            "-c",
        ]
        load += ["-w", str(window), "-t", str(seconds), "-W", str(WARM_UP_S), "-b", str(broker.process.pid)]
        done = subprocess.run(
            [str(GENERATOR), *load], capture_output=True, text=True, timeout=60 + seconds, check=True
        )
    finally:
        broker.stop(30)
    found = LINE.search(done.stdout)
    if found is None:
        raise RuntimeError(f"cannot read what mqbench printed: {done.stdout}")
    return Run(
        name, window, int(found["rate"]), int(found["per_core"]), float(found["cores"]),
        float(found["p50"]), float(found["p99"]), int(found["lost"]),
    )  # fmt: skip


def build_generator() -> None:
    subprocess.run(["cc", "-O2", "-w", "-o", str(GENERATOR), str(HERE / "mqbench.c")], check=True)


def best(runs: list[Run], broker: str, window: int) -> Run:
    mine = [run for run in runs if run.broker == broker and run.window == window]
    return max(mine, key=lambda run: run.messages_per_cpu_s)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "headrace": version("headrace"),
        "build": _build(),
        "mosquitto": _mosquitto_version(),
        "load_average": os.getloadavg(),
    }


def draw(runs: list[Run], windows: list[int], path: Path) -> None:
    figure, axes = plt.subplots(
        1, len(windows), figsize=(4.2 * len(windows), 4), layout="constrained", squeeze=False, sharey=True
    )
    for axis, window in zip(axes[0], windows, strict=True):
        values = [best(runs, broker, window).messages_per_cpu_s / 1000 for broker in BROKERS]
        bars = axis.bar(list(BROKERS), values, color=[COLOURS[broker] for broker in BROKERS], width=0.6)
        axis.bar_label(bars, fmt="%.0fk")
        axis.set_title(f"window {window}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("thousand messages, in + out,\nper broker CPU-second")
    figure.suptitle("QoS 1, 100 pairs, 64 B; headrace: PUBACK after fdatasync", fontsize=10)
    figure.savefig(path, dpi=110)


def _build() -> str:
    from headrace.mqtt import protocol

    return "interpreted" if str(protocol.__file__).endswith(".py") else "compiled"


def _mosquitto() -> str:
    return shutil.which("mosquitto") or "/usr/sbin/mosquitto"


def _mosquitto_version() -> str:
    said = subprocess.run([_mosquitto(), "-h"], capture_output=True, text=True, check=False).stdout
    return said.split("\n", 1)[0].removeprefix("mosquitto version ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.p2p", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each broker and window")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--windows", default="1,16")
    parser.add_argument(
        "--label", default="", help="added to the name of the result, which is then not drawn"
    )
    options = parser.parse_args()
    windows = [int(window) for window in options.windows.split(",")]
    build_generator()
    runs: list[Run] = []
    began = time.monotonic()
    for window in windows:
        for turn in range(options.pairs):
            for broker in BROKERS:
                run = measure(broker, window, options.seconds)
                runs.append(run)
                figures = f"{run.messages_per_cpu_s:>9,} per CPU-second  {run.messages_per_s:>9,} per second"
                latency = f"p50 {run.e2e_p50_ms:.2f} p99 {run.e2e_p99_ms:.2f} ms  lost {run.lost}"
                at = f"{time.monotonic() - began:5.0f} s"
                print(
                    f"{at}  window {window:>2}  {turn + 1}/{options.pairs}  {broker:<10}{figures}  {latency}",
                    flush=True,
                )
    ratios = {}
    for window in windows:
        ours, theirs = (best(runs, broker, window).messages_per_cpu_s for broker in BROKERS)
        ratios[str(window)] = round(ours / theirs, 2)
        print(
            f"window {window}: headrace {ours:,}, mosquitto {theirs:,} per CPU-second: {ours / theirs:.2f}x"
        )
    RESULTS.mkdir(exist_ok=True)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    name = f"p2p-{today}" + (f"-{options.label}" if options.label else "")
    result = {
        "question": __doc__,
        "machine": machine(),
        "ratio_best_to_best": ratios,
        "runs": [asdict(r) for r in runs],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not options.label:
        draw(runs, windows, RESULTS / "p2p.png")
    print(f"result: benchmarks/results/{name}.json")
    return 1 if any(run.lost for run in runs if run.broker == "headrace") else 0


if __name__ == "__main__":
    sys.exit(main())
