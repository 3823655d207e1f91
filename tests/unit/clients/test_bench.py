"""`headrace bench` against mosquitto, and what it does when there is nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import free_port
from certificates import Authority
from unit.clients.foreign_broker import mosquitto


def bench(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "bench", "--url", f"tcp://127.0.0.1:{port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["-q", "1", "-w", "4", "-c"],
        ["-q", "2", "--protocol", "5"],
        ["-q", "0", "-w", "4"],
        ["-q", "1", "--mode", "fan-in"],
        ["-q", "1", "--mode", "fan-out"],
        ["-q", "1", "--rate", "500"],
        ["--mode", "backlog", "-q", "2", "--messages", "30"],
        ["--mode", "backlog", "-w", "8", "--messages", "50", "--protocol", "5"],
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


def test_a_storm_connects_everybody_again_and_again(port: int, tmp_path: Path) -> None:
    report = tmp_path / "result.json"
    run = bench(
        port, "--mode", "connect", "-n", "20", "-t", "0.3", "--pid", str(os.getpid()), "--json", str(report)
    )
    assert run.returncode == 0, run.stderr + run.stdout
    result = json.loads(report.read_text(encoding="utf-8"))["result"]
    assert result["sent"] == result["acked"] >= 20
    assert sum(count for _, count in result["acknowledgement_histogram"]) == result["acked"]
    assert result["acknowledgement_max_ms"] >= result["acknowledgement_p99_ms"] > 0
    assert result["broker_cpu_cores"] is not None


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    """A broker's port for TLS and for WebSocket, and who signed its certificate."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("localhost")
    websocket = free_port()
    settings = ["max_queued_messages 0", "user root", f"certfile {certificate}", f"keyfile {key}"]
    settings += [f"listener {websocket} 127.0.0.1", "protocol websockets"]
    with mosquitto(folder, *settings) as port:
        yield port, websocket, authority.ca


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        "p2p",
        "connect",
        *(pytest.param(mode, marks=pytest.mark.deep) for mode in ("fan-in", "fan-out", "backlog")),
    ],
)
def test_over_tls_and_websocket_too(secured: tuple[int, int, Path], mode: str) -> None:
    tls, websocket, ca = secured
    load = ["-n", "3", "-t", "0.2", "--warm-up", "0", "--messages", "10", "--mode", mode]
    for url in (
        ["--url", f"tls://127.0.0.1:{tls}", "--ca", str(ca)],
        ["--url", f"ws://127.0.0.1:{websocket}"],
    ):
        run = bench(0, *url, *load)
        assert run.returncode == 0, run.stderr + run.stdout


@pytest.mark.slow
def test_a_certificate_that_nobody_vouches_for_is_refused(secured: tuple[int, int, Path]) -> None:
    url = f"tls://127.0.0.1:{secured[0]}"
    run = bench(0, "--url", url, "-n", "1", "-t", "0.1")
    assert run.returncode == 1
    assert "certificate" in run.stderr
    run = bench(0, "--url", url, "--insecure", "-n", "1", "-t", "0.1")
    assert run.returncode == 0, run.stderr + run.stdout


def test_nobody_there_is_said_and_exits_1() -> None:
    run = bench(free_port(), "-n", "1", "-t", "0.1")
    assert run.returncode == 1
    assert len(run.stderr.strip().splitlines()) == 1


def test_an_unknown_mode_exits_2_and_names_the_option() -> None:
    run = bench(1, "--mode", "storm")
    assert run.returncode == 2
    assert "--mode" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--mode", "backlog", "-q", "0"], "--qos"),
        (["--mode", "connect", "--rate", "5"], "--rate"),
        (["--pid", "x"], "--pid"),
        (["--pid", "999999999"], "999999999"),
        (["--insecure"], "--insecure"),
        (["--url", "http://x"], "--url"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_exits_2_and_names_it(options: list[str], named: str) -> None:
    run = bench(1, *options)
    assert run.returncode == 2
    assert named in run.stderr
