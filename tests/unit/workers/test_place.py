"""Every shard has one owner, and every worker knows its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.workers.place import Place

PLACE = Place(1, 3, 8, Path("/run/headrace"), "ab" * 16, 7)


def test_every_shard_belongs_to_one_worker_and_every_worker_has_some() -> None:
    for workers in range(1, 9):
        places = [replace(PLACE, index=index, workers=workers) for index in range(workers)]
        owned = sorted((shard, place.index) for place in places for shard in place.own_shards())
        assert [shard for shard, _ in owned] == list(range(8))
        assert all(places[0].owner_of(shard) == owner for shard, owner in owned)
        assert all(place.own_shards() for place in places)


def test_one_worker_alone_owns_all_shards() -> None:
    assert Place.alone().own_shards() == [0]
    assert Place.alone(3).own_shards() == [0, 1, 2]
    assert Place.alone(3).is_alone
    assert not PLACE.is_alone


@pytest.mark.parametrize("shard", [-1, 8])
def test_a_shard_that_is_not_there_has_no_owner(shard: int) -> None:
    with pytest.raises(ValueError, match="of 8"):
        PLACE.owner_of(shard)


@pytest.mark.parametrize(("index", "workers"), [(3, 3), (-1, 3), (1, 9), (0, 0)])
def test_no_worker_is_without_a_shard(index: int, workers: int) -> None:
    with pytest.raises(ValueError, match="worker"):
        replace(PLACE, index=index, workers=workers)


def test_another_process_reads_the_same_place() -> None:
    assert Place.unpack(PLACE.pack()) == PLACE


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"runtime": 3}', '{"runtime": "/run", "index": 0}'])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        Place.unpack(text)
