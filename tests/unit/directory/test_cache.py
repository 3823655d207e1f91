"""The cache of the directory."""

from __future__ import annotations

from headrace.directory.cache import MISSING, Cache


def test_the_one_asked_for_longest_ago_goes_first() -> None:
    cache = Cache(2)
    cache.put(("user", "a", "1"), 1, 0)
    cache.put(("user", "a", "2"), 2, 0)
    assert cache.get(("user", "a", "1")) == 1
    cache.put(("user", "a", "3"), 3, 0)
    assert cache.get(("user", "a", "2")) is MISSING
    assert (cache.get(("user", "a", "1")), cache.get(("user", "a", "3")), len(cache)) == (1, 3, 2)


def test_what_was_read_before_a_change_is_not_kept_behind_it() -> None:
    cache = Cache(9)
    cache.apply(5, [("user", "a", "1")], ())
    assert not cache.put(("user", "a", "1"), "old", 4)
    assert cache.get(("user", "a", "1")) is MISSING
    assert cache.put(("user", "a", "1"), "new", 5)
    assert cache.get(("user", "a", "1")) == "new"


def test_a_tenant_goes_with_all_that_it_has() -> None:
    cache = Cache(9)
    for key in (("tenant", "a"), ("user", "a", "1"), ("user", "b", "1"), ("user", "ab", "1")):
        cache.put(key, key, 0)
    cache.apply(1, [], ["a"])
    assert cache.get(("tenant", "a")) is MISSING
    assert cache.get(("user", "a", "1")) is MISSING
    assert cache.get(("user", "b", "1")) is not MISSING
    assert cache.get(("user", "ab", "1")) is not MISSING


def test_a_directory_that_was_put_back_begins_anew() -> None:
    cache = Cache(9)
    cache.apply(100, [], ())
    cache.clear(3)
    assert cache.put(("tenant", "a"), 1, 3)
    assert not cache.put(("tenant", "b"), 1, 2)
