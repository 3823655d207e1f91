"""The runtime directory: what is in it, who keeps it, and what becomes of those that nobody keeps."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.workers.runtime import (
    CONFIG,
    CONNECTIONS,
    TABLES,
    Runtime,
    hold,
    remove_left_over,
    write_config,
)

OURS = (CONFIG, *TABLES, f"{CONNECTIONS}.new-3", "peer-0.sock", "hand-12.sock", "admin-1.sock")


def made(folder: Path, name: str, *files: str, mode: int = 0o700) -> Path:
    path = folder / name
    path.mkdir(mode=mode)
    for file in files:
        (path / file).touch()
    return path


def test_what_killed_processes_have_left_goes_and_nothing_else(tmp_path: Path) -> None:
    left = made(tmp_path, "headrace-left", *OURS)
    kept = made(tmp_path, "headrace-kept", *OURS)
    held = hold(kept)
    others = [
        made(tmp_path, "headrace-new"),
        made(tmp_path, "headrace-mine", CONFIG),  # somebody's own
        made(tmp_path, "headrace-data", *OURS, "journal"),
        made(tmp_path, "headrace-open", *OURS, mode=0o755),
        made(tmp_path, "other", *OURS),
    ]
    (tmp_path / "headrace-link").symlink_to(left)
    (tmp_path / "headrace-file").touch()
    remove_left_over(tmp_path)
    assert not left.exists()
    assert all(path.is_dir() for path in (kept, *others))
    assert (tmp_path / "headrace-file").exists()
    os.close(held)
    remove_left_over(tmp_path)
    assert not kept.exists()


def test_another_process_that_has_inherited_it_keeps_it_too(tmp_path: Path) -> None:
    path = made(tmp_path, "headrace-a", CONNECTIONS)
    held = hold(path)
    inherited = os.dup(held)  # as by exec: it is the same open file
    os.close(held)
    remove_left_over(tmp_path)
    assert path.exists()
    os.close(inherited)
    remove_left_over(tmp_path)
    assert not path.exists()


def test_a_worker_can_be_started_again_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, "a = 1\n")

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", refuse)
    write_config(tmp_path, "a = 1\n")
    with pytest.raises(OSError, match="No space left"):
        write_config(tmp_path, "a = 2\n")
    assert (tmp_path / CONFIG).read_text() == "a = 1\n"


def test_what_has_no_room_for_the_configuration_is_named(tmp_path: Path) -> None:
    """It is seldom the disk of the data."""
    (tmp_path / "config.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"{tmp_path}/config.toml: No space left on device") as raised:
        write_config(tmp_path, "x = 1")
    assert raised.value.errno == errno.ENOSPC


def test_a_directory_that_another_program_has_removed_is_made_again_and_held(tmp_path: Path) -> None:
    runtime = Runtime(made(tmp_path, "headrace-a", CONNECTIONS))
    assert not runtime.keep()
    assert runtime.missing([0], ["peer"]) == f"{runtime.path}/peer-0.sock was removed by another program"
    (runtime.path / "peer-0.sock").touch()
    assert runtime.missing([0], ["peer"]) == ""
    for left in runtime.path.iterdir():
        left.unlink()
    runtime.path.rmdir()
    assert runtime.missing([0], ["peer"]) == f"{runtime.path} was removed by another program"
    assert runtime.keep()
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    (runtime.path / CONNECTIONS).touch()
    remove_left_over(tmp_path)
    assert runtime.is_there  # it is held
    runtime.close()
    assert not runtime.path.exists()


@pytest.mark.parametrize("what", ["file", "link", "open"])
def test_what_somebody_else_has_put_in_its_place_is_not_used(tmp_path: Path, what: str) -> None:
    runtime = Runtime(made(tmp_path, "headrace-a"))
    runtime.path.rmdir()
    if what == "file":
        runtime.path.touch()
    elif what == "link":
        runtime.path.symlink_to(made(tmp_path, "elsewhere"))
    else:
        made(tmp_path, "headrace-a", mode=0o755)
    with pytest.raises(FileExistsError):
        runtime.keep()
    assert runtime.missing([], [])
