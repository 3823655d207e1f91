"""Which retained messages are listed, page by page, and what is in one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.peer import Peer
from harness import START_US, Harness
from headrace.errors import NotThere
from headrace.mqtt.properties import Properties
from headrace.services import retained_rows
from headrace.services.paging import Place
from headrace.services.retained_rows import Kept, RetainedRows, Walks, WalksByShard

RUN = 77


@pytest.fixture
def harness() -> Harness:
    found = Harness()
    peer = Peer(found, "p")
    for number in range(5):
        peer.publish(f"a/{number}", b"x", 1, True)
    peer.publish("b", b"\xff", 2, True)
    return found


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    found = asyncio.new_event_loop()
    yield found
    found.close()


def rows_of(harness: Harness, walks: Walks | None = None) -> RetainedRows:
    return RetainedRows(harness.broker.fold, harness.clock, Walks(RUN) if walks is None else walks, 3, 1)


async def listed(rows: RetainedRows, wanted: Kept, limit: int = 2) -> list[Any]:
    """The topics of all pages."""
    found: list[Any] = []
    place: Place | None = Place()
    while place is not None:
        page, place = await rows.page(wanted, limit, place)
        assert len(page) <= limit
        found += [row["topic"] for row in page]
    return found


def test_all_are_listed_and_those_that_a_filter_matches(
    harness: Harness, loop: asyncio.AbstractEventLoop
) -> None:
    of_a = [f"a/{number}" for number in range(5)]
    rows = rows_of(harness)
    assert sorted(loop.run_until_complete(listed(rows, Kept("default")))) == [*of_a, "b"]
    assert sorted(loop.run_until_complete(listed(rows, Kept("default", "a/+")))) == of_a
    assert loop.run_until_complete(listed(rows, Kept("nobody"))) == []
    assert "nobody" not in harness.broker.fold.tenants


def test_a_message_is_told_with_all_that_is_in_it(harness: Harness) -> None:
    properties = Properties()
    properties.content_type, properties.correlation_data = "text/plain", b"\x01"
    properties.user_properties = [("n", "1"), ("n", "2")]
    Peer(harness, "q").publish("a/b", "\u00e4".encode(), 1, True, 7, properties.encode(), 9)
    rows = rows_of(harness)
    found = rows.message("default", "a/b")
    expected = {
        "tenant": "default",
        "topic": "a/b",
        "qos": 1,
        "size": 3 + 2 + len(properties.encode()),
        "client_id": "q",
        "is_will": False,
        "received_at_us": START_US,
        "expires_at_us": START_US + 9_000_000,
        "shard": 3,
        "worker": 1,
        "payload": base64.b64encode("\u00e4".encode()).decode(),
        "text": "\u00e4",
        "properties": {
            "content_type": "text/plain",
            "correlation_data": "AQ==",
            "user_properties": [("n", "1"), ("n", "2")],
        },
    }
    assert found == expected
    assert (rows.message("default", "b")["text"], rows.message("default", "b")["payload"]) == (None, "/w==")


def test_what_is_not_there_is_named_and_what_has_expired_is_not_there(
    harness: Harness, loop: asyncio.AbstractEventLoop
) -> None:
    Peer(harness, "q").publish("old", b"x", 1, True, expiry_s=1)
    rows = rows_of(harness)
    assert rows.message("default", "old")
    harness.clock.now_us += 2_000_000
    for tenant, topic in (("default", "old"), ("default", "a"), ("nobody", "b")):
        with pytest.raises(NotThere, match="no retained message"):
            rows.message(tenant, topic)
    assert loop.run_until_complete(listed(rows, Kept("default", "old"))) == []


def test_a_page_may_be_asked_for_again_and_no_other_one(
    harness: Harness, loop: asyncio.AbstractEventLoop
) -> None:
    rows = rows_of(harness)

    async def life() -> None:
        first, second = await rows.page(Kept("default"), 2, Place())
        assert second is not None
        page, third = await rows.page(Kept("default"), 2, second)
        assert await rows.page(Kept("default"), 2, second) == (page, third)
        assert third is not None
        await rows.page(Kept("default"), 2, third)
        assert first != page
        for wrong in (second, Place(9, third.inner), Place(0, RUN + 9)):
            with pytest.raises(ValueError, match="from: this page"):
                await rows.page(Kept("default"), 2, wrong)
        for other in (Kept("other"), Kept("default", "a/#")):
            with pytest.raises(ValueError, match="from: this page"):
                await rows.page(other, 2, third)

    loop.run_until_complete(life())


def test_walks_that_nobody_goes_on_with_are_gone(
    harness: Harness, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Walks(RUN)
    rows = rows_of(harness, walks)

    async def life() -> None:
        places = [(await rows.page(Kept("default"), 1, Place()))[1] for _ in range(9)]
        assert len(walks) == 8
        with pytest.raises(ValueError, match="begin anew"):
            await rows.page(Kept("default"), 1, places[0] or Place())
        await rows.page(Kept("default"), 1, places[1] or Place())
        monkeypatch.setattr(retained_rows, "KEPT_S", 0.0)
        for place in places[1:]:
            walks.at(-1 if place is None else place.inner)
        while len(walks):
            await asyncio.sleep(0.001)

    loop.run_until_complete(asyncio.wait_for(life(), 10))


def test_a_walk_that_failed_is_not_gone_on_with(
    harness: Harness, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had taken from the tree is in no page, and would be left out of the list without a word."""
    walks = Walks(RUN)
    rows = rows_of(harness, walks)

    async def life() -> None:
        _, place = await rows.page(Kept("default"), 2, Place())
        assert place is not None
        with monkeypatch.context() as fails:
            fails.setattr(retained_rows, "asdict", fail)
            with pytest.raises(MemoryError):
                await rows.page(Kept("default"), 2, place)
        assert len(walks) == 0
        with pytest.raises(ValueError, match="begin anew"):
            await rows.page(Kept("default"), 2, place)

    def fail(_: object) -> dict[str, object]:
        raise MemoryError

    loop.run_until_complete(life())


def test_a_walk_gives_way_and_a_page_ends_where_much_was_looked_at(
    harness: Harness, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_rows, "_PIECE", 1)
    monkeypatch.setattr(retained_rows, "_PIECES_MAX", 3)
    rows, passes = rows_of(harness), 0

    async def life() -> tuple[list[Any], Place | None]:
        nonlocal passes
        walk = asyncio.ensure_future(rows.page(Kept("default"), 9, Place()))
        while not walk.done():
            await asyncio.sleep(0)
            passes += 1
        return walk.result()

    page, following = loop.run_until_complete(life())
    assert (len(page), following) == (3, Place(1, RUN))
    assert passes >= 3
    assert len(loop.run_until_complete(listed(rows, Kept("default"), 9))) == 6


def test_a_shard_that_was_opened_again_has_other_walks() -> None:
    walks = WalksByShard()
    first = walks.of(0, 5)
    assert walks.of(0, 5) is first
    assert walks.of(1, 5) is not first
    again = walks.of(0, 6)
    assert again is not first
    assert walks.of(0, 5) not in (first, again)
