"""Backup, restore, verify and repair are killed at random points; what was acknowledged is compared afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.journal.backup import backup
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import JournalError
from headrace.journal.inspect import verify
from headrace.journal.manifest import NAME as MANIFEST
from headrace.journal.reader import JournalReader
from headrace.journal.repair import Repair
from headrace.journal.restore import MAKING, is_interrupted, restore
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.killing import calls_of, killed
from unit.journal.log_at import SMALL, Started, filled, opened
from unit.journal.test_diagnosis import DAMAGES, body_of, both, cut, flip, gone, served, tree

pytestmark = pytest.mark.slow

KILLS = 25
BODIES = [body_of(number) for number in range(20)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A journal that a broker has open, with a snapshot and a consumer; everything in it is acknowledged."""
    data = tmp_path / "data"
    filled(data, BODIES[:10])
    started = Started(data, SMALL)
    for body in BODIES[10:]:
        started.append(body)
    writer = SnapshotWriter(started.log.directory, 7)
    writer.add(b"state" * 100)
    writer.commit()
    ConsumerPosition.register(data, "archive", started.log.uuid, 1, 2)
    yield data
    started.log.close()


def content(data: Path) -> list[bytes]:
    log = opened(data)
    try:
        return [batch.body for batch in log.scan(log.start_offset)]
    finally:
        log.close()


def numbers(calls: int, seed: int) -> Iterator[int]:
    """Where to kill: anywhere, and some of the last calls, where the names are given."""
    rng = Random(seed)
    yield from (rng.randint(1, calls) for _ in range(KILLS))
    yield from (calls - rng.randint(0, calls // 10) for _ in range(KILLS // 3))


def test_a_backup_that_is_killed_is_whole_or_none(tmp_path: Path, running: Path) -> None:
    calls = calls_of(lambda: backup(running, tmp_path / "counted"))
    assert calls > 1000
    whole = 0
    for turn, number in enumerate(numbers(calls, 1)):
        target, made = tmp_path / f"copy-{turn}", tmp_path / f"made-{turn}"
        killed(lambda to=target: backup(running, to), number)  # type: ignore[misc]
        if (target / MANIFEST).exists():
            whole += 1
            restore(target, made)
            assert content(made) == BODIES
        else:
            with pytest.raises((JournalError, OSError)):
                restore(target, made)
            assert not (made / "journal").exists()
        assert verify(running).ok
    assert 0 < whole < KILLS
    backup(running, tmp_path / "last")
    assert [one.name for one in ConsumerPosition.list(running)] == ["archive"], "nothing holds the journal"
    assert sorted(path.name for path in (running / "consumers").iterdir()) == ["archive"]


def test_a_restore_that_is_killed_serves_all_or_is_refused(tmp_path: Path, running: Path) -> None:
    copy = tmp_path / "copy"
    backup(running, copy)
    calls = calls_of(lambda: restore(copy, tmp_path / "counted"))
    whole = 0
    for turn, number in enumerate(numbers(calls, 2)):
        made = tmp_path / f"made-{turn}"
        killed(lambda to=made: restore(copy, to), number)  # type: ignore[misc]
        if (made / "journal").is_dir():
            whole += 1
        else:
            if is_interrupted(made):
                with pytest.raises(JournalError, match="interrupted"):
                    opened(made)
            restore(copy, made)
            assert not (made / MAKING).exists()
        assert content(made) == BODIES
        assert verify(made).ok
        assert ConsumerPosition.read(made, "archive").offset == 2
    assert whole < KILLS


def test_a_verification_that_is_killed_has_changed_nothing(running: Path) -> None:
    before = tree(running)
    calls = calls_of(lambda: verify(running))
    for number in numbers(calls, 3):
        killed(lambda: verify(running), number)
        assert tree(running) == before


MANY = both(
    flip(f"journal/{0:020d}.log", 64 + 100),
    gone(f"journal/{4:020d}.log"),
    flip(f"journal/{8:020d}.log", 20),
    flip(f"journal/{7:020d}.snapshot", 70),
)
TORN = {
    "much at once": (MANY, {0, 4, 5, 6, 7}),
    "a finished segment torn": (cut(f"journal/{12:020d}.log", 1300), {13, 14, 15}),
    **{
        name: DAMAGES[name]
        for name in (
            "the first segments gone",
            "a foreign segment in the middle",
            "a segment under another name",
            "both slots and a batch",
            "a foreign high watermark",
        )
    },
}


@pytest.mark.parametrize(
    "name",
    [
        *("much at once", "both slots and a batch", "a foreign high watermark"),
        *(
            pytest.param(name, marks=pytest.mark.deep)
            for name in (
                "a finished segment torn",
                "the first segments gone",
                "a foreign segment in the middle",
                "a segment under another name",
            )
        ),
    ],
)
def test_a_repair_that_is_killed_is_done_again_and_loses_no_more(
    tmp_path: Path, running: Path, name: str
) -> None:
    damage, lost = TORN[name]
    broken = tmp_path / "broken"
    shutil.copytree(running, broken)
    damage(broken)
    epoch = JournalReader(running).epoch

    def mend(data: Path) -> None:
        with Repair(data) as repair:
            repair.plan()
            repair.run()

    shutil.copytree(broken, tmp_path / "counted")
    calls = calls_of(lambda: mend(tmp_path / "counted"))
    for turn, number in enumerate(numbers(calls, 4)):
        data = tmp_path / f"data-{turn}"
        shutil.copytree(broken, data)
        killed(lambda at=data: mend(at), number)  # type: ignore[misc]
        if not verify(data).ok:
            mend(data)
        report = verify(data)
        assert report.ok, report.lines()
        assert report.epoch > epoch
        log = opened(data)
        found = served(log)
        log.close()
        assert all(found[offset] == BODIES[offset] for offset in found)
        assert set(range(len(BODIES))) - found.keys() == lost, f"killed before call {number}"
