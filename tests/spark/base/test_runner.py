"""A job is run to its end or to a stop; what is said when Spark's process goes, played by a job that loses it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from headrace_spark.base import runner
from headrace_spark.base.errors import BadOption, EngineLost
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.runner import run_job
from headrace_spark.base.settings import RunSettings
from spark.conftest import settings_of

DONE = Progress(7, 7, 0, 1.0)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RunSettings:
    """Of a job that does something, and then finds its Spark gone, or about to go."""

    def run(_spark: object, _settings: object, _stop: Event, report: Report) -> Progress:
        report(DONE)
        raise getattr(request, "param", ConnectionRefusedError())

    played = SimpleNamespace(check=lambda _settings: None, run=run)
    monkeypatch.setattr(runner, "module_of", lambda _job: played)
    monkeypatch.setattr(runner, "open_session", lambda _settings: None)
    monkeypatch.setattr(runner, "close_session", lambda _spark: None)
    made: RunSettings = settings_of("archive", tmp_path, tmp_path)
    return made


def test_a_lost_spark_is_a_failure_that_names_the_likely_cause(settings: RunSettings) -> None:
    with pytest.raises(EngineLost, match=r"want of memory \(pipeline.driver_memory=1g\).*run the job again"):
        run_job("archive", settings, Event(), lambda _: None)


@pytest.mark.parametrize(
    "settings",
    [ConnectionRefusedError(), Py4JNetworkError(), Py4JError("str() failed"), PySparkException("shut down")],
    indirect=True,
)
def test_a_lost_spark_is_no_failure_when_everything_was_told_to_stop(settings: RunSettings) -> None:
    stop = Event()
    shown: list[Progress] = []

    def report(progress: Progress) -> None:
        shown.append(progress)
        stop.set()

    assert run_job("archive", settings, stop, report) == DONE
    assert shown == [DONE]


def test_a_wrong_master_is_said_before_anything_else(tmp_path: Path) -> None:
    wrong = settings_of("archive", tmp_path, tmp_path)
    object.__setattr__(wrong.spark, "master", "foo")
    with pytest.raises(BadOption, match="master='foo'"):
        run_job("archive", wrong, Event(), lambda _: None)
