"""Answers wait until every other shard looks for what was subscribed before."""

from __future__ import annotations

import pytest

from headrace.core.ports.link import Link
from headrace.core.shards.holding import Held, Holding
from headrace.storage.memory import MemoryLink
from shard_wires import WiredShards

pytestmark = pytest.mark.interpreted  # a compiled class has no other subclasses


class Noting(Held):
    """An answer that notes that it was given."""

    def __init__(self, given: list[str], name: str, payer: Link | None = None, fails: bool = False) -> None:
        super().__init__(payer)
        self.given = given
        self.name = name
        self.fails = fails

    def finish(self) -> None:
        self.given.append(self.name)
        if self.fails:
            raise ValueError(self.name)


def test_they_are_given_in_order_when_all_have_confirmed() -> None:
    shards = WiredShards()
    holding: Holding = shards[0].neighbours._holding
    given: list[str] = []
    assert not holding.hold(Noting(given, "nothing to wait for"))
    shards.held = {(0, 1)}
    shards[0].client("r").subscribe("a", 1)
    shards.carry()
    link = MemoryLink(shards[0].worker)
    first, second = Noting(given, "first", link), Noting(given, "second", fails=True)
    assert [holding.hold(held) for held in (first, second)] == [True, True]
    assert link.deferred == first.weight
    shards[0].client("s").subscribe("b", 1)
    shards.carry()
    third = Noting(given, "third")
    assert holding.hold(third)
    assert given == []
    shards.held = set()
    shards.carry()
    assert given == ["first", "second", "third"]
    assert link.deferred == 0
    assert shards[0].worker.failures.counts["deferred"] == 1


def test_a_stream_that_is_cut_is_waited_for_no_more() -> None:
    shards = WiredShards()
    holding = shards[0].neighbours._holding
    given: list[str] = []
    shards.held = {(0, 1)}
    shards[0].client("r").subscribe("a", 1)
    shards.carry()
    assert holding.hold(Noting(given, "first"))
    shards.held = set()
    shards.disconnect(0, 1)
    assert given == ["first"]
