"""Everybody at once: one client id from many places, and a fleet that comes back to its backlogs."""

from __future__ import annotations

from harness import Client, Harness

FLEET = 300
WAITING = 5


def test_takeover_storm() -> None:
    """One connection is left, the others are closed, what is in flight goes to the last one with its packet id."""
    harness = Harness()
    first = harness.client("device")
    first.subscribe("a")
    harness.client("publisher").publish("a", b"once")
    (packet_id, _, dup, _), *rest = first.publishes()
    assert not dup
    assert not rest
    clients = [
        harness.client("device", version=4 + number % 2, sync=number % 7 == 0) for number in range(1000)
    ]
    harness.sync()
    open_ones = [client for client in clients if not client.link.closed]
    assert open_ones == [clients[-1]]
    assert harness.broker.sessions.connected == 2
    assert clients[-1].publishes() == [(packet_id, b"once", True, 1)]
    harness.crash()
    assert harness.client("device").publishes() == [(packet_id, b"once", True, 1)]


def test_a_fleet_comes_back_at_once() -> None:
    """Each gets its backlog, in order, in the same few batches of the journal."""
    harness = Harness()
    names = [f"device-{number}" for number in range(FLEET)]
    for name in names:
        device = harness.client(name)
        device.subscribe("fleet/all")
        device.disconnect()
    publisher = harness.client("publisher")
    for number in range(WAITING):
        publisher.publish("fleet/all", b"%d" % number)
    harness.crash()
    batches = harness.broker.commit.batches
    fleet = [Client(harness, name, sync=False) for name in names]
    harness.sync()
    for device in fleet:
        assert [payload for _, payload, _, _ in device.publishes()] == [b"%d" % n for n in range(WAITING)]
    assert harness.broker.commit.batches - batches <= 3
