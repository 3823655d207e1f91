"""Folders for temporary files: those of the dead go with the next start, those of the living stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from headrace_spark.base.scratch import Scratch, folder_of_process, sweep

OWNER = """
import sys, tempfile
from headrace_spark.base.scratch import {name}
made = {name}("job")
folder = getattr(made, "path", made)
(folder / "secret").write_text("1")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def owner(name: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a process that has such a folder, and waits."""
    command = [sys.executable, "-c", OWNER.format(name=name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["Scratch", "folder_of_process"])
def test_a_killed_owner_leaves_nothing_behind_the_next_start(name: str) -> None:
    with owner(name) as (process, folder), Scratch("other") as ours:
        sweep()
        assert (folder / "secret").exists(), "its owner lives"
        process.send_signal(signal.SIGSTOP)
        sweep()
        assert (folder / "secret").exists(), "its owner stands still, and lives"
        process.kill()
        process.wait()
        sweep()
        assert not folder.exists()
        assert ours.is_dir()


def test_an_owner_that_ends_takes_it_along() -> None:
    with owner("folder_of_process") as (process, folder):
        assert folder.is_dir()
        process.communicate("")
        assert process.returncode == 0
        assert not folder.exists()


def test_what_is_of_nobody_or_not_ours_stays(temporary: Path) -> None:
    for name in ("headrace-being-made", "another", "target"):
        (temporary / name).mkdir()
    for name in ("another", "target"):
        (temporary / name / ".owner").touch()
    (temporary / "headrace-link").symlink_to(temporary / "target")
    (temporary / "headrace-file").touch()
    before = sorted(temporary.rglob("*"))
    sweep()
    assert sorted(temporary.rglob("*")) == before


def test_no_folder_that_is_being_made_is_swept() -> None:
    ended = False

    def sweep_on() -> None:
        while not ended:
            sweep()

    sweeping = Thread(target=sweep_on)
    sweeping.start()
    try:
        for _ in range(300):
            with Scratch("quick") as folder:
                (folder / "file").touch()
                assert (folder / ".owner").exists()
    finally:
        ended = True
        sweeping.join()


def test_what_cannot_be_made_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("headrace_spark.base.scratch.fcntl.flock", full)
    with pytest.raises(OSError, match="No space left"):
        folder_of_process("job")
    assert not list(temporary.iterdir())
