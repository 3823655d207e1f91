"""`headrace pipeline`: options, exit codes, and status without Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace_spark.cli import pipeline, stop_on_signals
from headrace_spark.errors import BadOption
from headrace_spark.jobs import archive as archive_module
from headrace_spark.jobs.archive import Progress
from headrace_spark.settings import ArchiveSettings
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


def test_archive_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[ArchiveSettings] = []

    def archive(settings: ArchiveSettings, stop: object, report: object) -> Progress:
        seen.append(settings)
        return Progress(0, 0, 0, 0.0)

    monkeypatch.setattr(archive_module, "archive", archive)
    assert run("archive", "--data-dir", "d", "--lake", "l")[0] == 0
    assert run("archive", "--data-dir", "d", "--lake", "l", "--available-now")[0] == 0
    options = ("--master", "local[1]", "--consumer", "c", "--trigger", "2.5", "--max-records", "7")
    assert run("archive", "--data-dir", "d", "--lake", "l", "--follow", *options)[0] == 0
    assert seen[0] == seen[1]
    assert (seen[0].data_dir, seen[0].lake, seen[0].follow, seen[0].spark.master) == (
        Path("d"),
        Path("l"),
        False,
        "local[*]",
    )
    assert (seen[2].follow, seen[2].consumer, seen[2].trigger_s, seen[2].records_per_trigger_max) == (
        True,
        "c",
        2.5,
        7,
    )
    assert seen[2].spark.master == "local[1]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive",),
        ("archive", "--data-dir", "d", "--lake", "l", "--trigger", "-1"),
        ("nothing",),
        ("status",),
    ],
)
def test_wrong_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_errors_are_one_line_with_their_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, said = run("archive", "--data-dir", str(tmp_path), "--lake", str(tmp_path / "lake"))
    assert code == 1
    assert said.splitlines()[-1].startswith(f"error: {tmp_path} holds no journal")

    def refuse(*_: object) -> None:
        raise BadOption("consumer", "..", "no")

    monkeypatch.setattr(archive_module, "archive", refuse)
    code, _, said = run("archive", "--data-dir", str(tmp_path), "--lake", str(tmp_path / "lake"))
    assert (code, said.splitlines()[-1]) == (2, "error: option consumer='..': no")


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace_spark.status", None)
    assert isinstance(
        CliRunner().invoke(pipeline, ["status", "--data-dir", "d"]).exception, ModuleNotFoundError
    )
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "headrace_spark.lake", raising=False)
    monkeypatch.delitem(sys.modules, "headrace_spark.status", raising=False)
    code, _, said = run("status", "--data-dir", "d")
    assert (code, said) == (1, "error: deltalake is not installed; the pipeline needs headrace[spark]\n")


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


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace_spark", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Usage: headrace pipeline" in done.stdout
