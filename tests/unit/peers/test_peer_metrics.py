"""What /metrics tells of links and streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client.registry import CollectorRegistry

from harness import Harness
from headrace.peers.peer_metrics import PeerCollector
from headrace.storage.memory import MemoryJournal
from unit.peers.test_peers import Crew, Town, in_town, payloads, suback


def scrape(crew: Crew) -> CollectorRegistry:
    """What this worker tells; a record of its journals counts as ten bytes."""

    registry = CollectorRegistry()
    shards: dict[int, Callable[[int], tuple[int, int]]] = {
        shard: partial(behind, journal) for shard, journal in crew.journals.items()
    }
    registry.register(PeerCollector(crew.worker, crew.peers, shards))
    return registry


def behind(journal: MemoryJournal, offset: int) -> tuple[int, int]:
    count = journal.durable - offset
    return count, 10 * count


@in_town
async def test_copies_and_lags_are_told_of_each_shard(town: Town) -> None:
    first, second = await town.pair()
    reader, writer = second.client_in(1, "r"), first.client_in(0, "w")
    reader.subscribe("a", 1)
    await town.until(lambda: suback(reader))
    for _ in range(3):
        writer.publish("a", b"x")
    found: list[bytes] = []

    def complete() -> bool:
        found.extend(payloads(reader))
        return len(found) == 3

    await town.until(complete)
    near, far = scrape(first), scrape(second)
    assert near.get_sample_value("headrace_worker_links") == 1
    assert near.get_sample_value("headrace_stream_copies_sent_total", {"shard": "0"}) == 3
    assert far.get_sample_value("headrace_stream_copies_taken_total", {"shard": "1"}) == 3
    stream = {"shard": "0", "follower": "1"}
    assert near.get_sample_value("headrace_stream_up", stream) == 1
    assert near.get_sample_value("headrace_stream_lag_records", stream) == 0
    assert (near.get_sample_value("headrace_worker_link_sent_bytes_total") or 0) > 100
    assert (far.get_sample_value("headrace_worker_link_received_bytes_total") or 0) > 100


@in_town
async def test_a_shard_that_does_not_follow_lags(town: Town) -> None:
    first, second = await town.pair()
    await second.peers.stop()
    town.crews.remove(second)
    await town.until(lambda: first.peers.links_up == 0)
    first.client_in(0, "w").publish("a", b"x")
    registry = scrape(first)
    stream = {"shard": "0", "follower": "1"}
    durable = first.journals[0].durable
    assert registry.get_sample_value("headrace_worker_link_ends_total", {"reason": "closed"}) == 1
    assert registry.get_sample_value("headrace_stream_up", stream) == 0
    assert registry.get_sample_value("headrace_stream_lag_records", stream) == durable
    assert registry.get_sample_value("headrace_stream_lag_bytes", stream) == 10 * durable


def test_one_worker_with_one_shard_has_the_families_and_no_streams() -> None:
    registry = CollectorRegistry()
    registry.register(PeerCollector(Harness().worker, None, {}))
    assert registry.get_sample_value("headrace_worker_links") == 0
    assert [family.name for family in registry.collect() if family.name == "headrace_stream_cuts"]
