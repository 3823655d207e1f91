"""What the configuration asks for and what a data directory is agree, or the start is refused with the key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.data.claim import AUTO, Claim, Wish, cores
from headrace.data.layout import Layout
from headrace.errors import ConfigError
from headrace.journal.errors import JournalLocked
from headrace.journal.log import LogSettings, SegmentedLog


def claimed(path: Path, wish: Wish) -> tuple[int, int]:
    """Workers and shards of a start, which ends at once."""
    claim = Claim(path, wish)
    claim.close()
    return claim.workers, claim.layout.shards


def begin(path: Path, shards: int) -> None:
    for directory in Layout.make(path, shards).directories():
        SegmentedLog.open(directory, LogSettings(), print).close()


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(), (1, 1)),
        (Wish(3), (3, 3)),
        (Wish(2, 8), (2, 8)),
        (Wish(1, 4), (1, 4)),
        (Wish(AUTO, 0, 4), (4, 4)),
        (Wish(AUTO, 2, 4), (2, 2)),
        (Wish(AUTO, 8, 4), (4, 8)),
        (Wish(AUTO, 0, 1), (1, 1)),
    ],
)
def test_a_new_directory_is_made_as_asked(tmp_path: Path, wish: Wish, expected: tuple[int, int]) -> None:
    assert claimed(tmp_path / "d", wish) == expected
    assert Layout.open(tmp_path / "d").shards == expected[1]


@pytest.mark.parametrize(
    ("wish", "workers"),
    [(Wish(), 1), (Wish(3), 3), (Wish(AUTO, 0, 2), 2), (Wish(AUTO, 0, 16), 3), (Wish(2, 3), 2)],
)
def test_a_directory_with_data_keeps_its_shards(tmp_path: Path, wish: Wish, workers: int) -> None:
    begin(tmp_path, 3)
    assert claimed(tmp_path, wish) == (workers, 3)


def test_one_shard_stays_one_whatever_there_are_of_cores(tmp_path: Path) -> None:
    begin(tmp_path, 1)
    assert claimed(tmp_path, Wish(AUTO, 0, 8)) == (1, 1)


@pytest.mark.parametrize(
    ("shards", "wish", "said"),
    [
        (
            1,
            Wish(2),
            "^workers: 2, but .* has 1 shard,.*start with 1, or.*headrace reshard --data-dir .* --shards 2",
        ),
        (1, Wish(1, 4), "^shards: 4, but .* made with 1,.*headrace reshard .* --to NEW --shards 4"),
        (3, Wish(4), "^workers: 4, but .* has 3 shards,.*start with 3$"),
        (3, Wish(1, 2), "^shards: 2, but .* made with 3, for good: leave out the key$"),
        (0, Wish(3, 2), "^workers: 3 workers for 2 shards,.*set it to 3 or more"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_key_and_the_way_out(
    tmp_path: Path, shards: int, wish: Wish, said: str
) -> None:
    if shards:
        begin(tmp_path, shards)
    with pytest.raises(ConfigError, match=said):
        Claim(tmp_path, wish)
    begin(tmp_path, 2) if not shards else claimed(tmp_path, Wish())  # nothing is held, nothing was made


@pytest.mark.parametrize("durability", ["os", "none"])
def test_several_shards_need_fsync(tmp_path: Path, durability: str) -> None:
    assert claimed(tmp_path / "one", Wish(durability=durability)) == (1, 1)
    for wish in (Wish(2, durability=durability), Wish(AUTO, 0, 2, durability)):
        with pytest.raises(ConfigError, match=r"^durability: .* set 'fsync'"):
            Claim(tmp_path / "new", wish)
        assert not (tmp_path / "new").exists()
    begin(tmp_path / "two", 2)
    with pytest.raises(ConfigError, match=r"^durability: "):
        Claim(tmp_path / "two", Wish(durability=durability))
    assert claimed(tmp_path / "two", Wish()) == (1, 2)


def test_two_starts_on_one_directory_exclude_each_other(tmp_path: Path) -> None:
    first = Claim(tmp_path, Wish(2))
    with pytest.raises(JournalLocked, match="another process"):
        Claim(tmp_path, Wish(2))
    first.close()
    assert claimed(tmp_path, Wish(2)) == (2, 2)


def test_there_is_a_core() -> None:
    assert cores() >= 1


def test_a_start_waits_for_whoever_has_inherited_the_descriptor_of_workers(tmp_path: Path) -> None:
    before = Claim(tmp_path, Wish(2))
    before.wait_for_workers(0.0)
    worker = subprocess.Popen(["sleep", "60"], pass_fds=[before.workers_fd])
    before.close()
    after = Claim(tmp_path, Wish(2))
    try:
        with pytest.raises(JournalLocked, match="still run"):
            after.wait_for_workers(0.1)
    finally:
        worker.kill()
        worker.wait()
    after.wait_for_workers(30.0)
    after.close()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("wish", [Wish(), Wish(4), Wish(AUTO, 0, 2)])
def test_one_shard_of_several_is_not_served_alone(tmp_path: Path, wish: Wish, begun: bool) -> None:
    """Its journal would go on without those that follow it, with clients that are at home elsewhere."""
    begin(tmp_path, 3) if begun else Layout.make(tmp_path, 3)
    before = sorted((tmp_path / "shard-1").rglob("*"))
    with pytest.raises(ConfigError, match=f"one shard of several.* {tmp_path}$"):
        Claim(tmp_path / "shard-1", wish)
    assert sorted((tmp_path / "shard-1").rglob("*")) == before
