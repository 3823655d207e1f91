"""Every shard has one owner or none, and everybody asks the same table."""

from __future__ import annotations

import pytest

from headrace.workers.owners import NOBODY, Owners


def test_every_shard_belongs_to_one_worker_and_every_worker_has_some() -> None:
    for workers in range(1, 9):
        owners = Owners(8, workers)
        dealt = [owners.shards_of(worker) for worker in range(workers)]
        assert sorted(shard for shards in dealt for shard in shards) == list(range(8))
        assert all(dealt)
        assert all(owners.of(shard) == worker for worker, shards in enumerate(dealt) for shard in shards)


def test_an_owner_changes_for_whoever_asks() -> None:
    owners = Owners(4, 2)
    owners.move(2, 1)
    assert (owners.of(2), owners.shards_of(0), owners.shards_of(1)) == (1, [0], [1, 2, 3])
    owners.move(2, NOBODY)
    assert (owners.of(2), owners.shards_of(1), owners.shards) == (NOBODY, [1, 3], 4)


@pytest.mark.parametrize("shard", [-1, 8])
def test_a_shard_that_is_not_there_has_no_owner(shard: int) -> None:
    owners = Owners(8, 3)
    with pytest.raises(ValueError, match="of 8"):
        owners.of(shard)
    with pytest.raises(ValueError, match="of 8"):
        owners.move(shard, 0)


def test_the_shards_of_a_cluster_are_nobodys_at_first() -> None:
    owners = Owners.unowned(3)
    assert [owners.of(shard) for shard in range(3)] == [NOBODY] * 3
    owners.move(1, 4711)
    assert owners.shards_of(4711) == [1]
