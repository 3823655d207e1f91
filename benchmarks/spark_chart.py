"""The figures of the Spark pipeline as one picture: how many times better than what is asked of it, 1 is just reached.

    python -m benchmarks.spark_chart

Reads the largest recorded run of each kind in results/ and writes results/spark.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent / "results"
REACHED, MISSED = "#0b6e99", "#c0504d"
LEAST_MOVE = 1.0  # per cent: below it, and below nothing, the bar would say no more

Bar = tuple[str, str, float]  # what, the figure in words, times better than asked


def recorded(kind: str) -> dict[str, Any] | None:
    """The run with the most messages. `kind`: how the names of its results begin, or a pattern for them."""
    names = f"{kind}.json" if "*" in kind else f"{kind}-*.json"
    crowds = set() if "*" in kind else set(RESULTS.glob(f"{kind}-*x*.json"))
    paths = set(RESULTS.glob(names)) - crowds
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(paths)]
    return max(found, key=lambda result: int(result["messages"]), default=None)


def archive(result: dict[str, Any]) -> list[Bar]:
    rate, times = result["best, rows a second"], result["times Spark's Kafka source"]
    names = {name: name for name in rate if name != "kafka"} | {
        "headrace-journal": "our source, Spark's sink"
    }
    return [
        bar
        for contestant, name in names.items()
        for asked_times, asked in [(2.4, 500_000) if "job" in contestant else (1.5, 200_000)]
        for bar in (
            (
                f"{name}: beside Spark's Kafka source",
                f"{times[contestant]:.2f}x",
                times[contestant] / asked_times,
            ),
            (name, f"{rate[contestant]:,} rows/s", rate[contestant] / asked),
        )
    ]


def skip(result: dict[str, Any]) -> list[Bar]:
    bars: list[Bar] = []
    for name in ("time, 1 %", "topic, 1 of 1000"):
        share, faster = result[name]["share of bytes"], result[name]["times faster"]
        bars.append((f"{name}: bytes read", f"{share:.2%}", 0.03 / max(share, 1e-4)))
        bars.append((f"{name}: beside the full scan", f"{faster:g}x faster", faster / 3))
    return bars


def live(result: dict[str, Any]) -> list[Bar]:
    alone, beside = result["puback_p99_ms, alone and beside the archive"]
    moved = (beside / alone - 1) * 100
    delay = result["from receive time to readable"]["p50_s"]
    return [
        ("live, 20 000 msg/s: PUBACK p99 moves", f"{moved:+.0f} %", 20 / max(moved, LEAST_MOVE)),
        ("live: row readable, p50", f"{delay:.1f} s", 5 / delay),
    ]


def jobs(result: dict[str, Any]) -> list[Bar]:
    rate = result["best, rows a second"]
    return [("clean + metrics", f"{rate:,} rows/s", rate / 86_000)]


def crowded(result: dict[str, Any]) -> list[Bar]:
    rate = result["best, rows a second"]
    return [(f"clean + metrics beside {result['sessions']:,} sessions", f"{rate:,} rows/s", rate / 60_000)]


def bucket(result: dict[str, Any]) -> list[Bar]:
    (times,) = result["times Spark's Kafka source"].values()
    return [("job archive into a bucket: beside Spark's Kafka source", f"{times:.2f}x", times / 0.7)]


def commits(result: dict[str, Any]) -> list[Bar]:
    name = max((name for name in result if name.startswith("after ")), key=lambda name: int(name.split()[1]))
    p99 = result[name]["p99_s"]
    return [(f"a commit {name}, p99", f"{p99:.2f} s", 1 / p99)]


KINDS = {
    "spark-archive": archive,
    "spark-bucket": bucket,
    "lake-commits": commits,
    "spark-skip": skip,
    "spark-live": live,
    "spark-jobs": jobs,
    "spark-jobs-*x*": crowded,
}


def main() -> None:
    bars: list[Bar] = []
    for kind, of in KINDS.items():
        if (result := recorded(kind)) is not None:
            bars += of(result)
    if not bars:
        sys.exit(f"no run is recorded in {RESULTS}: make bench-spark")
    bars.reverse()
    figure, axis = plt.subplots(figsize=(8.4, 0.8 + 0.42 * len(bars)), layout="constrained")
    colours = [REACHED if bar[2] >= 1 else MISSED for bar in bars]
    drawn = axis.barh(range(len(bars)), [bar[2] for bar in bars], color=colours)
    axis.bar_label(drawn, [bar[1] for bar in bars], padding=3, fontsize=8)
    axis.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    axis.axvline(1, color="#333333", linewidth=1)
    axis.set_xscale("log")
    axis.margins(x=0.15)
    axis.set_xlabel("times better than asked")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "spark.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
