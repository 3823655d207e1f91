"""What a benchmark prints and what it writes down."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import record


def test_a_result_is_printed_in_short_and_written_down_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    result = {"most": 24, "runs": [1, 2, 3]}
    record.show(result, long=("runs",))
    assert json.loads(capsys.readouterr().out) == {"most": 24}
    assert not list(tmp_path.iterdir())
    record.show(result, "worker_kill")
    assert json.loads(capsys.readouterr().out) == result
    [path] = (tmp_path / "results").iterdir()
    assert re.fullmatch(r"worker-kill-[0-9]{4}-[0-9]{2}-[0-9]{2}\.json", path.name)
    assert json.loads(path.read_text(encoding="utf-8")) == result


def test_options_of_its_own_stand_beside_record() -> None:
    parser = record.parser_of("worker_kill", "First line.\n\nMore.")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(["--record"])
    assert (options.record, options.rounds) == (True, 4)
    assert parser.description == "First line."
    assert "results/worker-kill-<date>.json" in parser.format_help()
