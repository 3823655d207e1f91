"""Notebooks and the queries of the how-to run as they are written, on a lake with known figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from spark.lakes import EVIL, small_lake

ROOT = Path(__file__).parents[2]


def cells(notebook: Path) -> list[str]:
    """The code of a notebook, which is JSON."""
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(code: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for part in code:
        exec(compile(part, "<example>", "exec"), names)
    return names


def test_the_lake_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_LAKE", str(small_lake(tmp_path)))
    mpl.use("Agg")
    names = run(cells(ROOT / "examples" / "lake-by-hand.ipynb"))
    assert names["rates"].per_second.tolist()[-2:] == [2.0, 0.5]
    assert names["usage"].messages.sum() == 1150
    assert names["accuracy"] == 0.99
    assert names["percentiles"] == {50: 1.0, 95: 1.0, 99: 500.0}
    assert names["online"].set_index("client_id").online.to_dict() == {"a": True, "b": False, "c": False}


def test_the_queries_of_the_how_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_lake(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "measure-and-report.md").read_text(encoding="utf-8")
    first = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names = run([first])
    assert names["accuracy"].fetchall() == [(0.99,)]
    assert [(row[0], row[2]) for row in names["bills"].fetchall()] == [(EVIL, 121), ("default", 120)]
