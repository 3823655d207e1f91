"""The progress line: plain where stderr is no terminal, with the rate of the last seconds."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace_spark.base import progress as module
from headrace_spark.base.progress import Progress, ProgressLine


def lines(
    monkeypatch: pytest.MonkeyPatch, *shown: Progress, interval_s: float = 0.0, terminal: bool = False
) -> str:
    monkeypatch.setattr(module, "PLAIN_INTERVAL_S", interval_s)
    out = io.StringIO()
    with ProgressLine("archive", Console(file=out, width=200, force_terminal=terminal)) as line:
        line.say("starting Spark")
        for progress in shown:
            line.show(progress)
    return out.getvalue()


def test_plain_lines_and_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(monkeypatch, Progress(1000, 1000, 5000, 1.0), Progress(6000, 6000, 0, 2.0))
    assert text.splitlines() == [
        "archive: starting Spark",
        "archive: 1,000 rows, 1,000 rows/s, lag 5,000",
        "archive: 6,000 rows, 3,000 rows/s, lag 0",
        "archive: done: 6,000 rows, 3,000 rows/s, lag 0",
    ]


def test_the_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [Progress(100 * second, 0, 0, float(second)) for second in range(1, 60)]
    assert "100 rows/s" in lines(monkeypatch, *shown, Progress(5900, 0, 0, 80.0)).splitlines()[-3]
    assert (
        lines(monkeypatch, *shown, Progress(5900, 0, 0, 80.0)).splitlines()[-2].endswith(" 0 rows/s, lag 0")
    )


def test_plain_lines_are_not_more_frequent_than_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(monkeypatch, *[Progress(n, n, 0, n / 2) for n in range(1, 50)], interval_s=3600)
    assert len(text.splitlines()) == 3


def test_a_terminal_gets_one_line_and_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(monkeypatch, Progress(7, 7, 0, 1.0), terminal=True)
    assert "archive: 7 rows, 7 rows/s, lag 0" in text
    assert (
        text.splitlines()[-1]
        .replace("\x1b[1;36m", "")
        .replace("\x1b[0m", "")
        .endswith("done: 7 rows, 7 rows/s, lag 0")
    )
