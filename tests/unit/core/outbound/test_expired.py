"""What a message has waited for before it goes to its sessions."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.record import DROP_EXPIRED


@pytest.mark.parametrize(("before", "qos"), [(True, 0), (False, 0), (False, 1), (False, 2)])
def test_what_expires_while_the_disk_is_slow_is_not_delivered(before: bool, qos: int) -> None:
    """Neither what waits for its own record, nor what waits at QoS 0 behind a retained message of its publisher."""
    harness = Harness()
    client = harness.client("r", version=5)
    client.subscribe("#", 2)
    client.take()
    publisher = harness.client("w", version=5)
    if before:
        publisher.publish("a", b"first", 0, retain=True, sync=False)
    publisher.publish("a", b"old", qos, retain=not (before or qos), sync=False, expiry_s=5)
    harness.now_us += 10_000_000
    harness._set_clock()
    harness.sync()
    assert [payload for _, payload, _, _ in client.publishes()] == ([b"first"] if before else [])
    assert harness.broker.fold.tenant(DEFAULT_TENANT).counters.dropped == {DROP_EXPIRED: 1}
