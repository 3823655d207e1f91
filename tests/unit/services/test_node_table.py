"""Tables of several workers in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.services.node_table import ENTRIES, NodeTable, key_of


def test_a_worker_writes_its_own_table_and_reads_all(tmp_path: Path) -> None:
    first, second, third = (NodeTable(tmp_path / "t", worker, 3) for worker in range(3))
    first.put(7, 1)
    third.put(7 + ENTRIES, 3)  # the same place, in another table
    second.put(7, 2)
    second.put(7 + ENTRIES, 4)
    assert [one.mine(7) for one in (first, second, third)] == [1, 2, 0]
    assert [one.of_others(7) for one in (first, second, third)] == [[2, 0], [1, 0], [1, 2]]
    assert first.of_others(7 + ENTRIES) == [4, 3]


def test_what_a_process_has_left_is_there_for_the_next(tmp_path: Path) -> None:
    first = NodeTable(tmp_path / "t", 0, 2)
    for key in (5, 5 + ENTRIES, ENTRIES - 1, 2 * ENTRIES - 1):
        first.put(key, key * 2)
    again = NodeTable(tmp_path / "t", 0, 2)
    assert again.all_of_mine() == first.all_of_mine()
    assert len(again) == 4
    again.keep({9: 1})
    assert NodeTable(tmp_path / "t", 0, 2).all_of_mine() == {9: 1}
    assert 9 in again
    assert 5 not in again


@pytest.mark.parametrize("names", [("node",), ("listener", "tcp://[::]:1883"), ("user", "t", "Zoë")])
def test_a_key_is_a_number_of_64_bits_that_its_names_decide(names: tuple[str, ...]) -> None:
    assert 0 < key_of(*names) < 1 << 64
    assert key_of(*names) == key_of(*names) != key_of(*names, "")


def test_a_file_that_was_removed_is_shared_anew_with_what_all_had(tmp_path: Path) -> None:
    path = tmp_path / "t"
    tables = [NodeTable(path, worker, 3) for worker in range(3)]
    for worker, table in enumerate(tables):
        table.put(7, worker + 1)
    assert not tables[0].renew()
    path.unlink()
    tables[0].put(8, 5)
    assert tables[0].renew()
    assert tables[0].of_others(7) == [2, 3]  # also of one that has died
    tables[1].put(7, 9)  # nobody sees it yet
    assert tables[1].renew()
    assert tables[0].of_others(7) == [9, 3]
    assert tables[1].of_others(8) == [5, 0]
    assert [one.name for one in tmp_path.iterdir()] == ["t"]


def test_a_file_that_somebody_has_made_anew_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first, second = NodeTable(path, 0, 2), NodeTable(path, 1, 2)
    first.put(7, 1)
    second.put(7, 2)
    path.unlink()
    again = NodeTable(path, 1, 2)  # a process that was started again
    again.put(9, 4)
    assert first.renew()
    assert (first.of_others(7), first.of_others(9), again.of_others(7)) == ([0], [4], [1])


def test_without_its_directory_a_table_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    table = NodeTable(folder / "t", 0, 2)
    table.put(7, 1)
    (folder / "t").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        table.renew()
    assert table.mine(7) == 1
