"""One writer at a time, and the second one learns who the first is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalLocked, NotOurs
from headrace.journal.lock import lock_data_dir
from unit.journal.log_at import filled


def test_the_second_one_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    fd = lock_data_dir(DISK, tmp_path)
    with pytest.raises(JournalLocked, match=f"pid {os.getpid()}"):
        lock_data_dir(DISK, tmp_path)
    DISK.close(fd)
    DISK.close(lock_data_dir(DISK, tmp_path))


class OfSomebodyElse(Disk):
    """On which one file belongs to user 7."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def may_write(self, path: Path) -> bool:
        return path != self._path and super().may_write(path)

    def owner(self, path: Path) -> int:
        return 7 if path == self._path else super().owner(path)


@pytest.mark.parametrize(
    "name", ["", "lock", "watermark", "journal", f"journal/{0:020d}.log", "journal/x.snapshot"]
)
def test_a_file_of_another_user_is_named_before_anything_is_written(tmp_path: Path, name: str) -> None:
    filled(tmp_path, [b"x"])
    (tmp_path / "journal" / "x.snapshot").write_bytes(b"")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(NotOurs) as refused:
        lock_data_dir(OfSomebodyElse(tmp_path / name), tmp_path)
    assert f"{tmp_path / name} belongs to user 7, and this process, of user {os.geteuid()}" in str(
        refused.value
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_what_root_has_left_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "data", [b"x"])
    os.chown(tmp_path / "data", 1234, 1234)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgid(1234)
            os.setuid(1234)
            lock_data_dir(DISK, tmp_path / "data")
        except NotOurs as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    assert f"{tmp_path / 'data' / 'journal'} belongs to user 0" in said
