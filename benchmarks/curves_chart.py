"""The picture of `curves.py`: what a unit costs at each size, beside what it costs at its cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from benchmarks.curves import Found

COLUMNS = 4


def draw(curves: Sequence[Found], path: Path) -> None:
    """A small picture for each curve, both axes logarithmic; a curve with a cliff is red."""
    rows = -(-len(curves) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(11, 1.9 * rows), sharex=True, layout="constrained", squeeze=False
    )
    for place, axis in enumerate(axes.flat):
        if place >= len(curves):
            axis.set_visible(False)
            continue
        curve = curves[place]
        sizes = [point.size for point in curve.points]
        prices = [max(point.per_unit, 0.01) for point in curve.points]
        axis.plot(sizes, prices, "o-", markersize=3, color="#b00020" if curve.cliffs else "#0b6e99")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(min(prices) / 2, max(max(prices) * 2, min(prices) * 20))
        axis.set_title(f"{curve.name}: ns a {curve.unit}", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
