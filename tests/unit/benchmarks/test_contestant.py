"""Peers by option, and the echo that everybody is held against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import contestant
from benchmarks.contestant import Target, peer, running
from benchmarks.generator import mqbench
from benchmarks.workload import Workload


def test_a_peer_is_name_address_and_processes() -> None:
    pid = os.getpid()
    assert peer(f"flashmq=127.0.0.1:1884,pid={pid}+{pid}") == (
        "flashmq",
        Target("127.0.0.1", 1884, f"{pid},{pid}"),
    )


@pytest.mark.parametrize("text", ["x", "x=host,pid=1", "x=host:1", "=h:1,pid=1", "floor=h:1,pid=1"])
def test_a_wrong_peer_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--peer"):
        peer(text)


def test_a_peer_without_a_process_is_refused() -> None:
    with pytest.raises(ValueError, match="no process"):
        peer("x=127.0.0.1:1,pid=999999999")


@pytest.mark.parametrize("name", ["floor", "floor+sync"])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_floor_carries_everything(
    name: str, qos: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestant, "SCRATCH", tmp_path)
    with running(name) as target:
        found = mqbench(Workload("w", "", pairs=5, qos=qos, window=4), name, target, 1, 0)
    assert found.lost == 0
