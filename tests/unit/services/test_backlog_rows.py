"""What waits for a session is listed once, oldest first, whatever goes on meanwhile, and is there afterwards."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any

import pytest

from harness import Client, Harness, held
from headrace.core.ports.journal import NOT_NOW
from headrace.core.ports.settings import BrokerSettings
from headrace.errors import NotReadableNow, NotThere
from headrace.mqtt import codec
from headrace.mqtt.properties import Properties
from headrace.services import backlog_rows
from headrace.services.backlog_rows import PAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, BacklogRows
from headrace.services.paging import Place


def away(harness: Harness, count: int, client_id: str = "c", receive_maximum: int = 3) -> Client:
    """A session that is away: of `count` messages up to three are in flight; returns who publishes."""
    client = harness.client(client_id, version=5, receive_maximum=receive_maximum)
    client.subscribe("a/#", 2)
    writer = harness.client("writer", version=5)
    for number in range(count):
        writer.publish(f"a/{number}", b"%d" % number, qos=1 + number % 2)
    client.lose()
    return writer


def page(harness: Harness, limit: int = 10, place: Place = Place()) -> tuple[Any, Place | None]:  # noqa: B008
    return asyncio.run(BacklogRows(harness.broker).page("default", "c", limit, place))


def walked(harness: Harness, limit: int = 2) -> list[Any]:
    found: list[Any] = []
    place: Place | None = Place()
    while place is not None:
        rows, place = page(harness, limit, place)
        assert len(rows) <= limit
        found += rows
    return found


def test_what_is_in_flight_comes_first_and_all_is_told_of_each() -> None:
    harness = Harness()
    client = harness.client("c", version=5, receive_maximum=2)
    client.subscribe("a", 2, retain_as_published=1)
    properties = Properties()
    properties.content_type = "t"
    writer = harness.client("writer", version=5)
    writer.publish("a", b"\xff", 2, properties=properties.encode(), expiry_s=60)
    writer.publish("a", b"text", 1, True)
    writer.publish("a", b"", 2)
    client.feed(codec.encode_pubrec(5, 1))
    rows, following = page(harness)
    assert following is None
    assert [(row["serial"], row["state"], row["packet_id"], row["qos"]) for row in rows] == [
        (1, "received", 1, 2),
        (2, "sent", 2, 1),
        (3, "waiting", None, 2),
    ]
    first, second, third = rows
    received = harness.now_us
    assert first == {
        "serial": 1,
        "state": "received",
        "packet_id": 1,
        "qos": 2,
        "retain": False,
        "absent": "",
        "topic": "a",
        "size": 1 + len(properties.encode()) + 1,
        "client_id": "writer",
        "received_at_us": received,
        "expires_at_us": received + 60_000_000,
        "is_expired": False,
        "payload": "/w==",
        "text": None,
        "is_cut": False,
        "properties": {"content_type": "t"},
    }
    assert (second["retain"], second["text"], second["expires_at_us"]) == (True, "text", None)
    assert (third["payload"], third["text"]) == ("", "")


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_walk_has_each_once_in_order_and_takes_nothing(limit: int) -> None:
    harness = Harness()
    away(harness, 20)
    rows = walked(harness, limit)
    assert [row["text"] for row in rows] == [str(number) for number in range(20)]
    assert [row["serial"] for row in rows] == list(range(1, 21))
    session = harness.broker.fold.tenant("default").sessions["c"]
    assert (session.queue.inflight.count, session.queue.backlog.count) == (3, 17)  # type: ignore[union-attr]
    client = harness.client("c", version=5, receive_maximum=100)
    assert [payload for _, payload, _, _ in client.publishes()] == [b"%d" % number for number in range(20)]


def test_pages_of_a_long_backlog_are_read_back_and_nothing_is_loaded_for_that() -> None:
    settings = BrokerSettings()
    settings.backlog_page = 16
    harness = Harness(settings)
    away(harness, 200)
    harness.advance(1)
    assert [row["text"] for row in walked(harness, 7)] == [str(number) for number in range(200)]
    looked_at = held(harness.broker.fold)
    other = Harness(settings)
    away(other, 200)
    other.advance(1)
    assert looked_at == held(other.broker.fold)


def test_what_stays_is_met_once_while_others_are_acknowledged_and_published() -> None:
    harness = Harness()
    writer = away(harness, 10)
    rows, place = page(harness, 4)
    assert place is not None
    client = harness.client("c", version=5, receive_maximum=3)
    for packet_id in (1, 2):
        client.feed(
            codec.encode_puback(5, packet_id) if packet_id == 1 else codec.encode_pubrec(5, packet_id)
        )
    writer.publish("a/10", b"10", qos=1)
    found = [row["text"] for row in rows]
    while place is not None:
        rows, place = page(harness, 3, place)
        found += [row["text"] for row in rows]
    assert found == [str(number) for number in range(11)]
    assert page(harness, 1)[0][0]["serial"] == 2


def test_a_place_holds_over_a_start_and_not_for_another_session() -> None:
    harness = Harness()
    away(harness, 10)
    _, place = page(harness, 4)
    assert place is not None
    harness.crash()
    assert page(harness, 1, place)[0][0]["text"] == "4"
    harness.broker.dropping.drop("default", "c")
    harness.sync()
    with pytest.raises(NotThere, match="no session 'c'"):
        page(harness, 1, place)
    away(harness, 1)
    with pytest.raises(ValueError, match="another session"):
        page(harness, 1, place)


def test_a_session_for_whom_nothing_waits_has_no_rows_and_gets_no_queue() -> None:
    harness = Harness()
    harness.client("c", version=5)
    assert page(harness) == ([], None)
    assert harness.broker.fold.tenant("default").sessions["c"].queue is None
    with pytest.raises(NotThere, match="tenant t has no session 'c'"):
        asyncio.run(BacklogRows(harness.broker).page("t", "c", 1, Place()))


def test_a_large_payload_is_cut_and_a_page_with_much_in_it_is_short() -> None:
    harness = Harness()
    client = harness.client("c", version=5)
    client.subscribe("a")
    client.lose()
    writer = harness.client("writer", version=5)
    for _ in range(8):
        writer.publish("a", b"x" * (PAYLOAD_BYTES_MAX + 1))
    rows, place = page(harness, 8)
    assert len(rows) == PAGE_BYTES_MAX // PAYLOAD_BYTES_MAX
    assert place is not None
    for row in rows:
        assert (row["is_cut"], len(b64decode(row["payload"]))) == (True, PAYLOAD_BYTES_MAX)
        assert row["size"] == PAYLOAD_BYTES_MAX + 2
    assert len(walked(harness, 8)) == 8


def test_what_has_expired_is_said_before_it_is_dropped() -> None:
    harness = Harness()
    writer = away(harness, 0)
    writer.publish("a/x", b"x", expiry_s=1)
    harness.now_us += 2_000_000
    harness._set_clock()
    assert [row["is_expired"] for row in page(harness)[0]] == [True]


def test_what_cannot_be_read_now_is_said_and_nobody_waits_for_it() -> None:
    harness = Harness()
    away(harness, 5)
    harness.journal.reads_fail = True
    rows, following = page(harness)
    assert ({row["absent"] for row in rows}, len(rows), following) == ({NOT_NOW.reason}, 5, None)
    assert {(row["topic"], row["payload"], row["size"]) for row in rows} == {(None, "", 0)}
    assert len(harness.broker.unread) == 0
    harness.journal.reads_fail = False
    assert [row["absent"] for row in page(harness)[0]] == [""] * 5


def test_a_page_of_a_backlog_that_cannot_be_read_now_is_no_end() -> None:
    settings = BrokerSettings()
    settings.backlog_page = 16
    harness = Harness(settings)
    away(harness, 200)
    harness.advance(1)
    place = Place(100)
    harness.journal.reads_fail = True
    with pytest.raises(NotReadableNow):
        page(harness, 4, place)
    harness.journal.reads_fail = False
    assert [row["serial"] for row in page(harness, 4, place)[0]] == [100, 101, 102, 103]


def test_what_a_store_alone_has_is_not_asked_for() -> None:
    harness = Harness()
    away(harness, 5)
    queue = harness.broker.fold.tenant("default").sessions["c"].outbound()
    queue.stored_rows().note_let_go(4)
    harness.journal.reads_fail = True
    rows, _ = page(harness)
    assert ["store" in row["absent"] for row in rows] == [True] * 4 + [False]


def test_others_have_their_turn_within_a_page() -> None:
    harness = Harness()
    away(harness, 100)

    async def life() -> int:
        turns = 0
        task = asyncio.create_task(BacklogRows(harness.broker).page("default", "c", 100, Place()))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await task)[0]) == 100
        return turns

    assert asyncio.run(life()) > 100 // backlog_rows._AT_ONCE


def test_a_session_that_ends_within_a_page_ends_it() -> None:
    harness = Harness()
    away(harness, 100)

    async def life() -> Any:
        task = asyncio.create_task(BacklogRows(harness.broker).page("default", "c", 100, Place()))
        await asyncio.sleep(0)
        harness.broker.dropping.drop("default", "c")
        harness.sync()
        return await task

    rows, following = asyncio.run(life())
    assert (len(rows), following) == (backlog_rows._AT_ONCE, None)
