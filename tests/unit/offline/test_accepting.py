"""`headrace journal accept` on disk: what it says, what it refuses, and killed at any moment."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from broker_process import headrace
from headrace.core.homes import Homes
from headrace.core.records.event import BrokerStarted
from headrace.core.records.message import Message
from headrace.core.records.record import Record
from headrace.core.records.stream_record import STARTED, stream_record_of
from headrace.data.layout import Layout
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalLocked
from headrace.journal.lock import lock_data_dir
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.offline import accepting
from headrace.offline.accepting import NotAccepted, opened
from headrace.offline.resharding import folded
from unit.data.journals import START_US, append, copy, followed, made, message, owned, taken
from unit.journal.test_restore import killed

AGAIN_US = START_US + 9_000_000


def started(time_us: int) -> Record:
    return BrokerStarted.at(time_us)


def begun(source: int, offset: int, time_us: int) -> Record:
    return stream_record_of(STARTED, START_US, [source, offset, time_us, 0])


def messages(count: int) -> list[Message]:
    return [message(str(number)) for number in range(count)]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Three shards. The first one has an older copy of its journal, and has served since without being accepted: the
    others had up to offset 20 of it, of an owner that began at 6; it has forgotten all of them above 2."""
    first: list[Record] = [started(START_US), *messages(4), started(AGAIN_US), *messages(3), taken(1, 2)]
    second: list[Record] = [started(START_US), *messages(12), begun(0, 0, START_US), copy(0, 3), owned(0, 6)]
    second += [begun(0, 6, START_US + 5), copy(0, 19), followed(0, 9)]
    third: list[Record] = [started(START_US), begun(0, 0, START_US), copy(0, 2)]
    return made(tmp_path / "d", [first, second, third])


def accepted(layout: Layout, disk: Disk = DISK) -> tuple[list[str], list[str]]:
    """What was said before, and done."""
    with opened(layout.path, 0, lambda _line: None, disk) as acceptance:
        lines = acceptance.lines
        return lines, list(acceptance.run()) if acceptance.misfits else []


def streams(layout: Layout, shard: int) -> tuple[dict[int, int], dict[int, int], int, int]:
    """What a shard has taken, what others have of it, where its journal ends and in which epoch."""
    log = SegmentedLog.open(layout.directory(shard), LogSettings(streams=True), lambda _line: None)
    try:
        found = folded(log, lambda _line: None, (Homes(layout.shards), shard)).streams
        return dict(found.taken), found.followed, log.next_offset, log.epoch
    finally:
        log.close()


def check(layout: Layout) -> None:
    ours, second, third = (streams(layout, shard) for shard in range(3))
    assert ours[0] == {1: 2}
    assert ours[2] >= 20
    assert ours[3] > 1
    assert (second[0], second[1], second[3]) == ({0: 5}, {0: 2}, 1)
    assert third == ({0: 3}, {}, 3, 1), "it fits: its stream comes to what follows"


def test_it_says_what_is_lost_and_what_comes_again(layout: Layout) -> None:
    said, done = accepted(layout)
    assert said == [
        "shard 0 ends at offset 10; what it alone had behind its copy is lost",
        "shard 0: others know of it up to 20, so 10 records or more are gone",
        "shard 1 gets records 5 up to 10, which it has had no part of: 3 messages at most",
        "shard 1 sends again from 2 up to 9, what may come twice: 7 messages at most",
    ]
    epoch = JournalReader(layout.directory(0)).epoch
    assert epoch > 1
    assert done == [f"shard 0 goes on at offset 20, in epoch {epoch}", "shard 1 goes on with shard 0"]
    check(layout)
    assert accepted(layout) == ([], [])
    check(layout)


@pytest.mark.slow
def test_killed_at_any_moment_it_is_done_when_it_is_run_again(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "_SETTINGS", LogSettings(streams=True, reserve_bytes=0))
    for number in count(1, 3):
        data_dir = tmp_path / str(number)
        shutil.copytree(layout.path, data_dir)
        here = Layout.open(data_dir)
        was_killed = killed(lambda disk, where=here: accepted(where, disk), number)  # type: ignore[misc]
        accepted(here)
        check(here)
        if not was_killed:
            assert number > 20
            return
        shutil.rmtree(data_dir)


def test_it_refuses_what_is_no_shard_of_several(layout: Layout, tmp_path: Path) -> None:
    append(tmp_path / "one", [message("a")])
    shutil.rmtree(layout.directory(2) / "journal")
    for data_dir, shard in ((tmp_path / "one", 0), (layout.path, 3), (layout.path, -1), (layout.path, 0)):
        with pytest.raises(NotAccepted), opened(data_dir, shard, lambda _line: None):
            pass


@pytest.mark.parametrize("of", ["the whole", "a shard"])
def test_it_refuses_while_somebody_has_the_directory(layout: Layout, of: str) -> None:
    fd = lock_data_dir(DISK, layout.path if of == "the whole" else layout.directory(1))
    try:
        with pytest.raises(JournalLocked):
            accepted(layout)
    finally:
        DISK.close(fd)
    accepted(layout)


def test_the_command_asks(layout: Layout) -> None:
    before = streams(layout, 1)
    command = ("journal", "accept", "0", "--data-dir", str(layout.path))
    shown = headrace(*command, "--dry-run")
    assert (shown.returncode, "nothing was accepted" in shown.stdout) == (1, True)
    assert "what may come twice: 7 messages" in shown.stdout
    assert headrace(*command).returncode == 1  # nobody answers
    assert streams(layout, 1) == before
    done = headrace(*command, "--yes")
    assert (done.returncode, "shard 1 goes on with shard 0" in done.stdout) == (0, True)
    check(layout)
    again = headrace(*command)
    assert (again.returncode, "nothing to accept" in again.stdout) == (0, True)
