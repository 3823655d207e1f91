"""Retained messages of two workers: whoever subscribes at one of them gets what both keep, also after kill -9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.raw import RawClient
from e2e.workers import Crew

Clients = Callable[..., RawClient]
pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]
TOPICS = 300


def retained_by(reader: RawClient, count: int) -> dict[str, bytes]:
    packets = [reader.receive(60) for _ in range(count)]
    assert all(packet.retain for packet in packets)
    found = {packet.topic: packet.payload for packet in packets}
    assert len(found) == count, "none comes twice"
    return found


@pytest.mark.parametrize("qos", [0, pytest.param(1, marks=pytest.mark.deep), 2])
def test_a_subscription_gets_what_both_workers_keep(crew: Crew, clients: Clients, qos: int) -> None:
    first, second = crew.workers
    writer = clients(first, crew.name_in(0, "w"))
    marked = clients(second, crew.name_in(1, "m"))
    marked.subscribe("mark", qos=1)
    expected = {f"plant/{number}": b"%d" % number for number in range(TOPICS)}
    for topic, payload in expected.items():
        writer.deliver(topic, payload, max(qos, 1), retain=True)
    writer.deliver("mark", b"", 1)
    marked.receive()  # behind all that passes between the two: what comes after SUBACK was kept before it
    for clean in (True, False):
        reader = clients(second, crew.name_in(1, f"r{clean}-"), clean=clean)
        reader.subscribe("plant/+", qos=qos)
        assert retained_by(reader, TOPICS) == expected
        reader.leave()
    for number in range(0, TOPICS, 2):
        writer.deliver(f"plant/{number}", b"", 1, retain=True)
        del expected[f"plant/{number}"]
    writer.deliver("mark", b"", 1)
    marked.receive()
    for worker in crew.workers:
        worker.crash()
    crew.wait_linked()
    reader = clients(second, crew.name_in(1, "again"))
    reader.subscribe("#", qos=qos)
    assert retained_by(reader, len(expected)) == expected
    one = clients(first, crew.name_in(0, "one"))
    topic = next(name for name in expected if crew.homes.of_topic("default", name) == 1)
    one.subscribe(topic, qos=qos)
    assert retained_by(one, 1) == {topic: expected[topic]}


def test_a_worker_that_stands_still_gives_what_it_keeps_when_it_goes_on(crew: Crew, clients: Clients) -> None:
    first, second = crew.workers
    topic = next(name for name in (f"t/{n}" for n in range(99)) if crew.homes.of_topic("default", name) == 0)
    clients(second, crew.name_in(1, "w")).deliver(topic, b"kept", 1, retain=True)
    early = clients(second, crew.name_in(1, "early"), clean=False)
    early.subscribe(topic, qos=1)
    assert retained_by(early, 1) == {topic: b"kept"}
    first.pause()
    late = clients(second, crew.name_in(1, "late"), clean=False)
    late.subscribe(topic, qos=1)  # SUBACK comes
    first.resume()
    assert retained_by(late, 1) == {topic: b"kept"}
