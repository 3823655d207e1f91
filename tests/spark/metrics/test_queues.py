"""Which queues a message goes into: the tree of filters finds what the reference matcher finds."""

from __future__ import annotations

from bisect import bisect_right
from itertools import product

import pyarrow as pa
import pytest

from headrace.mqtt.topics import matches
from headrace_spark.metrics.queues import Queues
from headrace_spark.metrics.remembered import LOADED, STATE, of_rows
from headrace_spark.metrics.session_rows import followed_of
from headrace_spark.metrics.sessions import Sessions
from headrace_spark.records.chunk import chunks
from headrace_spark.records.message_columns import Messages
from spark.journals import Made, message

LEVELS = ("a", "b", "", "$a")
TOPICS = ["/".join(names) for count in (1, 2, 3) for names in product(LEVELS, repeat=count)]
FILTERS = [
    "/".join(names)
    for count in (1, 2, 3)
    for names in product((*LEVELS, "+", "#"), repeat=count)
    if "#" not in names[:-1]
]


def subscribed(*subscriptions: tuple[int, str, bool]) -> Sessions:
    """Session 1 is of client `one`, 2 of `two`, 3 of `one` at another tenant."""
    clients = {1: ("default", "one"), 2: ("default", "two"), 3: ("acme", "one")}
    sessions = [
        {"kind": "session", "incarnation": n, "tenant": tenant, "client_id": client, "next_serial": 1}
        | {"connected_offset": None}
        for n, (tenant, client) in clients.items()
    ]
    rows = [
        {"kind": "subscription", "incarnation": n, "topic_filter": topic_filter, "no_local": no_local}
        for n, topic_filter, no_local in subscriptions
    ]
    made = [dict.fromkeys(LOADED) | row for row in (*sessions, *rows)]
    return Sessions(of_rows(pa.Table.from_pylist(made, STATE)))


def entries(sessions: Sessions, *messages: tuple[str, str, str, int]) -> list[tuple[int, int]]:
    """Messages by tenant, client, topic and QoS -> session and offset of each entry."""
    made = Made()
    for tenant, client_id, topic, qos in messages:
        made.add(message(tenant=tenant, client_id=client_id, topic=topic, qos=qos))
    queues = Queues(followed_of(sessions))
    return [
        (int(row["incarnation"]), int(row["offset"]))
        for chunk in chunks(made.batches([]), "uuid", 0, len(messages))
        for rows in queues.entries(Messages(chunk))
        for row in rows
    ]


@pytest.mark.parametrize("shapes", [0, 5, 1000])
def test_every_filter_and_every_topic(monkeypatch: pytest.MonkeyPatch, shapes: int) -> None:
    monkeypatch.setattr("headrace_spark.metrics.queues._SHAPES_MAX", shapes)
    followed = followed_of(subscribed(*((1, topic_filter, False) for topic_filter in FILTERS)))
    queues = Queues(followed)
    filters = followed.filters.to_pylist()
    assert sorted(filters) == sorted(FILTERS)
    for topic in TOPICS:
        numbers = queues.subscriptions("default", topic).tolist()
        found = sorted(filters[bisect_right(followed.firsts.tolist(), number) - 1] for number in numbers)
        assert found == sorted(one for one in FILTERS if matches(one, topic)), topic
        assert not len(queues.subscriptions("nobody", topic))


def test_a_message_is_once_in_a_queue_whatever_matches_it() -> None:
    sessions = subscribed((1, "a/#", False), (1, "a/b", False), (2, "+/b", False), (3, "#", False))
    found = entries(
        sessions,
        ("default", "x", "a/b", 1),
        ("default", "x", "a/b", 0),
        ("default", "x", "a", 2),
        ("acme", "x", "a", 1),
    )
    assert found == [(1, 0), (1, 2), (2, 0), (3, 3)]


def test_no_local_holds_back_what_the_client_published_itself() -> None:
    sessions = subscribed((1, "a", True), (2, "a", False), (3, "a", True))
    published = (("default", "one", "a", 1), ("default", "two", "a", 1), ("acme", "two", "a", 1))
    assert entries(sessions, *published) == [(1, 1), (2, 0), (2, 1), (3, 2)]
    assert entries(subscribed((1, "a", True), (1, "#", False)), published[0]) == [(1, 0)]


def test_a_subscription_takes_what_comes_while_it_is_there() -> None:
    sessions = subscribed()
    about = {"tenant": "default", "client_id": "one", "incarnation": 1, "event_timestamp": 0, "item": 0}
    about |= {"topic_filter": "a", "qos": 1, "no_local": False}
    sessions.apply(about | {"kind": "subscribed", "journal_offset": 1})
    sessions.apply(about | {"kind": "unsubscribed", "journal_offset": 3})
    assert entries(sessions, *[("default", "x", "a", 1)] * 5) == [(1, 1), (1, 2)]
    assert entries(subscribed(), ("default", "x", "a", 1)) == []


def test_many_receivers_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = subscribed((1, "#", False), (2, "#", False), (2, "a", False), (3, "+", False))
    published = [(tenant, "x", topic, 1) for tenant in ("default", "acme") for topic in "abcab"]
    whole = entries(sessions, *published)
    assert len(whole) == 5 * 2 + 5
    monkeypatch.setattr("headrace_spark.metrics.queues._HITS_MAX", 3)
    monkeypatch.setattr("headrace_spark.metrics.queues._REMEMBERED_MAX", 2)
    parts = entries(sessions, *published)
    assert parts != whole
    assert sorted(parts) == sorted(whole)
