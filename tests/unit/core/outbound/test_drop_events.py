"""`$events/dropped/...`: what is told, to whom, and what is not."""

from __future__ import annotations

import json
from hashlib import sha256

from harness import Client, Harness
from headrace.core.outbound.drop_events import topic_of
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.mqtt.packets import Will


def told(client: Client) -> list[tuple[str, str, int]]:
    said = [json.loads(payload) for _, payload, _, _ in client.publishes()]
    return [(event["reason"], event["client_id"], event["messages"]) for event in said]


def harness(on: bool = True) -> Harness:
    settings = BrokerSettings()
    settings.drop_events = on
    settings.backlog_messages_max = 2
    return Harness(settings)


def overrun(broker: Harness, client_id: str, topic_filter: str = "t", messages: int = 5) -> None:
    """A session that is away loses all but two messages."""
    away = broker.client(client_id)
    away.subscribe(topic_filter)
    away.lose()
    publisher = broker.client("p", clean=True)
    for _ in range(messages):
        publisher.publish("t", b"x")
    publisher.disconnect()


def test_drops_are_summed_and_told_to_who_subscribed() -> None:
    broker = harness()
    owner = broker.client("owner")
    owner.subscribe("$events/dropped/#")
    overrun(broker, "s/1+#%")
    broker.advance(1.1)
    topics = [body for first, body in owner.drain() if first >> 4 == 3]
    assert topics[0][2:].startswith(b"$events/dropped/backlog_limit/s%2F1%2B%23%25")
    assert told(owner) == [("backlog_limit", "s/1+#%", 3)]
    broker.advance(5)
    assert told(owner) == []


def test_a_persistent_owner_hears_of_it_later_and_after_a_crash() -> None:
    broker = harness()
    owner = broker.client("owner")
    owner.subscribe("$events/dropped/backlog_limit/+")
    owner.lose()
    overrun(broker, "s")
    broker.advance(1.1)
    broker.crash()
    assert told(broker.client("owner")) == [("backlog_limit", "s", 3)]
    broker.advance(5)
    assert told(broker.client("owner", version=5)) == [
        ("backlog_limit", "s", 3)
    ]  # again, unacknowledged; no new one


def test_a_session_does_not_hear_of_its_own_drops() -> None:
    broker = harness()
    away = broker.client("s")
    away.subscribe("$events/dropped/#")
    away.lose()
    overrun(broker, "s")
    for _ in range(3):
        broker.advance(2)
    assert [r.topic for r in broker.journal.records if isinstance(r, Message)] == [b"t"] * 5


def test_nothing_is_journaled_while_nobody_listens_or_it_is_off() -> None:
    for broker in (harness(), harness(on=False)):
        if broker.worker.settings.drop_events is False:
            broker.client("owner").subscribe("$events/#")
        overrun(broker, "s")
        broker.advance(2)
        assert [r.topic for r in broker.journal.records if isinstance(r, Message)] == [b"t"] * 5


def test_qos_0_that_nobody_was_there_for_is_not_told() -> None:
    broker = harness()
    owner = broker.client("owner")
    owner.subscribe("$events/#")
    away = broker.client("s")
    away.subscribe("t")
    away.lose()
    broker.client("p", clean=True).publish("t", b"x", qos=0)
    broker.advance(2)
    assert told(owner) == []


def test_the_topics_are_the_brokers_own() -> None:
    broker = harness()
    publisher = broker.client("p", version=5)
    publisher.publish("$events/dropped/x", b"x")
    assert publisher.take()[-1][1][2] == 0x87
    refused = broker.client("w", version=5, will=Will("$events/x", b"", 0, False, b"", 0, -1))
    assert refused.take()[0][1][1] == 0x90


def test_a_client_id_too_long_for_a_topic_stands_there_as_its_hash() -> None:
    broker = harness()
    owner = broker.client("owner", version=5)
    owner.subscribe("$events/dropped/#")
    for client_id in ("x" * 65_530, "/" * 30_000):
        overrun(broker, client_id)
        broker.advance(1.1)
        said = [record for record in broker.journal.records if isinstance(record, Message)][-1]
        assert (
            said.topic
            == b"$events/dropped/backlog_limit/sha256-" + sha256(client_id.encode()).hexdigest().encode()
        )
        assert json.loads(said.payload)["client_id"] == client_id
        assert owner.drain()[-1][1][2:].startswith(said.topic)
    fits = "x" * (65_535 - len("$events/dropped/backlog_limit/"))
    assert topic_of("backlog_limit", fits).endswith(fits.encode())
    assert len(topic_of("backlog_limit", fits + "x")) < 200
