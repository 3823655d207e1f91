"""A job is run to its end or to a stop; what is said when Spark's process goes, played by a job that loses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from headrace_spark.base import runner
from headrace_spark.base.errors import BadOption, EngineLost, JournalRefused, JournalUnreachable, QueryFailed
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.runner import run_job, run_through_outages
from headrace_spark.base.settings import RunSettings
from headrace_spark.base.stopping import Stopped
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


@pytest.mark.parametrize("settings", [PySparkException("table away\n\tat org.apache.spark")], indirect=True)
def test_what_spark_says_of_a_failure_is_one_line(settings: RunSettings) -> None:
    with pytest.raises(QueryFailed, match=r"^table away$"):
        run_job("archive", settings, Event(), lambda _: None)


def test_a_wrong_master_is_said_before_anything_else(tmp_path: Path) -> None:
    wrong = settings_of("archive", tmp_path, tmp_path)
    object.__setattr__(wrong.spark, "master", "foo")
    with pytest.raises(BadOption, match="master='foo'"):
        run_job("archive", wrong, Event(), lambda _: None)


class Played:
    """A job that ends as it is told to, once for each beginning, and a query that it leaves running."""

    def __init__(self, *ends: Exception | Progress) -> None:
        self.ends = list(ends)
        self.stopped = 0
        self.streams = SimpleNamespace(active=[self])

    def run(self, _spark: object, _settings: object, _stop: Event, report: Report) -> Progress:
        report(DONE)
        end = self.ends.pop(0)
        if isinstance(end, Progress):
            return end
        raise end

    def stop(self) -> None:
        self.stopped += 1


def played_through(job: Played, settings: RunSettings, stop: Event) -> Progress | None:
    return run_through_outages(job, job, settings, stop, lambda _: None)  # type: ignore[arg-type]


AWAY = JournalUnreachable("headrace://h:1 does not answer")


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSettings:
    monkeypatch.setattr(runner, "_PAUSE_S", (0.001, 0.002))
    made: RunSettings = settings_of("archive", tmp_path, tmp_path, follow=True)
    return made


def test_a_job_that_follows_begins_anew_when_its_broker_is_back(
    following: RunSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Exception | None] = [AWAY, AWAY, None, None]

    def look(_settings: object, _patience: object) -> None:
        found = looks.pop(0)
        if found is not None:
            raise found

    caplog.set_level("INFO", "headrace.pipeline")
    monkeypatch.setattr(runner, "journals_of", look)
    job = Played(AWAY, QueryFailed("broker", is_ours=True, is_outage=True), DONE)
    assert played_through(job, following, Event()) == DONE
    assert (job.ends, looks, job.stopped) == ([], [], 2)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "headrace://h:1 does not answer; waiting until it does"
    assert [line.startswith("the broker answers again, after") for line in said] == [False, True, False, True]


@pytest.mark.parametrize(
    "error", [JournalRefused("token"), QueryFailed("x", is_ours=True), BadOption("a", 1, "b")]
)
def test_what_waiting_does_not_mend_ends_the_job(following: RunSettings, error: Exception) -> None:
    with pytest.raises(type(error)):
        played_through(Played(error), following, Event())


def test_a_token_that_is_taken_away_meanwhile_ends_the_waiting(
    following: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_settings: object, _patience: object) -> None:
        raise JournalRefused("this is not the token")

    monkeypatch.setattr(runner, "journals_of", look)
    with pytest.raises(JournalRefused, match="not the token"):
        played_through(Played(AWAY), following, Event())


def test_a_job_that_does_not_follow_fails(following: RunSettings) -> None:
    with pytest.raises(JournalUnreachable):
        played_through(Played(AWAY), replace(following, follow=False), Event())


def test_a_stop_ends_the_waiting(following: RunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Event()

    def look(_settings: object, _patience: object) -> None:
        stop.set()
        raise AWAY

    monkeypatch.setattr(runner, "journals_of", look)
    assert played_through(Played(AWAY), following, stop) is None


def test_a_job_that_was_taken_out_of_a_request_is_stopped(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Event()

    def run(_spark: object, _settings: object, _stop: Event, report: Report) -> Progress:
        report(DONE)
        stop.set()
        raise Stopped

    monkeypatch.setattr(runner, "module_of", lambda _job: SimpleNamespace(check=lambda _: None, run=run))
    assert run_job("archive", settings, stop, lambda _: None) == DONE
