"""The result of a benchmark: printed, and written to `results/` under the day it was measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def parser_of(name: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m benchmarks.NAME`, described by the first line of `text`, that knows `--record`."""
    parser = argparse.ArgumentParser(f"python -m benchmarks.{name}", description=(text or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help=f"write results/{_label(name)}-<date>.json")
    return parser


def show(result: Mapping[str, object], name: str = "", *, long: Collection[str] = ()) -> None:
    """Print a result without what is `long`; with the `name` of the benchmark write all of it down."""
    print(json.dumps({key: value for key, value in result.items() if key not in long}, indent=1))
    if name:
        write(result, name)


def write(result: Mapping[str, object], name: str) -> Path:
    """Write a result down; returns where it is."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{_label(name)}-{datetime.now(UTC):%Y-%m-%d}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def _label(name: str) -> str:
    return name.replace("_", "-")
