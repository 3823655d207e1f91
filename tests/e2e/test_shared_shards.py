"""A shared subscription of two workers: its queue is at one of them, its members are at both, also after kill -9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.raw import RawClient
from e2e.test_shared import gather, member, numbers
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
