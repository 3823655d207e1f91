"""A shared subscription of two workers: its queue is at one of them, its members are at both, also after kill -9."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.raw import RawClient
from e2e.test_shared import gather, member, numbers, unlike
from e2e.wire import Packet
from e2e.workers import Crew

Clients = Callable[..., RawClient]
pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]
COUNT = 100


def share_in(crew: Crew, home: int) -> str:
    names = (f"g{number}" for number in range(99))
    return next(
        f"$share/{name}/plant/#" for name in names if crew.homes.of_group("default", name, "plant/#") == home
    )


def came(found: list[list[Packet]], topic: str, qos: int) -> list[int]:
    """What was published on a topic, in order; at QoS 1 a wire that broke may have brought one to both members."""
    arrived = numbers([packet for packets in found for packet in packets if packet.topic == topic])
    return sorted(arrived if qos == 2 else set(arrived))


@pytest.mark.parametrize(("home", "qos"), [(0, 1), (1, 2)])
def test_members_of_both_workers_share_what_is_published_at_one(
    crew: Crew, clients: Clients, home: int, qos: int
) -> None:
    share, names = share_in(crew, home), [crew.name_in(0, "m"), crew.name_in(1, "m")]
    members = [
        member(worker, clients, name, share, qos) for worker, name in zip(crew.workers, names, strict=True)
    ]
    writer = clients(crew.workers[0], crew.name_in(0, "w"))
    for number in range(COUNT):
        writer.deliver("plant/1", b"%d" % number, qos)
    found = gather(members, COUNT, 60)
    assert all(found)
    assert came(found, "plant/1", qos) == list(range(COUNT))
    for worker in crew.workers:
        worker.crash()
    crew.wait_linked()
    writer = clients(crew.workers[1], crew.name_in(1, "w"))
    for number in range(COUNT, 2 * COUNT):
        writer.deliver("plant/2", b"%d" % number, qos)
    members = [
        clients(worker, name, 5, clean=False, properties={})
        for worker, name in zip(crew.workers, names, strict=True)
    ]
    found = gather(members, COUNT, 60)
    assert came(found, "plant/2", qos) == list(range(COUNT, 2 * COUNT))


@pytest.mark.parametrize("strategy", ["round-robin", "least-in-flight"])
def test_a_strategy_holds_over_members_of_both_workers(
    tmp_path: Path, clients: Clients, strategy: str
) -> None:
    """The first of three members acknowledges nothing: one of the worker that has not the group, as the second."""
    crew = Crew(tmp_path, 2, 2, {"session.shared_strategy": strategy})
    try:
        crew.start()
        share, homes = share_in(crew, 0), (1, 1, 0)
        names = [crew.name_in(home, f"m{at}-") for at, home in enumerate(homes)]
        members = [
            member(crew.workers[home], clients, client_id, share)
            for home, client_id in zip(homes, names, strict=True)
        ]
        writer = clients(crew.workers[1], crew.name_in(1, "w"))
        counts = unlike(members, writer, "plant/1", range(24))
        assert sum(counts) == 24
        if strategy == "round-robin":
            assert counts == [8, 8, 8]
        else:  # an acknowledgement that is on its way to the home of the group may make it one more
            assert counts[0] <= 3
            assert min(counts[1:]) >= 4
    finally:
        crew.end()
    crew.check()
