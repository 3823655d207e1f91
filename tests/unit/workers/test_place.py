"""A worker knows where it is among the others, and tells another process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.workers.place import Place

PLACE = Place(1, 3, 8, Path("/run/headrace"), "ab" * 16, 7)


def test_one_worker_alone_owns_all_shards() -> None:
    assert Place.alone().owners().shards_of(0) == [0]
    assert Place.alone(3).owners().shards_of(0) == [0, 1, 2]
    assert Place.alone(3).is_alone
    assert not PLACE.is_alone


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
