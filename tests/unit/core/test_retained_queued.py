"""Retained messages in a queue are inside its limits from the first page on, live and in a replay."""

from __future__ import annotations

import pytest

from harness import Client, Harness, state
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.event import RetainedListing
from headrace.core.records.message import Message
from headrace.core.state.queue import OutboundQueue
from headrace.core.state.session import Session

RETAINED = 600  # more than two pages


def with_retained(settings: BrokerSettings) -> tuple[Harness, Client]:
    harness = Harness(settings)
    publisher = harness.client("p", clean=True)
    for number in range(RETAINED):
        publisher.publish(f"r/{number}", b"x" * 50, retain=True, sync=False)
    harness.sync()
    return harness, publisher


def session_of(harness: Harness) -> Session:
    return harness.broker.fold.tenant("default").sessions["s"]


def queue_of(harness: Harness) -> OutboundQueue:
    queue = session_of(harness).queue
    assert queue is not None
    return queue


def live_and_replay_agree(harness: Harness, subscriber: Client) -> None:
    subscriber.lose()
    live = state(harness.broker.fold)
    harness.crash()
    assert state(harness.broker.fold) == live


def subscribed(harness: Harness) -> Client:
    """A subscriber that has sent CONNECT and SUBSCRIBE and reads one message at a time."""
    subscriber = harness.client("s", version=5, receive_maximum=1)
    subscriber.subscribe("r/#")
    return subscriber


def test_a_queue_of_retained_messages_is_trimmed_page_by_page_and_not_by_the_first_live_one() -> None:
    settings = BrokerSettings()
    settings.backlog_messages_max = 300
    harness, publisher = with_retained(settings)
    subscriber = subscribed(harness)
    dropped = session_of(harness).drops_by_name()
    assert queue_of(harness).backlog.count == 299  # one has left
    assert dropped["backlog_limit"] == RETAINED - 300
    for _ in range(2):
        publisher.publish("r/new", b"live")
    assert session_of(harness).drops_by_name()["backlog_limit"] == dropped["backlog_limit"] + 1
    live_and_replay_agree(harness, subscriber)


@pytest.mark.parametrize("limit", ["backlog_bytes_max", "tenant_backlog_bytes_max"])
def test_their_bytes_count(limit: str) -> None:
    settings = BrokerSettings()
    setattr(settings, limit, 5000)
    harness, _ = with_retained(settings)
    subscriber = subscribed(harness)
    assert 4000 < queue_of(harness).backlog.bytes <= 5000
    live_and_replay_agree(harness, subscriber)


def test_what_is_listed_says_how_long_the_payloads_are() -> None:
    """A page behind the other, and whoever counts what was delivered needs none of the messages."""
    harness = Harness()
    publisher = harness.client("p", clean=True)
    for number in range(RETAINED):
        publisher.publish(f"r/{number}", b"x" * (number + 1), retain=True, sync=False)
    harness.sync()
    subscribed(harness)
    records = harness.journal.records
    found = [record for record in records if isinstance(record, RetainedListing)]
    assert len(found) > 2
    for event in found:
        listed = [records[offset] for offset in event.retained[::3]]
        assert event.payloads == [len(message.payload) for message in listed if isinstance(message, Message)]
    assert sum(sum(event.payloads) for event in found) == RETAINED * (RETAINED + 1) // 2


def test_an_application_that_subscribes_again_and_again_fills_its_limit_and_no_more() -> None:
    settings = BrokerSettings()
    settings.application_client_ids = ["s"]
    settings.application_backlog_bytes_max = 20_000
    settings.backlog_page = 64
    harness, _ = with_retained(settings)
    subscriber = subscribed(harness)
    for _ in range(5):
        subscriber.subscribe("r/#")
    queue = queue_of(harness)
    assert queue.backlog.bytes <= 20_000
    assert queue.backlog.loose() < 3 * settings.backlog_page
    live_and_replay_agree(harness, subscriber)
