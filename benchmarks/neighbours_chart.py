"""The picture of `neighbours.py`: the pair's p99 beside each flood, and how far the broker's memory grew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

if TYPE_CHECKING:
    from benchmarks.neighbours import Row

COLOURS = {False: "#0b6e99", True: "#d9a441"}
LABELS = {False: "disk as it is", True: "disk hangs once"}
LEAST_MS, LEAST_MB = 0.1, 0.1


def draw(rows: Sequence[Row], stall_s: float, path: Path) -> None:
    """Two columns of horizontal bars on logarithmic axes; a line is what is wanted, a cross a pair that was cut off."""
    names = list(dict.fromkeys(row.flood for row in rows))[::-1]
    figure, (latency, memory) = plt.subplots(
        1, 2, figsize=(11, 1 + 0.24 * len(names)), sharey=True, layout="constrained"
    )
    for stalled, place in ((False, 0.2), (True, -0.2)):
        mine = {row.flood: row for row in rows if row.stalled == stalled}
        at = [names.index(name) + place for name in mine]
        values = [p99(row) for row in mine.values()]
        latency.barh(at, values, 0.38, color=COLOURS[stalled], label=LABELS[stalled])
        cut = [position for position, row in zip(at, mine.values(), strict=True) if row.exchange is None]
        latency.plot([LEAST_MS] * len(cut), cut, "x", color="#b00020", clip_on=False)
        grown = [max(LEAST_MB, row.growth_mb) for row in mine.values()]
        memory.barh(at, grown, 0.38, color=COLOURS[stalled])
    latency.set_yticks(range(len(names)), names, fontsize=8)
    _finish(latency, "p99 of the two others, ms (publish to delivery or PUBACK, the later one)", LEAST_MS)
    _finish(memory, "resident memory of the broker above its start, MB", LEAST_MB)
    from benchmarks.neighbours import GROWTH_MB, P99_MS

    latency.axvline(P99_MS, color=COLOURS[False], linestyle=":", linewidth=1)
    latency.axvline(P99_MS + 1000 * stall_s, color=COLOURS[True], linestyle=":", linewidth=1)
    memory.axvline(GROWTH_MB, color="#5f6b76", linestyle=":", linewidth=1)
    latency.set_xlim(right=max(latency.get_xlim()[1], 2 * (P99_MS + 1000 * stall_s)))
    memory.set_xlim(right=max(memory.get_xlim()[1], 2 * GROWTH_MB))
    figure.legend(frameon=False, fontsize=8, loc="outside upper right", ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def p99(row: Row) -> float:
    """The later of delivery and PUBACK."""
    if row.exchange is None:
        return LEAST_MS
    return max(LEAST_MS, row.exchange.delivery.p99, row.exchange.puback.p99)


def _finish(axis: Axes, label: str, least: float) -> None:
    axis.set_xscale("log")
    axis.set_xlim(left=least)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
