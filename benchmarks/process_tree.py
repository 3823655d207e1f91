"""A process and all that it has started: the CPU time they took, and holding them still for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def cpu_seconds(root: int) -> dict[str, float]:
    """User and system time by program name, with that of children that have ended and were waited for."""
    taken: defaultdict[str, float] = defaultdict(float)
    for process in members(root):
        try:
            times = process.cpu_times()
            taken[process.name()] += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return taken


def cpu_between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in sorted(after.items())}


def begin_peaks(root: int) -> None:
    """Let `peak_mb` begin anew: see proc(5), clear_refs."""
    for process in members(root):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak_mb(root: int) -> dict[str, int]:
    """The most memory since that a process had at any time: of the root (`driver`), and the largest by program name."""
    found: dict[str, int] = {}
    for process in members(root):
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        peak = next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)
        name = "driver" if process.pid == root else process.name()
        found[name] = max(found.get(name, 0), peak)
    return found


@contextmanager
def paused(root: int) -> Iterator[None]:
    """SIGSTOP now, SIGCONT when the block ends: the processes take no CPU time, as if they were not there."""
    held = members(root)
    for process in held:
        process.suspend()
    try:
        yield
    finally:
        for process in held:
            process.resume()


def members(root: int) -> list[psutil.Process]:
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]
