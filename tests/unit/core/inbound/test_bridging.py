"""The sessions behind bridges: there from the start, subscribed as configured, kept for a while when they are not."""

from __future__ import annotations

from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.session import APPLICATION, NEVER_EXPIRES, Session
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.storage.memory import MemoryLink


def opened(harness: Harness, filters: dict[str, int]) -> Session:
    session = harness.broker.bridging().open("b", filters)
    harness.sync()
    return session


def backlog(session: Session) -> int:
    return int(session.outbound().unfinished())


def test_messages_wait_from_the_start_on_and_over_a_crash() -> None:
    harness = Harness(settings := BrokerSettings())
    settings.backlog_messages_max = 5
    session = opened(harness, {"t/#": 1})
    assert (session.session_type, session.expiry_s) == (APPLICATION, NEVER_EXPIRES)
    publisher = harness.client("p")
    for _ in range(20):
        publisher.publish("t/x", b"x")
    harness.crash()
    again = opened(harness, {"t/#": 1})
    assert again.incarnation == session.incarnation
    assert backlog(again) == 20, "an APPLICATION is not bounded by count"


def test_subscriptions_follow_the_configuration() -> None:
    harness = Harness()
    opened(harness, {"a": 1, "b": 1})
    session = opened(harness, {"b": 2, "c": 0})
    assert {name: s.qos for name, s in (session.subscriptions or {}).items()} == {"b": 2, "c": 0}
    before = len(harness.journal.records)
    opened(harness, {"b": 2, "c": 0})
    assert len(harness.journal.records) == before, "nothing to say, nothing to write"


def test_retained_messages_are_queued_for_a_new_subscription_only() -> None:
    harness = Harness()
    publisher = harness.client("p")
    for number in range(600):  # more than a page
        publisher.publish(f"t/{number}", b"x", retain=True)
    assert backlog(opened(harness, {"t/#": 1})) == 600
    assert backlog(opened(harness, {"t/#": 2})) == 600


def test_a_bridge_that_is_not_configured_any_more_expires() -> None:
    harness = Harness()
    session = opened(harness, {"t": 1})
    publisher = harness.client("p")
    publisher.publish("t", b"x")
    assert harness.broker.bridging().retire(set()) == [session]
    harness.sync()
    publisher.publish("t", b"y")
    assert backlog(session) == 1, "nothing new goes in"
    harness.advance(20 * 86_400)
    assert harness.broker.bridging().retire(set()) == [session]
    harness.advance(11 * 86_400)
    assert session.ended


def test_one_that_comes_back_in_time_has_its_messages() -> None:
    harness = Harness()
    opened(harness, {"t": 1})
    harness.client("p").publish("t", b"x")
    harness.broker.bridging().retire(set())
    harness.crash()
    session = opened(harness, {"t": 1})
    harness.advance(100 * 86_400)
    assert not session.ended
    assert backlog(session) == 1


def test_one_without_messages_ends_at_once() -> None:
    harness = Harness()
    session = opened(harness, {"t": 1})
    assert harness.broker.bridging().retire(set()) == []
    assert session.ended


def test_nobody_else_may_connect_as_a_bridge() -> None:
    harness = Harness()
    session = opened(harness, {"t": 1})
    link = MemoryLink(harness.worker)
    harness.broker.on_connect(link, Connect(5, session.client_id, False, 0))
    link.flush()
    assert link.sent == codec.encode_connack(5, False, 0x85)
    assert link.closed


def test_the_bridge_bit_stands_for_no_local_and_retain_as_published() -> None:
    harness = Harness()
    bridge = harness.client("m")
    bridge.link.bridge = True
    bridge.subscribe("t")
    bridge.take()
    bridge.publish("t", b"mine")
    assert bridge.publishes() == []
    harness.client("p").publish("t", b"theirs", retain=True)
    assert [first & 1 for first, _ in bridge.take()] == [1]
