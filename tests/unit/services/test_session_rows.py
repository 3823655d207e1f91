"""Who is listed of sessions and clients, page by page, while they come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.peer import Peer
from harness import START_US, Harness
from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.core.state.session import BRIDGE_PREFIX, Session
from headrace.errors import NotThere, ShardAway
from headrace.services import session_rows
from headrace.services.paging import ByHome, Place
from headrace.services.session_rows import Chosen, SessionRows

RUN = 77
CLIENTS = Chosen(as_clients=True)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def rows_of(harness: Harness) -> SessionRows:
    return SessionRows(harness.broker.fold, 3, 1, RUN)


def listed(rows: SessionRows, wanted: Chosen, limit: int = 2) -> list[Any]:
    """The client ids of all pages."""
    found: list[Any] = []
    place: Place | None = Place()
    while place is not None:
        page, place = asyncio.run(rows.page(wanted, limit, place))
        assert len(page) <= limit
        found += [row["client_id"] for row in page]
    return found


def test_a_client_that_is_connected_is_told_with_all_that_it_is(harness: Harness) -> None:
    peer = Peer(harness, "a/b", keep_alive_s=30)
    peer.link.identity = harness.broker.fold.tenant("default").identity_of("somebody")
    expected = {
        "tenant": "default",
        "client_id": "a/b",
        "user": "somebody",
        "address": "memory",
        "listener": "",
        "transport": "",
        "version": "5.0",
        "connected_at_us": START_US,
        "keep_alive_s": 30,
        "in_flight": 0,
        "shard": 3,
        "worker": 1,
    }
    assert rows_of(harness).client("default", "a/b") == expected
    assert asyncio.run(rows_of(harness).page(CLIENTS, 9, Place())) == ([expected], None)


def test_a_session_is_told_with_all_that_it_holds_and_where_it_lies(harness: Harness) -> None:
    peer = Peer(harness, "c", clean=False, session_expiry_interval=99)
    peer.subscribe("a/#")
    peer.lose()
    Peer(harness, "p").publish("a/b", b"x", 1)
    found = rows_of(harness).session("default", "c")
    known = ("state", "backlog", "expiry_s", "closed_at_us", "shard", "worker")
    assert [found[name] for name in known] == ["away", 1, 99, START_US, 3, 1]
    assert found["subscriptions"] == {"a/#": {"qos": 1, "no_local": False, "retain_as_published": False}}


def test_who_is_wanted(harness: Harness) -> None:
    for number in range(3):
        Peer(harness, f"on-{number}", clean=False, session_expiry_interval=99)
        Peer(harness, f"off-{number}", clean=False, session_expiry_interval=99).lose()
    fold, rows = harness.broker.fold, rows_of(harness)
    fold.add(Session(fold.tenant("default"), f"{MEMBER_PREFIX}1/7", 10**6, 0, 9))
    fold.add(Session(fold.tenant("default"), f"{BRIDGE_PREFIX}north", 10**6 + 1, 0, 9))
    fold.add(Session(fold.make("other"), "on-0", 10**6 + 2, 0, 9))
    ons, offs = [f"on-{number}" for number in range(3)], [f"off-{number}" for number in range(3)]
    assert listed(rows, CLIENTS) == ons
    assert listed(rows, Chosen(pattern="*-[12]", as_clients=True)) == ons[1:]
    assert sorted(listed(rows, Chosen(tenant="default"))) == sorted([*ons, *offs, f"{BRIDGE_PREFIX}north"])
    assert listed(rows, Chosen(tenant="default", state="away")) == offs
    assert listed(rows, Chosen(tenant="other")) == ["on-0"]
    assert listed(rows, Chosen(tenant="nobody")) == []


def test_who_is_not_there_is_named(harness: Harness) -> None:
    Peer(harness, "off", clean=False, session_expiry_interval=99).lose()
    rows = rows_of(harness)
    for client_id, tenant in (("off", "default"), ("x", "default"), ("x", "nobody")):
        with pytest.raises(NotThere, match=f"no client '{client_id}'"):
            rows.client(tenant, client_id)
    with pytest.raises(NotThere, match="no session 'x'"):
        rows.session("nobody", "x")
    assert "nobody" not in harness.broker.fold.tenants


def test_a_client_is_looked_for_at_its_home(harness: Harness) -> None:
    homes, rows = Homes(2), rows_of(harness)
    by_home = {homes.of_client("default", name): name for name in ("a", "b", "c", "d")}
    found = ByHome({0: rows}, homes.of_client)
    assert found.of("default", by_home[0]) is rows
    with pytest.raises(NotThere, match="shard 1"):
        found.of("default", by_home[1])
    found = ByHome({0: rows}, homes.of_client, {1: "shard 1: journal failed"})
    assert found.of("default", by_home[0]) is rows
    with pytest.raises(ShardAway, match="shard 1: journal failed"):
        found.of("default", by_home[1])


def test_a_page_ends_where_much_was_looked_at(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "LOOKED_AT_MAX", 3)
    for number in range(5):
        Peer(harness, f"c{number}", clean=False, session_expiry_interval=99)
    rows = rows_of(harness)
    page, following = asyncio.run(rows.page(Chosen(pattern="c4"), 9, Place()))
    assert (page, following) == ([], Place(3, RUN))
    assert listed(rows, Chosen(pattern="c4")) == ["c4"]


def test_a_walk_gives_way_to_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "WORK", 1)
    for number in range(5):
        Peer(harness, f"c{number}")
    passes = 0

    async def life() -> None:
        nonlocal passes
        walk = asyncio.ensure_future(rows_of(harness).page(CLIENTS, 9, Place()))
        while not walk.done():
            await asyncio.sleep(0)
            passes += 1

    asyncio.run(life())
    assert passes >= 5


def test_a_page_of_another_run_is_refused_since_places_have_changed(harness: Harness) -> None:
    with pytest.raises(ValueError, match=r"^from: the shard was opened again"):
        asyncio.run(rows_of(harness).page(CLIENTS, 9, Place(4, RUN + 1)))


@given(st.integers(0, 12), st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=20), st.integers(1, 4))
def test_who_is_there_during_the_whole_walk_is_listed_once(
    start: int, changes: list[int | None], limit: int
) -> None:
    """Between two pages one is opened (None), or the one of this number ends."""
    harness = Harness()
    fold = harness.broker.fold
    there = {number: open_session(harness, number) for number in range(start)}
    stays, found = set(there), []
    place: Place | None = Place()
    rows, left, number = rows_of(harness), list(changes), 100
    while place is not None:
        page, place = asyncio.run(rows.page(Chosen(), limit, place))
        found += [row["client_id"] for row in page]
        for _ in range(2):
            change = left.pop() if left else -1
            if change is None:
                number += 1
                there[number] = open_session(harness, number)
            elif change in there:
                fold.leave(there.pop(change))
                stays.discard(change)
    assert len(found) == len(set(found))
    assert {f"c{number}" for number in stays} <= set(found)


def open_session(harness: Harness, number: int) -> Session:
    fold = harness.broker.fold
    session = Session(fold.tenant("default"), f"c{number}", 10**6 + number, 0, 99)
    fold.add(session)
    return session
