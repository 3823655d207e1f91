"""Limits of the node on what each shard keeps for itself."""

from __future__ import annotations

from pathlib import Path

from harness import message
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.state.retained import LEVEL_BYTES, LEVELS_FREE, RetainedStore
from headrace.core.state.tenant import Tenant
from headrace.mqtt.topics import checked_topic
from headrace.services.node_counts import NodeCounts
from headrace.services.node_sums import ENTRIES, INTERVAL_S, TENANTS_AT_ONCE, NodeSums
from shards import Shards


def keep(store: RetainedStore, shards: Shards, shard: int, count: int, payload: bytes = b"x") -> None:
    """So many more messages, on topics that are at home in this shard."""
    homes = shards.worker.homes
    kept = len(store)
    for number in range(10_000):
        topic = b"t/%d" % number
        if len(store) == kept + count:
            return
        if homes.of_retained(DEFAULT_TENANT.encode(), topic) == shard and store.get(topic) is None:
            found = message(checked_topic(topic), payload)
            found.offset = number
            store.apply(found)


def tenant(shards: Shards, shard: int) -> Tenant:
    return shards.brokers[shard].fold.tenant(DEFAULT_TENANT)


def test_shards_of_all_workers_keep_one_limit(tmp_path: Path) -> None:
    workers = [Shards(2), Shards(2)]
    sums = [
        NodeSums(one.worker.brokers, NodeCounts(tmp_path / "kept", index, 2, recovers=True))
        for index, one in enumerate(workers)
    ]
    stores = [tenant(workers[at // 2], at % 2).retained for at in range(4)]
    for at, store in enumerate(stores):
        keep(store, workers[at // 2], at % 2, at + 1)
    for _ in range(2):
        assert [one.share() for one in sums] == [INTERVAL_S, INTERVAL_S]
    assert [store.messages_elsewhere for store in stores] == [9, 8, 7, 6]
    total = sum(store.bytes for store in stores)
    assert [store.memory_elsewhere for store in stores] == [total - store.bytes for store in stores]
    for store in stores:
        assert store.has_room_for(b"new", 10, 9, 11, 0)
        assert not store.has_room_for(b"new", 10, 9, 10, 0)
        assert store.has_room_for(b"new", 10, 9, 0, total + 10)
        assert not store.has_room_for(b"new", 10, 9, 0, total + 9)


def test_limits_of_many_tenants_are_those_of_the_node_too(tmp_path: Path) -> None:
    """A few of them in a pass of the loop, until all have had their turn."""
    workers = [Shards(2), Shards(2)]
    sums = [
        NodeSums(one.worker.brokers, NodeCounts(tmp_path / "kept", index, 2, entries=ENTRIES))
        for index, one in enumerate(workers)
    ]
    names = [f"t{number}" for number in range(3 * TENANTS_AT_ONCE)]
    for one in workers:
        for name in names:
            found = message(checked_topic(b"t"), b"x")
            found.offset = 1
            one.brokers[0].fold.make(name).retained.apply(found)
    for _ in range(2):
        turns = [next(n for n in range(1, 99) if one.share() == INTERVAL_S) for one in sums]
        assert min(turns) >= 3
    for one in workers:
        for name in names:
            assert one.brokers[0].fold.tenants[name].retained.messages_elsewhere == 1
    workers[0].brokers[0].fold.tenants.pop("t7")
    assert [next(n for n in range(99) if one.share() == INTERVAL_S) for one in sums]
    assert workers[1].brokers[0].fold.tenants["t7"].retained.messages_elsewhere == 0


def test_a_worker_alone_adds_up_its_shards() -> None:
    shards = Shards(3)
    sums = NodeSums(shards.worker.brokers, None)
    keep(tenant(shards, 0).retained, shards, 0, 2)
    keep(tenant(shards, 2).retained, shards, 2, 3)
    sums.share()
    assert [tenant(shards, shard).retained.messages_elsewhere for shard in range(3)] == [3, 5, 2]
    assert [tenant(shards, shard).queues_elsewhere for shard in range(3)] == [0, 0, 0]


def test_what_is_kept_may_still_be_replaced_by_what_is_no_larger_where_the_node_is_beyond_its_limits() -> (
    None
):
    shards = Shards(2)
    sums = NodeSums(shards.worker.brokers, None)
    for shard in range(2):
        keep(tenant(shards, shard).retained, shards, shard, 5, b"payload")
    sums.share()
    store = tenant(shards, 0).retained
    old = store.messages()[0]
    for size, fits in ((old.size, True), (old.size - 1, True), (old.size + 1, False)):
        assert store.has_room_for(old.topic, size, 7, 3, 20) is fits
    assert store.has_room_for(old.topic, old.size + 1, 8, 3, 0), "no topic more"
    assert store.has_room_for(b"new", 3, 0, 3, 20), "a delete"


def test_memory_is_what_a_limit_is_compared_with() -> None:
    store = RetainedStore()
    assert store.memory() == 0
    deep = message(checked_topic(b"a/b/c/d/e/f/g/h/i/j/k/l"), b"x")
    store.arrive(deep)
    assert store.memory() == deep.size
    store.apply(deep)
    assert store.memory() == deep.size + LEVEL_BYTES * (12 - LEVELS_FREE)
    assert store.memory_soon(b"t", 5) == store.memory() + 5
