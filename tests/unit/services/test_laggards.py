"""Who is slow or behind, worst first."""

from __future__ import annotations

import asyncio

import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.services import laggards
from headrace.services.laggards import Laggards


@pytest.fixture
def harness() -> Harness:
    return Harness()


def worst(harness: Harness, limit: int = 10) -> list[dict[str, object]]:
    return asyncio.run(Laggards([harness.broker.fold]).worst(limit))


def away(harness: Harness, client_id: str, messages: int) -> None:
    """A session for which so many messages wait."""
    peer = Peer(harness, client_id, clean=False, session_expiry_interval=99)
    peer.subscribe(client_id)
    peer.lose()
    for _ in range(messages):
        Peer(harness, "p").publish(client_id, b"x" * 99, 1)


def test_nobody() -> None:
    assert worst(Harness()) == []


def test_what_waits_for_whom(harness: Harness) -> None:
    away(harness, "c", 3)
    [row] = worst(harness)
    assert row == {
        "tenant": "default",
        "client_id": "c",
        "address": "",
        "connected": False,
        "slow": False,
        "in_flight": 0,
        "messages": 3,
        "bytes": 300,
    }


def test_the_worst_come_first_and_the_others_are_left_out(harness: Harness) -> None:
    for number, messages in enumerate([2, 5, 0, 1, 4, 3]):
        away(harness, str(number), messages)
    assert [row["messages"] for row in worst(harness)] == [5, 4, 3, 2, 1]
    assert [row["client_id"] for row in worst(harness, 2)] == ["1", "4"]


def test_a_full_socket_comes_before_everything(harness: Harness) -> None:
    away(harness, "behind", 5)
    slow = Peer(harness, "slow")
    slow.link.paused = True
    assert [(row["client_id"], row["slow"]) for row in worst(harness)] == [("slow", True), ("behind", False)]


def test_the_window_is_full(harness: Harness) -> None:
    busy = Peer(harness, "busy", receive_maximum=2)
    busy.subscribe("t")
    for _ in range(5):
        Peer(harness, "p").publish("t", qos=1)
    [row] = worst(harness)
    assert (row["connected"], row["in_flight"], row["messages"]) == (True, 2, 3)


def test_sessions_come_and_go_meanwhile(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laggards, "LOOKED_AT", 1)
    for number in range(6):
        away(harness, str(number), 1)

    async def while_others_work() -> list[dict[str, object]]:
        looking = asyncio.create_task(Laggards([harness.broker.fold]).worst(10))
        await asyncio.sleep(0)
        for client_id in ("0", "4"):
            harness.broker.sessions.absences.end(
                harness.broker.fold.tenant("default").sessions[client_id], "test"
            )
        harness.sync()
        return await looking

    found = {row["client_id"] for row in asyncio.run(while_others_work())}
    assert found == {"0", "1", "2", "3", "5"}, "0 was seen before it went"
