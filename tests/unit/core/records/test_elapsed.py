"""What was written down before the clock was set was not written decades ago."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.core.records.elapsed import CLOCK_SET_US, elapsed_us

SECOND_US = 1_000_000


@pytest.mark.parametrize(
    ("since_us", "now_us", "elapsed"),
    [
        (CLOCK_SET_US, CLOCK_SET_US + 5, 5),
        (CLOCK_SET_US + 5, CLOCK_SET_US, 0),
        (10, CLOCK_SET_US, 0),
        (CLOCK_SET_US - 1, CLOCK_SET_US + 5, 0),
        (10, 15, 5),
        (15, 10, 0),
        (CLOCK_SET_US, 10, 0),
    ],
)
def test_elapsed(since_us: int, now_us: int, elapsed: int) -> None:
    assert elapsed_us(since_us, now_us) == elapsed


def unset(harness: Harness) -> None:
    """The clock of the machine stands at 1970."""
    harness.set_by_us = 60 * SECOND_US - harness.now_us
    harness.advance(0)


def test_a_session_closed_in_1970_is_there_when_the_clock_is_set() -> None:
    harness = Harness()
    unset(harness)
    client = harness.client("c", version=5, expiry_s=3600)
    client.subscribe("t")
    client.disconnect()
    harness.client("p").publish("t", b"kept")
    harness.set_by_us = 0
    harness.crash()
    harness.advance(1800)
    again = harness.client("c", version=5, expiry_s=3600)
    assert [payload for _, payload, _, _ in again.publishes()] == [b"kept"]
    again.disconnect()


def test_it_ends_when_the_other_clock_has_had_its_time() -> None:
    harness = Harness()
    unset(harness)
    client = harness.client("c", version=5, expiry_s=3600)
    client.subscribe("t")
    client.disconnect()
    harness.set_by_us = 0
    harness.crash()
    harness.advance(3 * 3600)
    assert "c" not in harness.broker.fold.tenant("default").sessions


def test_messages_published_in_1970_have_not_expired() -> None:
    harness = Harness()
    unset(harness)
    client = harness.client("c")
    client.subscribe("t")
    client.disconnect()
    publisher = harness.client("p", version=5)
    publisher.publish("t", b"kept", expiry_s=60)
    publisher.publish("r", b"retained", retain=True, expiry_s=60)
    harness.set_by_us = 0
    harness.advance(1)
    harness.advance(1)
    again = harness.client("c")
    assert [payload for _, payload, _, _ in again.publishes()] == [b"kept"]
    again.subscribe("r")
    assert [payload for _, payload, _, _ in again.publishes()] == [b"retained"]
