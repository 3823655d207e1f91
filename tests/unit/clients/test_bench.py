"""`headrace bench` against mosquitto, and what it does when there is nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.clients.bench import Result, faults
from unit.clients.foreign_broker import free_port


def bench(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "bench", "--url", f"tcp://127.0.0.1:{port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "options",
    [
        ["-q", "1", "-w", "4", "-c"],
        ["-q", "2", "--protocol", "5"],
        ["-q", "0", "-w", "4"],
        ["-q", "1", "--mode", "fan-in"],
        ["-q", "1", "--mode", "fan-out"],
        ["-q", "1", "--rate", "500"],
    ],
    ids=" ".join,
)
def test_every_mode_counts_without_loss(port: int, tmp_path: Path, options: list[str]) -> None:
    report = tmp_path / "result.json"
    run = bench(port, "-n", "5", "-t", "0.3", "--warm-up", "0.1", "--json", str(report), *options)
    assert run.returncode == 0, run.stderr + run.stdout
    result = json.loads(report.read_text(encoding="utf-8"))["result"]
    assert result["sent"] > 0
    assert result["received"] == result["sent"] * (5 if "fan-out" in options else 1)
    assert (result["lost"], result["repeats"], result["reordered"]) == (0, 0, 0)
    if "-q 0" not in " ".join(options):
        assert result["acked"] == result["sent"]


def test_nobody_there_is_said_and_exits_1() -> None:
    run = bench(free_port(), "-n", "1", "-t", "0.1")
    assert run.returncode == 1
    assert len(run.stderr.strip().splitlines()) == 1


def test_an_unknown_mode_exits_2_and_names_the_option() -> None:
    run = bench(1, "--mode", "storm")
    assert run.returncode == 2
    assert "--mode" in run.stderr


def test_a_failed_run_says_which_count_was_wrong() -> None:
    assert faults(Result(lost=3, closed=1_200), qos=1) == "lost 3, connections closed 1,200"
    assert faults(Result(lost=3, reordered=2), qos=0) == "out of order 2"
    assert faults(Result(repeats=5), qos=2) == ""
