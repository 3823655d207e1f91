"""The chart of the README: each row as bars, relative to Mosquitto in the same run."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.verdict import Verdict

COLOURS = {"headrace": "#0b6e99", "mosquitto": "#9aa5b1", "floor+sync": "#d9a441"}
LABELS = {
    "headrace": "headrace, PUBACK after fdatasync",
    "mosquitto": "Mosquitto, PUBACK from memory",
    "floor+sync": "bare epoll echo in C with fdatasync",
}


def draw(verdicts: list[Verdict], path: Path) -> None:
    """Horizontal bars, Mosquitto = 1, on a logarithmic axis; rows at a fixed rate are left out."""
    rows = [v for v in verdicts if not v.workload.rate and "mosquitto" in v.best][::-1]
    figure, axis = plt.subplots(figsize=(8.4, 0.8 + 0.62 * len(rows)), layout="constrained")
    height = 0.8 / len(COLOURS)
    for place, name in enumerate(COLOURS):
        values = [relative(v, name) for v in rows]
        at = [row + (1 - place) * height for row in range(len(rows))]
        bars = axis.barh(at, values, height, color=COLOURS[name], label=LABELS[name])
        axis.bar_label(bars, [f"{value:.1f}x" if value else "" for value in values], padding=2, fontsize=8)
    axis.set_yticks(range(len(rows)), [v.workload.title for v in rows])
    axis.set_xscale("log")
    axis.set_xticks([1, 2, 5, 10, 20], ["1x", "2x", "5x", "10x", "20x"])
    axis.set_xlabel("messages in and out per CPU-second of the broker, Mosquitto = 1")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def relative(verdict: Verdict, name: str) -> float:
    """A contestant's messages per CPU-second by Mosquitto's; 0 where it did not run."""
    run = verdict.best.get(name)
    return run.messages_per_cpu_s / verdict.best["mosquitto"].messages_per_cpu_s if run else 0.0
