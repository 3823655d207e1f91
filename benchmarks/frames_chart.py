"""The picture of `frames.py`: times by the number of senders, and the rate of a slow queue by its consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLOURS = {"headrace": "#0b6e99", "activemq": "#9aa5b1", "plain": "#d9a441"}
LABELS = {
    "headrace": "headrace, frames",
    "activemq": "ActiveMQ Classic, STOMP",
    "plain": "plain server, one fdatasync a message",
}
PANELS = (
    ("burst", "total_ms", "all at once: ms until the last answer"),
    ("arrive", "mean_ms", "within one second: mean ms from connect to answer"),
)


def draw(result: dict[str, Any], path: Path) -> None:
    """Three panels; each point is the best of its runs."""
    figure, (burst, arrive, slow) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (mode, what, title) in zip((burst, arrive), PANELS, strict=True):
        for server in COLOURS:
            _line(axis, result["concurrent"], server, mode, what)
        axis.set_yscale("log")
        _finish(axis, "senders", title)
    burst.legend(frameon=False, fontsize=8)
    counts = sorted(map(int, result["consumers"]))
    rates = {int(count): rate for count, rate in result["consumers"].items()}
    slow.plot(counts, [rates[count] for count in counts], "o-", color=COLOURS["headrace"])
    slow.plot(counts, [rates[1] * count for count in counts], ":", color="#5f6b76", label="linear")
    slow.legend(frameon=False, fontsize=8)
    _finish(slow, "consumers of a slow queue, 20 ms a message", "messages a second")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _line(axis: Axes, rows: list[dict[str, Any]], server: str, mode: str, what: str) -> None:
    mine = [row for row in rows if (row["server"], row["mode"]) == (server, mode)]
    sizes = sorted({row["senders"] for row in mine})
    values = [min(row[what] for row in mine if row["senders"] == size) for size in sizes]
    axis.plot(sizes, values, "o-", color=COLOURS[server], label=LABELS[server])


def _finish(axis: Axes, below: str, title: str) -> None:
    axis.set_xlabel(below, fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.set_ylim(bottom=0 if axis.get_yscale() == "linear" else None)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
