"""Counts over all workers: several workers of one file, each with a mapping of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.services.node_counts import NodeCounts, forget
from headrace.services.node_table import ENTRIES, key_of


def crew(folder: Path, count: int = 3) -> list[NodeCounts]:
    return [NodeCounts(folder / "counts", worker, count) for worker in range(count)]


def test_each_worker_sees_what_the_others_have(tmp_path: Path) -> None:
    workers = crew(tmp_path)
    node, user = key_of("node"), key_of("user", "default", "bob")
    for number, one in enumerate(workers):
        one.set(node, 10 + number)
    workers[1].set(user, 7)
    assert [one.others(node) for one in workers] == [23, 22, 21]
    assert [one.others(user) for one in workers] == [7, 0, 7]
    workers[1].set(user, 0)
    assert workers[0].others(user) == 0


def test_a_disk_without_room_is_named_at_the_start_and_no_page_is_missing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts"
    first = NodeCounts(path, 0, 3)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 3 * ENTRIES * 16
    first.close()

    def refuse(fd: int, position: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=r"/counts: No space left on device") as full:
        NodeCounts(path, 1, 3)
    assert full.value.errno == errno.ENOSPC


def test_a_worker_that_starts_again_has_nothing(tmp_path: Path) -> None:
    workers = crew(tmp_path)
    workers[1].set(5, 9)
    assert workers[0].others(5) == 9
    again = NodeCounts(tmp_path / "counts", 1, 3)
    assert workers[0].others(5) == 0
    again.set(5, 2)
    assert (workers[0].others(5), workers[2].others(5)) == (2, 2)


def test_a_worker_that_ends_has_nothing_and_the_others_keep_theirs(tmp_path: Path) -> None:
    workers = crew(tmp_path)
    for one in workers:
        one.set(5, 1)
    workers[2].close()
    assert workers[0].others(5) == 1


def test_what_a_process_that_was_killed_has_left_is_forgotten_without_it(tmp_path: Path) -> None:
    forget(tmp_path / "counts", 0, 3)  # it was killed before it had a table
    assert not (tmp_path / "counts").exists()
    workers = crew(tmp_path)
    for one in workers:
        one.set(5, 1)
    forget(tmp_path / "counts", 2, 3)
    assert [one.others(5) for one in workers] == [1, 1, 2]


def test_keys_of_the_same_place_are_kept_apart(tmp_path: Path) -> None:
    first, second = crew(tmp_path, 2)
    keys = [7 + step * ENTRIES for step in range(20)]
    last = [ENTRIES - 1 + step * ENTRIES for step in range(3)]  # the table goes round
    for number, key in enumerate(keys + last):
        first.set(key, number + 1)
    assert [second.others(key) for key in keys + last] == list(range(1, 24))
    assert second.others(7 + 20 * ENTRIES) == 0


def test_users_who_have_gone_make_room_for_others(tmp_path: Path) -> None:
    first, second = crew(tmp_path, 2)
    first.set(1, 3)
    for key in range(2, 3 * ENTRIES, 3):
        first.set(key, 1)
        first.set(key, 0)
    first.set(1 << 40, 4)
    assert (second.others(1), second.others(1 << 40)) == (3, 4)


def test_more_keys_than_there_is_room_for_are_counted_by_the_worker_alone(tmp_path: Path) -> None:
    first, second = crew(tmp_path, 2)
    for key in range(1, ENTRIES + 1):
        first.set(key, 1)
    assert sum(second.others(key) for key in range(1, ENTRIES + 1)) == ENTRIES * 3 // 4
    first.set(ENTRIES, 1)
    first.set(1, 5)
    assert second.others(1) == 5


def test_a_smaller_table_takes_less_room_and_fewer_keys(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    first, second = [NodeCounts(path, worker, 2, entries=16) for worker in range(2)]
    assert path.stat().st_size == 2 * 16 * 16
    for key in range(1, 17):
        first.set(key, 1)
        second.set(key, 2)
    assert [one.others(5) for one in (first, second)] == [2, 1]
    assert sum(second.others(key) for key in range(1, 17)) == 12
    first.set(3, 0)
    first.set(4, 0)
    first.set(16, 7)  # those of whom there are none make room
    assert second.others(16) == 7
