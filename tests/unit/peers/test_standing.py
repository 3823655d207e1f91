"""How streams between shards stand: up, not up, or refused until a shard is accepted."""

from __future__ import annotations

import pytest

from headrace.core.shards.neighbours import Neighbours
from headrace.peers.standing import missing, refusals, settled, trouble
from unit.peers.test_peer_metrics import scrape
from unit.peers.test_peers import Crew, Town, in_town


def near(crew: Crew) -> list[Neighbours]:
    return [broker.neighbours for broker in crew.worker.brokers if isinstance(broker.neighbours, Neighbours)]


@in_town
async def test_streams_of_two_workers_are_up_when_both_follow(town: Town) -> None:
    first = await town.open(town.place(0))
    assert sorted(missing(near(first))) == [(0, 1), (1, 0)]
    assert trouble(near(first)) == first.peers.trouble == "shard 0 does not follow shard 1 now"
    assert not settled(near(first))
    second = await town.open(town.place(1))
    await town.until(lambda: settled(near(first)) and settled(near(second)))
    assert (first.peers.trouble, second.peers.trouble) == ("", "")
    assert list(refusals(near(first))) == []


@in_town
async def test_a_worker_waits_for_its_streams_and_not_for_ever(town: Town) -> None:
    first = await town.open(town.place(0))
    await first.peers.settle(0.02, lambda: False)  # nobody is there
    await first.peers.settle(3600.0, lambda: True)  # it is to stop
    second = await town.open(town.place(1))
    waits = first.peers._loop.create_task(second.peers.settle(3600.0, lambda: False))
    await town.until(waits.done)
    assert settled(near(second))


@pytest.mark.parametrize(
    ("field", "value", "source", "follower", "misfit"),
    [
        ("ahead", 70, 0, 1, 0),
        ("behind", (30, 70), 0, 1, 1),
        ("older_followers", (30, 70), 0, 1, 1),
        ("older_sources", (30, 70), 1, 0, 1),
    ],
)
@in_town
async def test_a_stream_that_is_refused_is_trouble_with_the_command_and_nobody_waits_for_it(
    town: Town, field: str, value: object, source: int, follower: int, misfit: int
) -> None:
    first = await town.open(town.place(0))
    getattr(near(first)[0], field)[1] = value
    (refused,) = refusals(near(first))
    assert (refused.source, refused.follower, refused.misfit) == (source, follower, misfit)
    said = first.peers.trouble
    assert said.startswith(f"shard {follower} gets nothing of shard {source}: ")
    assert said.endswith(f"`headrace journal accept {misfit}`")
    assert settled(near(first))
    labels = {"shard": str(source), "follower": str(follower)}
    assert scrape(first).get_sample_value("headrace_stream_refused", labels) == 1
