"""What a job says as JSON: an object a line, with the broker's names of fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from time import time

import pytest

from headrace_spark.base import logs
from headrace_spark.base.logs import LOG, ProgressLog, set_up
from headrace_spark.base.progress import Progress


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    handlers, level, propagate = LOG.handlers, LOG.level, LOG.propagate
    yield
    LOG.handlers, LOG.propagate = handlers, propagate
    LOG.setLevel(level)


def test_an_object_a_line_with_the_broker_s_names(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("archive", "info", as_json=True)
    LOG.warning("failed: %s", 'a "word"\nand a line', extra={"fields": {"reason": "query"}})
    LOG.debug("not this")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert abs(datetime.fromisoformat(found.pop("timestamp")).timestamp() - time()) < 60
    assert found == {
        "job": "archive",
        "reason": "query",
        "event": 'failed: a "word"\nand a line',
        "level": "warning",
    }


def test_text_is_the_event_alone(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("archive", "warning", as_json=False)
    LOG.warning("failed", extra={"fields": {"reason": "query"}})
    LOG.info("not this")
    assert capsys.readouterr().err == "failed\n"


def test_progress_is_told_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PLAIN_INTERVAL_S", 3600)
    set_up("archive", "info", as_json=True)
    with ProgressLog() as log:
        log.say("starting Spark")
        for second in range(1, 5):
            log.show(Progress(100 * second, second, 7, float(second)))
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in said] == ["starting Spark", "progress", "done"]
    assert {key: said[1][key] for key in ("rows", "rows_per_s", "offset", "lag")} == {
        "rows": 100,
        "rows_per_s": 100.0,
        "offset": 1,
        "lag": 7,
    }
    assert (said[2]["rows"], said[2]["elapsed_s"], said[2]["level"]) == (400, 4.0, "info")


def test_a_job_that_failed_says_nothing_of_having_done_anything(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("archive", "info", as_json=True)
    log = ProgressLog()
    log.show(Progress(1, 1, 0, 1.0))
    log.__exit__(ValueError, ValueError("x"), None)
    assert "done" not in capsys.readouterr().err


def test_without_being_set_up_warnings_are_still_said() -> None:
    assert not LOG.handlers
    assert LOG.getEffectiveLevel() <= logging.WARNING
