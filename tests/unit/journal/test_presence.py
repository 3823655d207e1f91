"""Whether the files of an open journal are in their place, and what is refused where a journal was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from headrace.journal.disk import Disk, Identity
from headrace.journal.errors import CorruptFile, JournalMoved
from headrace.journal.log import SegmentedLog
from headrace.journal.presence import INTERVAL_S, LOOK_AGAIN_S, LOOKS, Known, Watch
from headrace.journal.segment import file_name
from unit.journal.log_at import SMALL, Started, filled, opened, silent

BODIES = [bytes(1500)] * 6  # three segments and more


def no_wait(_: float) -> bool:
    return False


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    filled(data, BODIES)
    return data


def verdict(log: SegmentedLog) -> str:
    try:
        return log.presence.verdict(no_wait)
    finally:
        log.close()


def test_everything_is_in_its_place(data: Path) -> None:
    assert verdict(opened(data)) == ""


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    removed(path)
    copy.rename(path)


def linked_elsewhere(path: Path) -> None:
    """Do what somebody does who has a name lead to another disk."""
    moved(path)
    path.symlink_to(path.with_name("nowhere"))


NEWEST, OLDEST = "journal/newest", "journal/oldest"


@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("", moved),
        ("", removed),
        ("", replaced),
        ("", linked_elsewhere),
        ("journal", moved),
        ("journal", removed),
        ("journal", replaced),
        (NEWEST, moved),
        (NEWEST, removed),
        (NEWEST, replaced),
        (OLDEST, moved),
        (OLDEST, removed),
        ("lock", removed),
        ("lock", replaced),
        ("watermark", removed),
        ("watermark", moved),
    ],
)
def test_what_is_not_is_named(data: Path, name: str, done: Callable[[Path], None]) -> None:
    log = opened(data)
    segments = sorted((data / "journal").glob("*.log"))
    path = {NEWEST: segments[-1], OLDEST: segments[0]}.get(name, data / name)
    done(path)
    found = log.presence.verdict(no_wait)
    assert found.startswith(("another file was put in the place of ", str(data)))
    assert "while the broker runs" in found
    assert log.is_displaced
    before = everything(data)
    log.close()
    assert everything(data) == before, "the stop has written into what is not its directory any more"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_name_that_leads_nowhere_for_a_moment_says_nothing(data: Path) -> None:
    log = opened(data)
    moved(data)
    looks = []

    def put_back(_: float) -> bool:
        looks.append(1)
        if len(looks) == LOOKS - 1:
            data.with_name("elsewhere").rename(data)
        return False

    assert log.presence.verdict(put_back) == ""
    assert len(looks) == LOOKS - 1
    assert not log.is_displaced
    log.close()


def test_one_who_does_not_want_to_know_any_more_hears_nothing(data: Path) -> None:
    log = opened(data)
    moved(data)
    assert log.presence.verdict(lambda _: True) == ""
    log.close()


class Unsteady(Disk):
    """A file system that numbers a file anew each time that it is asked for by name."""

    count = 0

    def identity(self, path: Path) -> Identity | None:
        found = super().identity(path)
        self.count += 1
        return found and (0, self.count)


def test_only_names_count_where_files_have_no_number_of_their_own(data: Path) -> None:
    log = SegmentedLog.open(data, SMALL, silent, Unsteady())
    assert log.presence.verdict(no_wait) == ""
    moved(data)
    assert verdict(log)


class Sick(Disk):
    code = 0

    def identity(self, path: Path) -> Identity | None:
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return super().identity(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_what_the_system_cannot_say_is_reported_once_and_is_no_verdict(data: Path, code: int) -> None:
    disk = Sick()
    log = SegmentedLog.open(data, SMALL, silent, disk)
    said: list[str] = []
    watch = Watch(log.presence, lambda error: pytest.fail(str(error)), said.append)
    disk.code = code
    assert not watch.look()
    assert not watch.look()
    assert len(said) == 1
    assert os.strerror(code) in said[0]
    assert not log.is_displaced
    disk.code = 0
    assert not watch.look()
    disk.code = code
    assert not watch.look()
    assert len(said) == 2
    disk.code = 0
    log.close()


def test_a_watch_says_it_once_within_two_seconds(data: Path) -> None:
    log = opened(data)
    said: list[JournalMoved] = []
    heard = Event()

    def displaced(error: JournalMoved) -> None:
        said.append(error)
        heard.set()

    Watch(log.presence, displaced, silent).start()
    moved(data)
    assert INTERVAL_S + LOOKS * LOOK_AGAIN_S < 2
    assert heard.wait(30)
    log.close()
    assert [str(error) for error in said] == [f"{data}/lock was removed or moved while the broker runs"]


def test_a_watch_that_has_ended_says_nothing(data: Path) -> None:
    log = opened(data)
    watch = Watch(log.presence, lambda error: pytest.fail(str(error)), silent)
    watch.end()
    moved(data)
    assert not watch.look()
    log.close()


def test_a_log_that_failed_writes_nothing_more_and_says_it_once(data: Path) -> None:
    started = Started(data)
    started.append(b"first")
    started.log.fail(JournalMoved("gone"))
    started.log.fail(JournalMoved("gone again"))
    before = everything(data)
    started.log.append(b"second", 1, 1, 1)
    started.log.close()
    assert [str(said) for said in started.said if isinstance(said, Exception)] == ["gone"]
    assert everything(data) == before


def test_no_segment_is_begun_in_another_directory(data: Path) -> None:
    started = Started(data)
    started.append(b"first")
    replaced(data)
    before = everything(data)
    started.log.append(bytes(4000), 1, 1, 1)  # which is too large for the segment
    while not (said := [one for one in started.said if isinstance(one, Exception)]):
        started.wait()
    assert isinstance(said[0], JournalMoved)
    started.log.close()
    assert everything(data) == before


class LingeringUnlink(Disk):
    """A file system on which a name goes at once, and the call returns once the blocks are free."""

    def __init__(self, free: Callable[[], None]) -> None:
        self.free = free

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix == ".log":
            self.free()


def test_a_segment_that_retention_is_still_removing_is_not_missed(data: Path) -> None:
    found: list[str] = []
    disk = LingeringUnlink(lambda: found.append(log.presence.verdict(no_wait)))
    settings = replace(SMALL, retention_bytes=4096)
    log = SegmentedLog.open(data, settings, silent, disk)
    log.set_floor(log.next_offset)
    assert log.apply_retention()
    log.close()
    assert found
    assert set(found) == {""}


def test_a_look_while_a_segment_goes_says_nothing(data: Path) -> None:
    """Retention is done between the list of the segments and that of the names."""

    class Racing(Disk):
        race: Callable[[], object] | None = None

        def names(self, directory: Path) -> list[str]:
            race, self.race = self.race, None
            if race is not None:
                race()
            return super().names(directory)

    disk = Racing()
    log = SegmentedLog.open(data, replace(SMALL, retention_bytes=4096), silent, disk)
    log.set_floor(log.next_offset)
    count = log.segment_count

    def retain() -> None:
        assert log.apply_retention()

    disk.race = retain
    assert log.presence.look() == ""
    assert log.segment_count < count
    log.close()


def test_a_segment_that_cannot_be_removed_is_still_missed_when_it_goes(data: Path) -> None:
    class Stuck(Disk):
        def unlink(self, path: Path) -> None:
            if path.suffix == ".log":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().unlink(path)

    log = SegmentedLog.open(data, replace(SMALL, retention_bytes=4096), silent, Stuck())
    log.set_floor(log.next_offset)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.apply_retention()
    assert log.presence.verdict(no_wait) == ""
    oldest = min((data / "journal").glob("*.log"))
    removed(oldest)
    assert log.presence.verdict(no_wait).startswith(str(oldest))
    log.close()


# Before one is opened


def reopened(data: Path, known: Known) -> None:
    SegmentedLog.open(data, SMALL, silent, known=known).close()


def test_a_journal_that_must_be_there_is_opened(data: Path) -> None:
    log = opened(data)
    uuid, newest = log.uuid, log.finished_offset
    log.close()
    reopened(data, Known(True, uuid, newest))
    reopened(data, Known(True))


def test_none_is_begun_where_one_has_been(data: Path) -> None:
    moved(data)
    with pytest.raises(JournalMoved, match="holds no journal any more"):
        reopened(data, Known(True))
    assert not data.exists()
    data.mkdir()
    with pytest.raises(JournalMoved, match="holds no journal any more"):
        reopened(data, Known(True))
    assert not list(data.iterdir())


def test_another_one_is_not_taken_for_it(data: Path) -> None:
    other = data.with_name("other")
    filled(other, BODIES)
    log = opened(data)
    uuid = log.uuid
    log.close()
    before = everything(other)
    with pytest.raises(JournalMoved, match=uuid):
        reopened(other, Known(True, uuid))
    assert everything(other) == before


def test_one_without_its_newest_segment_is_not_cut_back(data: Path) -> None:
    log = opened(data)
    uuid, newest = log.uuid, log.finished_offset
    log.close()
    path = data / "journal" / file_name(newest)
    moved(path)
    before = everything(data)
    with pytest.raises(JournalMoved, match=path.name):
        reopened(data, Known(True, uuid, newest))
    assert everything(data) == before


def test_a_damaged_header_is_named_as_it_is_at_any_start(data: Path) -> None:
    newest = sorted((data / "journal").glob("*.log"))[-1]
    newest.write_bytes(b"?" * 100)
    with pytest.raises(CorruptFile):
        reopened(data, Known(True))
