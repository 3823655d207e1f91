"""Where clients, topics and groups are at home. The homes in here are those of data directories: they never change."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.homes import Homes


def test_the_homes_of_data_directories_are_what_they_were() -> None:
    homes = Homes(7)
    assert [homes.of_client("default", name) for name in ("", "a", "meter-17", "Zähler")] == [6, 4, 3, 4]
    assert homes.of_topic("default", "a/b") == 1
    assert homes.of_group("default", "g", "a/#") == 3


def test_one_shard_is_the_home_of_everything() -> None:
    homes = Homes()
    assert {homes.of_client("default", str(number)) for number in range(100)} == {0}


def test_clients_spread_evenly_over_the_shards() -> None:
    homes = Homes(8)
    found = Counter(homes.of_client("default", f"device-{number}") for number in range(8000))
    assert set(found) == set(range(8))
    assert min(found.values()) > 800


def test_names_that_read_the_same_together_are_told_apart() -> None:
    homes = Homes(1 << 30)
    assert homes.of_client("ab", "c") != homes.of_client("a", "bc")
    assert homes.of_group("t", "g", "h/i") != homes.of_group("t", "g/h", "i")


def test_there_is_at_least_one_shard() -> None:
    with pytest.raises(ValueError, match="0 shards"):
        Homes(0)
