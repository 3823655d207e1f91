"""The picture of a run: what was answered and stored each second, and how long the answers took, around the kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

if TYPE_CHECKING:
    from run import Outcome

ANSWERED, STORED, DOWN = "#0b6e99", "#d9a441", "#f3d9dc"


def draw(outcome: Outcome, path: Path) -> None:
    begin = min(time_s for time_s, _ in outcome.answers)
    figure, (rates, times) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    for axis in (rates, times):
        axis.axvspan(outcome.killed_s - begin, outcome.ready_s - begin, color=DOWN, label="broker down")
    _rate(rates, [time_s - begin for time_s, _ in outcome.answers], ANSWERED, "answered by the broker")
    _rate(rates, [time_s - begin for time_s in outcome.stored], STORED, "stored by the service")
    rates.set_ylabel("openings a second", fontsize=8)
    points = [time_s - begin for time_s, _ in outcome.answers]
    times.plot(points, [max(0.1, took) for _, took in outcome.answers], ".", markersize=1, color=ANSWERED)
    times.set_yscale("log")
    times.set_ylabel("ms until the answer", fontsize=8)
    times.set_xlabel("seconds", fontsize=8)
    for axis in (rates, times):
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    rates.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rate(axis: Axes, moments: list[float], colour: str, label: str) -> None:
    counts = Counter(int(moment) for moment in moments)
    seconds = range(min(counts), max(counts) + 1)
    axis.step(seconds, [counts[second] for second in seconds], where="post", color=colour, label=label)
