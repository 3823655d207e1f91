"""The picture of a run: messages a second and end-to-end latency over time, with both outages shaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from demo.evidence import Evidence

BIN_S = 0.5
PUBLISHED, DELIVERED, MEDIAN = "#7a8899", "#0b6e99", "#b3411e"


class Outage(NamedTuple):
    """Something was away from `start` to `end` (unix times)."""

    what: str
    colour: str
    start: float
    end: float


def draw(evidence: Evidence, outages: Iterable[Outage], title: str, path: Path) -> None:
    """Write the PNG. Needs at least one delivery."""
    origin = min(evidence.sent.values())
    arrived = np.array([delivery.time - origin for delivery in evidence.deliveries])
    latency_ms = np.array([d.time - evidence.sent[d.reading] for d in evidence.deliveries]) * 1e3
    end = max(arrived.max(), *(outage.end - origin for outage in outages))
    bins = np.arange(0.0, end + 2 * BIN_S, BIN_S)
    figure, (rate, latency) = plt.subplots(2, 1, sharex=True, figsize=(11, 6.5), layout="constrained")
    acknowledged = np.array(list(evidence.acknowledged.values())) - origin
    for times, label, colour in ((acknowledged, "published", PUBLISHED), (arrived, "delivered", DELIVERED)):
        rate.stairs(np.histogram(times, bins)[0] / BIN_S, bins, label=label, color=colour, linewidth=1.6)
    rate.set_ylabel("messages a second")
    rate.set_title(title)
    latency.scatter(arrived, latency_ms, s=3, alpha=0.25, color=DELIVERED, linewidths=0, label="one delivery")
    middles, medians = _medians(arrived, latency_ms, bins)
    latency.plot(middles, medians, color=MEDIAN, linewidth=1.6, label=f"median over {BIN_S} s")
    latency.set_yscale("log")
    latency.set_ylabel("end to end, ms")
    latency.set_xlabel("seconds since the first reading")
    for axes in (rate, latency):
        for outage in outages:
            axes.axvspan(
                outage.start - origin, outage.end - origin, color=outage.colour, alpha=0.18, label=outage.what
            )
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _medians(times: np.ndarray, values: np.ndarray, bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each bin and its median; NaN where a bin is empty, which breaks the line there."""
    which = np.digitize(times, bins)
    per_bin = (values[which == index] for index in range(1, len(bins)))
    return bins[:-1] + BIN_S / 2, np.array([np.median(part) if len(part) else np.nan for part in per_bin])
