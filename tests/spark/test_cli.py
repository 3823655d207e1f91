"""`headrace pipeline`: options, exit codes, and status without Spark."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.commands.pipeline import job_settings, pipeline, stop_on_signals
from headrace.config import InvalidKey, load
from headrace_spark.base import logs, runner
from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.settings import RunSettings
from headrace_spark.jobs import JOBS, module_of
from spark.conftest import Writer
from spark.journals import mixed


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(pipeline, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def _keep_signal_handlers() -> object:
    saved = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The jobs that were started, with their settings, instead of starting them."""
    seen: list[tuple[str, Any]] = []

    def run_job(job: str, settings: object, stop: object, report: object) -> Progress:
        seen.append((job, settings))
        return Progress(0, 0, 0, 0.0)

    monkeypatch.setattr(runner, "run_job", run_job)
    return seen


def test_a_job_is_told_what_the_configuration_says(started: list[tuple[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(
        'data_dir = "d"\n[pipeline]\nlake = "l"\ntrigger_s = 3\n[pipeline.archive]\nconsumer = "c"\n'
    )
    options = (
        "--config",
        str(file),
        "--set",
        "pipeline.archive.records_per_trigger_max=7",
        "--lake",
        "other",
    )
    assert run("run", "archive", *options)[0] == 0
    job, settings = started[0]
    assert (job, settings.data_dir, settings.lake, settings.trigger_s) == (
        "archive",
        Path("d"),
        Path("other"),
        3,
    )
    assert (settings.consumer, settings.records_per_trigger_max, settings.follow) == ("c", 7, False)
    assert (settings.spark.master, settings.spark.app_name) == ("local[*]", "headrace archive")


def test_archive_hands_its_options_on(started: list[tuple[str, Any]]) -> None:
    assert run("archive", "--data-dir", "d", "--lake", "l")[0] == 0
    assert run("archive", "--data-dir", "d", "--lake", "l", "--available-now")[0] == 0
    options = ("--master", "local[1]", "--consumer", "c", "--trigger", "2.5", "--max-records", "7")
    assert (
        run("archive", "--data-dir", "d", "--lake", "l", "--follow", "--no-fail-on-data-loss", *options)[0]
        == 0
    )
    assert started[0] == started[1]
    settings = started[2][1]
    assert (settings.follow, settings.consumer, settings.trigger_s) == (True, "c", 2.5)
    assert (settings.records_per_trigger_max, settings.fail_on_data_loss) == (7, False)
    assert settings.spark.master == "local[1]"


def test_a_lake_by_its_url_and_keys_of_sparks(started: list[tuple[str, Any]]) -> None:
    options = ("--conf", "spark.hadoop.fs.s3a.endpoint=http://h:1/?a=b", "--set", 'pipeline.spark={"a"="b"}')
    assert run("archive", "--data-dir", "d", "--lake", "s3a://bucket/lake/", *options)[0] == 0
    settings = started[0][1]
    assert settings.lake == LakeUrl("s3a://bucket/lake")
    assert settings.spark.extra == {"a": "b", "spark.hadoop.fs.s3a.endpoint": "http://h:1/?a=b"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("archive", "--lake", "s3://b/l"), "what speaks like it: s3a://"),
        (("archive", "--conf", "spark.a"), "KEY=VALUE is needed"),
    ],
)
def test_wrong_use_of_urls_exits_with_2(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", *options], capture_output=True, text=True
    )
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_publish_looks_for_rows_more_often_than_tables_get_versions() -> None:
    given = load(None, ["pipeline.trigger_s=5"])
    assert [job_settings(job, load()).trigger_s for job in ("archive", "publish")] == [10.0, 1.0]
    assert [job_settings(job, given).trigger_s for job in ("archive", "publish")] == [5.0, 1.0]


def test_every_job_has_what_the_runner_asks_for() -> None:
    for job in JOBS:
        module = module_of(job)
        assert issubclass(module.Settings, RunSettings)
        assert callable(module.check)
        assert callable(module.run)
        assert isinstance(job_settings(job, load()), module.Settings)


def test_a_bad_key_exits_with_2_and_is_named() -> None:
    """As the whole command says it: the group alone leaves the exception to it."""
    command = [
        sys.executable,
        "-m",
        "headrace",
        "pipeline",
        "run",
        "archive",
        "--set",
        "pipeline.archive.consumr=c",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "pipeline.archive.consumer?" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "nothing"),
        ("archive", "--data-dir", "d", "--lake", "l", "--trigger", "-1"),
        ("nothing",),
        ("status",),
    ],
)
def test_wrong_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_errors_are_one_line_with_their_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, said = run("archive", "--data-dir", str(tmp_path), "--lake", str(tmp_path / "lake"))
    assert code == 2
    assert said.splitlines()[-1].startswith(f"error: data_dir: {tmp_path} holds no journal")

    def refuse(*_: object) -> None:
        raise BadOption("consumer", "..", "no")

    monkeypatch.setattr(runner, "run_job", refuse)
    code, _, said = run("archive", "--data-dir", str(tmp_path), "--lake", str(tmp_path / "lake"))
    assert (code, said.splitlines()[-1]) == (2, "error: option consumer='..': no")


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace_spark.lake.status", None)
    assert isinstance(
        CliRunner().invoke(pipeline, ["status", "--data-dir", "d"]).exception, ModuleNotFoundError
    )
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name in [name for name in sys.modules if name.startswith("headrace_spark.lake.")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, said = run("status", "--data-dir", "d")
    assert (code, said) == (
        1,
        "error: deltalake is not installed; the pipeline needs: pip install 'headrace[spark]'\n",
    )


def test_status_as_text_and_as_json(journal: Writer) -> None:
    journal.write(mixed(30))
    code, said, _ = run("status", "--data-dir", str(journal.data_dir))
    assert (code, said.count("offsets 0 to 30")) == (0, 1)
    code, said, _ = run("status", "--data-dir", str(journal.data_dir), "--json")
    assert (code, json.loads(said)["journal"]["high_watermark"]) == (0, 30)


def test_signals_set_the_event() -> None:
    stop = stop_on_signals()
    signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()
    again = stop_on_signals()
    signal.raise_signal(signal.SIGINT)
    assert again.is_set()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_a_job_serves_its_figures_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, journal: Writer, tmp_path: Path
) -> None:
    journal.write(mixed(30))
    pages: list[str] = []
    told = io.StringIO()
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=told))

    def run_job(_job: str, _settings: object, _stop: object, report: Report) -> Progress:
        (url,) = re.findall(r"metrics at (http://\S+)", told.getvalue())
        report(Progress(7, 20, 10, 1.0, (0.5,), ends={journal.uuid: 20}))
        with urllib.request.urlopen(url, timeout=60) as answer:
            pages.append(answer.read().decode())
        return Progress(7, 20, 10, 1.0)

    monkeypatch.setattr(runner, "run_job", run_job)
    options = ("--data-dir", str(journal.data_dir), "--lake", str(tmp_path / "lake"))
    assert run("run", "archive", *options, "--metrics", "127.0.0.1:0")[0] == 0
    (page,) = pages
    assert 'headrace_pipeline_rows_read_total{pipeline="archive"} 7.0' in page
    assert 'headrace_pipeline_lag_messages{pipeline="archive"} 10.0' in page
    assert "process_resident_memory_bytes" in page


@pytest.mark.parametrize(
    "address", ["9180", "host", "http://h:1", "h:99999", ":80", "a b:1x", "u@h:1", "h:1/x"]
)
def test_an_address_of_metrics_that_is_none_is_named(address: str) -> None:
    with pytest.raises(InvalidKey, match=r"pipeline.metrics_address"):
        load(None, [f"pipeline.metrics_address={json.dumps(address)}"])


def test_an_address_of_metrics_that_is_taken_is_refused_before_spark_starts(
    started: list[tuple[str, Any]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, said = run("run", "archive", "--data-dir", "d", "--lake", "l", "--metrics", address)
    assert (code, started) == (1, [])
    assert said.splitlines()[-1] == f"error: pipeline.metrics_address: {address}: Address already in use"


def test_with_json_logs_every_line_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BadOption("consumer", "..", "no")

    monkeypatch.setattr(runner, "run_job", refuse)
    code, _, said = run("archive", "--data-dir", "d", "--lake", "l", "--set", "log.format=json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert code == 2
    assert [(line["event"], line["level"]) for line in lines] == [
        ("starting Spark", "info"),
        ("option consumer='..': no", "error"),
    ]
    assert lines[1]["exit_code"] == 2
