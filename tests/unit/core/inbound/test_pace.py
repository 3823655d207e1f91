"""So many messages a second: reading stops, nothing is lost."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.mqtt import codec
from headrace.services.access import AccessSettings, FileAccess
from headrace.services.audit import Audit


class Loop:
    """No password is asked for."""

    def call_soon_threadsafe(self, *_: object) -> None: ...

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> None: ...


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.worker.guard(FileAccess(AccessSettings(), Audit(lambda *_, **__: None), Loop()))
    return made


def publish(client: Client, count: int, qos: int) -> None:
    for number in range(count):
        topic = f"t/{number % 3}".encode()
        client.feed(codec.encode_publish(4, topic, b"x", qos, False, False, number + 1 if qos else 0), False)
    client.harness.worker.end_tick()


@pytest.mark.parametrize("qos", [0, 1])
def test_reading_stops_for_as_long_as_it_was_too_much(harness: Harness, qos: int) -> None:
    watcher, client = harness.client("w"), harness.client("c")
    watcher.subscribe("#", 0)
    client.link.messages_per_s = 10
    publish(client, 10, qos)
    before = client.link.reading
    publish(client, 25, qos)  # what lay in the read buffer: 2.5 seconds' worth
    harness.sync()
    after = client.link.reading
    assert (before, after) == (True, False)
    waited = 0.0
    while not client.link.reading:
        harness.advance(0.5)
        waited += 0.5
    assert 2.5 <= waited <= 4.0
    assert len(watcher.publishes()) == 35
    publish(client, 5, qos)
    assert client.link.reading


def test_nobody_else_waits_and_no_limit_is_none(harness: Harness) -> None:
    slow, fast = harness.client("slow"), harness.client("fast")
    slow.link.messages_per_s = 1
    publish(slow, 5, 0)
    publish(fast, 5000, 0)
    assert (slow.link.reading, fast.link.reading) == (False, True)


def test_a_connection_that_is_gone_is_let_go(harness: Harness) -> None:
    client = harness.client("c")
    client.link.messages_per_s = 1
    publish(client, 5, 0)
    client.lose()
    harness.advance(5)
    assert not client.link.reading
