"""The first minute of somebody new: from nothing to the first message, the size of what was installed, start to `ready`.

    python -m benchmarks.first_hour [--wheel build/wheel/headrace-*.whl] [--python python3.12] [--runs 5] [--record]

A fresh environment, pip without its cache of packages it built or fetched before (`--cache`: with it), `headrace serve`,
one subscriber and one message of QoS 1, all as the quickstart has them. Then the broker is started `--runs` times on
a fresh data directory, and once more on the one that it left. `--record` writes results/first-hour.json.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.machine import machine
from headrace.testing.ports import free_port

RESULT = Path(__file__).parent / "results" / "first-hour.json"
WHEEL = "build/wheel/headrace-*.whl"
FIRST_MESSAGE_S, INSTALLED_MB, READY_S = 60.0, 70.0, 0.3  # wanted
TIMEOUT_S = 600


def seconds(*command: object, cwd: Path) -> float:
    """How long a command takes that must not fail."""
    began = time.perf_counter()
    subprocess.run(
        [str(part) for part in command], cwd=cwd, check=True, timeout=TIMEOUT_S, env=_environment()
    )
    return time.perf_counter() - began


def _environment() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "HEADRACE", "VIRTUAL"))
    }


class Broker:
    """`headrace serve` of an environment; `ready_s` is how long its start took, `cpu_s` what CPU time that was."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.port = free_port()
        serve = [str(command), "serve", "--listen", f"tcp://127.0.0.1:{self.port}"]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            serve, cwd=folder, env=_environment(), stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        said = next((line for line in self._process.stderr if " ready " in line), None)
        self.ready_s = time.perf_counter() - began
        if said is None:
            raise SystemExit("first_hour: the broker has ended before it was ready")
        self.cpu_s = _cpu_s(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT_S)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_message(python: str, wheel: Path, folder: Path, cache: bool) -> dict[str, float]:
    """What each step from nothing to the first message takes, in seconds."""
    bin_folder = folder / "env/bin"
    pip = [
        bin_folder / "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        *([] if cache else ["--no-cache-dir"]),
    ]
    steps = {
        "environment_s": seconds(python, "-m", "venv", folder / "env", cwd=folder),
        "pip_install_s": seconds(*pip, wheel, cwd=folder),
    }
    with Broker(bin_folder / "headrace", folder) as broker:
        steps["first_start_s"] = broker.ready_s
        options = ("--url", f"tcp://127.0.0.1:{broker.port}", "-t", "plant/boiler", "-q", "1")
        steps["publish_s"] = seconds(bin_folder / "headrace", "pub", *options, "-m", "71.5", "-r", cwd=folder)
        steps["receive_s"] = seconds(
            bin_folder / "headrace", "sub", *options, "-C", "1", "-W", "60", cwd=folder
        )
    return steps | {"total_s": sum(steps.values())}


def installed_mb(folder: Path) -> float:
    """What pip put into the environment, compiled files of Python included; without pip and setuptools themselves."""
    packages = next((folder / "env/lib").iterdir()) / "site-packages"
    tools = ("pip", "setuptools", "pkg_resources", "_distutils", "distutils")
    files = [
        file
        for file in packages.rglob("*")
        if file.is_file() and not file.relative_to(packages).parts[0].startswith(tools)
    ]
    return sum(file.stat().st_size for file in files) / 1e6


def starts(command: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Start to `ready`, again and again."""
    taken, cpu = [], []
    for number in range(runs):
        fresh = folder / f"start-{number}"
        fresh.mkdir()
        with Broker(command, fresh) as broker:
            taken.append(round(broker.ready_s, 3))
            cpu.append(broker.cpu_s)
    return {
        "ready_s": taken,
        "ready_best_s": min(taken),
        "ready_median_s": statistics.median(taken),
        "ready_cpu_s": min(cpu),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", default=WHEEL)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    wheels = sorted(glob.glob(options.wheel))
    if not wheels:
        parser.error(f"no wheel {options.wheel}: make setup builds one")
    with tempfile.TemporaryDirectory(prefix="headrace-first-") as name:
        folder = Path(name)
        steps = first_message(options.python, Path(wheels[-1]).absolute(), folder, options.cache)
        found = {
            "machine": {key: value for key, value in machine().items() if key != "build"},  # of this process
            "wheel": Path(wheels[-1]).name,
            "pip_cache": options.cache,
            "niceness": os.nice(0),
            "steps": {key: round(value, 2) for key, value in steps.items()},
            "installed_mb": round(installed_mb(folder), 1),
            **starts(folder / "env/bin/headrace", folder, options.runs),
        }
    print(json.dumps(found, indent=2))
    print(f"first message after {steps['total_s']:.1f} s, wanted {FIRST_MESSAGE_S:g}")
    print(f"installed {found['installed_mb']} MB, wanted {INSTALLED_MB:g}")
    print(f"ready after {found['ready_best_s']} s (best of {options.runs}), wanted {READY_S:g}")
    if options.record:
        RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
