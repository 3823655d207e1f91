"""What is left of a tenant that was deleted: all of it goes, from each shard, and nothing of anybody else."""

from __future__ import annotations

import asyncio

import pytest

from harness import Harness
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.state.session import BRIDGE_PREFIX
from headrace.frames.frame import JOIN, LEAVE, PUBLISH, PULL
from headrace.services import clearing
from headrace.services.clearing import Clearing
from tenants import BLUE, GREEN, ByName
from unit.core.outbound.test_removing import Place


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.worker.tenancy = ByName()
    return harness


def fill(harness: Harness, tenant: str, sessions: int, retained: int) -> None:
    """Sessions with a message each, of which the last one is connected, and so much that is retained."""
    for number in range(sessions):
        client = harness.client(f"c{number}", username=f"{tenant}/u")
        client.subscribe("t", 1)
        if number + 1 < sessions:
            client.lose()
    writer = harness.client("writer", clean=True, username=f"{tenant}/u")
    writer.publish("t", b"waits", 1)
    for number in range(retained):
        writer.publish(f"kept/{number}", b"x", 1, retain=True)
    writer.lose()
    harness.sync()


def held(harness: Harness, tenant: str) -> tuple[int, int]:
    found = harness.broker.fold.tenants[tenant]
    return len(found.sessions), len(found.retained)


def clear(harness: Harness, tenant: str, turns: int = 1000) -> int:
    """Clear a tenant, with a journal that gets on whenever somebody waits for it; wanted for so many rounds."""
    left = iter(range(turns))

    async def run() -> int:
        made = Clearing(lambda: [harness.broker])
        assert made.is_needed(tenant)
        going = asyncio.ensure_future(made.clear(tenant, lambda: next(left, None) is not None))
        while not going.done():
            await asyncio.sleep(0)
            harness.sync()
        return going.result()

    return asyncio.run(run())


def test_all_of_a_tenant_goes_and_all_of_another_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE", 3)
    for tenant in (BLUE, GREEN):
        fill(harness, tenant, 5, 7)
    assert held(harness, BLUE) == (5, 7)
    assert clear(harness, BLUE) == 5 + 7
    assert not Clearing(lambda: [harness.broker]).is_needed(BLUE)
    assert (held(harness, BLUE), held(harness, GREEN)) == ((0, 0), (5, 7))
    assert harness.broker.fold.tenants[BLUE].space.count == 0
    harness.crash()
    assert (held(harness, BLUE), held(harness, GREEN)) == ((0, 0), (5, 7))


def test_a_name_that_is_given_free_meanwhile_is_left_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE", 2)
    fill(harness, BLUE, 6, 0)
    assert clear(harness, BLUE, turns=1) == 2
    assert held(harness, BLUE) == (4, 0)


@pytest.mark.interpreted  # the doors' links are classes of their own
def test_topic_queues_go_with_what_is_in_them_once_nobody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing, "_AGAIN_S", 0.01)
    place = Place(1)
    place.door.wait_ms = 60_000
    place.send(JOIN, PULL)  # which waits

    async def run() -> None:
        made, turns = Clearing(lambda: [place.shard.broker]), 0
        going = asyncio.ensure_future(made.clear(DEFAULT_TENANT, lambda: True))
        while not going.done():
            await asyncio.sleep(0.001)
            turns += 1
            if turns == 50:
                assert place.clusters() == [b"c"]
                place.send(PUBLISH, LEAVE)
            place.node.carry()
        assert await going >= 1

    asyncio.run(run())
    assert place.clusters() is None


def test_what_is_the_brokers_own_and_what_is_nobodys_is_not_looked_for(harness: Harness) -> None:
    made = Clearing(lambda: [harness.broker])
    assert not made.is_needed("nobody")
    fill(harness, BLUE, 1, 0)
    sessions = harness.broker.fold.tenants[BLUE].sessions
    sessions[f"{BRIDGE_PREFIX}north"] = sessions.pop("c0")
    assert not made.is_needed(BLUE)
    assert not Clearing(list).is_needed(BLUE)  # no shard is here
