"""A restore that is interrupted anywhere serves nothing, says so, and works when it is run again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.journal.backup import backup
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.errors import JournalError, JournalLocked
from headrace.journal.inspect import verify
from headrace.journal.restore import MAKING, is_interrupted, restore
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import Started, filled, opened

BODIES = [b"%02d" % i * 450 for i in range(12)]  # four a segment
CHANGING = (
    "make_directory",
    "create",
    "pwritev",
    "fsync",
    "fdatasync",
    "fsync_directory",
    "truncate",
    "rename",
    "unlink",
)


class CountedDisk(Disk):
    """Calls `at_end` instead of the changing call with this number."""

    def __init__(self, number: int, at_end: Callable[[], None]) -> None:
        self.left = number
        self._at_end = at_end

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CHANGING:
            return found

        def counted(*arguments: object) -> object:
            self.left -= 1
            if self.left == 0:
                self._at_end()
            return found(*arguments)

        return counted


def fail() -> None:
    raise OSError(28, "No space left on device")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[Disk], object], number: int) -> bool:
    """Does the work in a process that is killed before that call; False if it came to its end."""
    pid = os.fork()
    if not pid:
        try:
            work(CountedDisk(number, kill))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def served(data_dir: Path) -> list[bytes]:
    log = opened(data_dir)
    try:
        assert log.epoch > 1
        return [batch.body for batch in log.scan(0)]
    finally:
        log.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    filled(tmp_path / "data", BODIES)
    log = opened(tmp_path / "data")
    writer = SnapshotWriter(log.directory, 3)
    writer.add(b"state" * 100)
    writer.commit()
    ConsumerPosition.register(tmp_path / "data", "archive", log.uuid, 1, 2)
    log.close()
    backup(tmp_path / "data", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.slow
def test_killed_before_any_call_it_serves_nothing_or_all(tmp_path: Path, copy: Path) -> None:
    number = refused = whole = 0
    while number == 0 or refused + whole == number:
        number += 1
        target = tmp_path / f"new-{number}"
        if number % 2:
            target.mkdir()
        if not killed(lambda disk, to=target: restore(copy, to, disk=disk), number):  # type: ignore[misc]
            break
        if is_interrupted(target):
            with pytest.raises(JournalError, match="interrupted; run `headrace restore` again"):
                opened(target)
            refused += 1
        elif not (target / "journal").is_dir():
            refused += 1  # nothing was begun
        else:
            whole += 1
            assert served(target) == BODIES
            continue
        assert restore(copy, target).high_watermark == 12
        assert verify(target).ok
        assert not (target / MAKING).exists()
        assert ConsumerPosition.read(target, "archive").offset == 2
        assert served(target) == BODIES
    assert refused > 30
    assert whole >= 1, "killed behind the last step"


def test_an_error_leaves_nothing(tmp_path: Path, copy: Path) -> None:
    for number in range(1, 30):
        with pytest.raises(OSError, match="No space"):
            restore(copy, tmp_path / "new", disk=CountedDisk(number, fail))
        assert {path.name for path in (tmp_path / "new").iterdir()} <= {"lock"}
    restore(copy, tmp_path / "new")
    assert served(tmp_path / "new") == BODIES


def test_a_data_directory_of_something_else_is_refused(tmp_path: Path, copy: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty \(notes.txt\)"):
        restore(copy, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]


def test_a_data_directory_that_a_broker_has_open_is_refused(tmp_path: Path, copy: Path) -> None:
    started = Started(tmp_path / "new")
    (tmp_path / "new" / "journal").rename(tmp_path / "elsewhere")
    (tmp_path / "new" / "watermark").unlink()
    with pytest.raises(JournalLocked):
        restore(copy, tmp_path / "new")
    (tmp_path / "elsewhere").rename(tmp_path / "new" / "journal")
    started.log.close()


def test_files_are_as_closed_as_those_of_the_backup(tmp_path: Path) -> None:
    filled(tmp_path / "data", BODIES)
    log = opened(tmp_path / "data")
    writer = SnapshotWriter(log.directory, 3)
    writer.commit()
    ConsumerPosition.register(tmp_path / "data", "archive", log.uuid, 1, 2)
    log.close()
    (tmp_path / "data").chmod(0o750)
    for path in (tmp_path / "data" / "journal").iterdir():
        path.chmod(0o600)
    backup(tmp_path / "data", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "new")
    for root in (tmp_path / "copy", tmp_path / "new"):
        assert root.stat().st_mode & 0o777 == 0o750
        modes = {path.name: path.stat().st_mode & 0o777 for path in root.rglob("*")}
        assert modes.pop("lock", 0o640) == 0o640
        assert modes.pop("journal") == modes.pop("consumers") == 0o750
        assert set(modes.values()) == {0o600}, modes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_restores_for_whom_the_directory_belongs_to(tmp_path: Path, copy: Path) -> None:
    (tmp_path / "new").mkdir()
    os.chown(tmp_path / "new", 1234, 1235)
    restore(copy, tmp_path / "new")
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "new").rglob("*")}
    assert owners == {(1234, 1235)}
