"""Which subscriptions are listed, page by page, while they come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.peer import Peer
from harness import Harness
from headrace.core.homes import MEMBER_PREFIX
from headrace.core.state.session import Session, Subscription
from headrace.mqtt.packets import SubscriptionRequest
from headrace.services import subscription_rows
from headrace.services.paging import Place
from headrace.services.session_rows import Chosen
from headrace.services.subscription_rows import Sought, SubscriptionRows

RUN = 77
ANY = Chosen()


@pytest.fixture
def harness() -> Harness:
    return Harness()


def rows_of(harness: Harness) -> SubscriptionRows:
    return SubscriptionRows(harness.broker.fold, 3, 1, RUN)


def listed(rows: SubscriptionRows, wanted: Sought, limit: int = 2) -> list[Any]:
    """The client ids and filters of all pages."""
    found: list[Any] = []
    place: Place | None = Place()
    while place is not None:
        page, place = asyncio.run(rows.page(wanted, limit, place))
        assert len(page) <= limit
        found += [(row["client_id"], row["filter"]) for row in page]
    return found


def test_a_subscription_is_told_with_all_its_options(harness: Harness) -> None:
    peer = Peer(harness, "c", clean=False, session_expiry_interval=99)
    peer.subscribe(SubscriptionRequest("a/+", 2, True, True, 2), identifier=7)
    peer.lose()
    told = {
        "tenant": "default",
        "client_id": "c",
        "filter": "a/+",
        "qos": 2,
        "no_local": True,
        "retain_as_published": True,
        "retain_handling": 2,
        "subscription_id": 7,
        "state": "away",
        "shard": 3,
        "worker": 1,
    }
    assert asyncio.run(rows_of(harness).page(Sought(ANY), 9, Place())) == ([told], None)


def test_who_gets_a_topic_is_listed_and_who_has_a_filter(harness: Harness) -> None:
    for name, filters in {"one": ["a/+", "b"], "two": ["#"], "three": ["$share/g/a/b", "c"]}.items():
        Peer(harness, name).subscribe(*filters)
    fold, rows = harness.broker.fold, rows_of(harness)
    stand_in = Session(fold.tenant("default"), f"{MEMBER_PREFIX}1/7", 10**6, 0, 9)
    fold.add(stand_in)
    fold.subscribe(stand_in, subscription(stand_in, "a/b"), 0)
    everywhere = [("one", "a/+"), ("three", "$share/g/a/b"), ("two", "#")]
    assert sorted(listed(rows, Sought(ANY, topic="a/b"))) == everywhere
    assert listed(rows, Sought(ANY, filter="b")) == [("one", "b")]
    assert listed(rows, Sought(Chosen(pattern="t*"), topic="c")) == [("two", "#"), ("three", "c")]
    assert listed(rows, Sought(Chosen(tenant="nobody"))) == []
    assert listed(rows, Sought(ANY, topic="$SYS/x")) == []


def test_a_page_ends_where_much_was_looked_at_and_gives_way(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_rows, "LOOKED_AT_MAX", 4)
    monkeypatch.setattr(subscription_rows, "WORK", 1)
    for number in range(5):
        Peer(harness, f"c{number}").subscribe(f"t/{number}")
    rows, passes = rows_of(harness), 0

    async def life() -> tuple[object, Place | None]:
        nonlocal passes
        walk = asyncio.ensure_future(rows.page(Sought(ANY, filter="t/4"), 9, Place()))
        while not walk.done():
            await asyncio.sleep(0)
            passes += 1
        return walk.result()

    assert asyncio.run(life()) == ([], Place(2 << 32, RUN))
    assert passes >= 2
    assert listed(rows, Sought(ANY, filter="t/4")) == [("c4", "t/4")]


def test_a_page_of_another_run_is_refused_since_places_have_changed(harness: Harness) -> None:
    with pytest.raises(ValueError, match=r"^from: the shard was opened again"):
        asyncio.run(rows_of(harness).page(Sought(ANY), 9, Place(4, RUN + 1)))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=20),
    st.integers(1, 4),
)
def test_what_is_subscribed_during_the_whole_walk_is_listed_once(
    counts: list[int], changes: list[tuple[int, int, bool]], limit: int
) -> None:
    """Between two pages a session subscribes to the filter of this number, or ends its subscription."""
    harness = Harness()
    fold = harness.broker.fold
    sessions = [Session(fold.tenant("default"), f"c{n}", 10**6 + n, 0, 99) for n in range(len(counts))]
    for session, filters in zip(sessions, counts, strict=True):
        fold.add(session)
        for number in range(filters):
            fold.subscribe(session, subscription(session, f"t/{number}"), 0)
    stays = {(session.client_id, name) for session in sessions for name in session.subscriptions or ()}
    found: list[Any] = []
    place: Place | None = Place()
    left = list(changes)
    while place is not None:
        page, place = asyncio.run(rows_of(harness).page(Sought(ANY), limit, place))
        found += [(row["client_id"], row["filter"]) for row in page]
        for at, number, comes in left[:2]:
            session, name = sessions[at % len(sessions)], f"t/{number}"
            if comes:
                fold.subscribe(session, subscription(session, name), 0)
            elif name in (session.subscriptions or ()):
                fold.unsubscribe(session, name, 10**7)
                stays.discard((session.client_id, name))
        left = left[2:]
    assert stays <= set(found)
    assert all(found.count(each) == 1 for each in stays)


def test_filters_of_one_checksum_come_on_one_page(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_rows, "crc32", len)
    Peer(harness, "c").subscribe("a", "b", "c", "dd", "ee")
    rows = rows_of(harness)
    page, place = asyncio.run(rows.page(Sought(ANY), 1, Place()))
    assert ([row["filter"] for row in page], place) == (["a", "b", "c"], Place(2, RUN))
    assert place is not None
    page, place = asyncio.run(rows.page(Sought(ANY), 1, place))
    assert [row["filter"] for row in page] == ["dd", "ee"]


def subscription(session: Session, name: str) -> Subscription:
    return Subscription(session, name, 1, False, False, 0, 0, b"")
