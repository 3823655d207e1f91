"""$SYS topics in the core: sent to who is here, kept for who comes, never in the journal."""

from __future__ import annotations

from conformance.peer import Peer
from harness import Harness
from headrace.core.records.message import Message
from headrace.mqtt.packets import Publish, SubscriptionRequest


def values(heard: list[object]) -> list[tuple[bytes, bool]]:
    return [(packet.payload, packet.retain) for packet in heard if isinstance(packet, Publish)]


def test_values_are_sent_when_they_change_and_kept() -> None:
    harness = Harness()
    broker = harness.broker
    tenant = broker.fold.tenant("default")
    early = Peer(harness, "early")
    early.subscribe(SubscriptionRequest("$SYS/#", 1, retain_as_published=True))
    everything = Peer(harness, "all")
    everything.subscribe("#")
    away = Peer(harness, "away", clean=False, session_expiry_interval=99)
    away.subscribe("$SYS/#")
    away.lose()
    before = harness.journal.next_offset()
    for payload in (b"1", b"1", b"2"):
        broker.system.publish(tenant, "$SYS/broker/x", payload)
    assert values([*early.take()]) == [(b"1", True), (b"2", True)]
    assert values([*Peer(harness, "late").subscribe("$SYS/broker/+")]) == [(b"2", True)]
    assert values([*everything.take()]) == []
    assert tenant.counters.dropped == {}
    assert not [r for r in harness.journal.records[before:] if isinstance(r, Message)]


def test_a_persistent_session_gets_them_on_subscribing() -> None:
    harness = Harness()
    harness.broker.system.publish(harness.broker.fold.tenant("default"), "$SYS/a", b"1")
    heard = Peer(harness, "p", clean=False, session_expiry_interval=99).subscribe("$SYS/a")
    assert values([*heard]) == [(b"1", True)]
