"""QoS 0 that waits for what its connection has sent before: how much of it, for how long, and what becomes of it. That it
keeps its place: test_order; that it counts against its sender: test_shares."""

from __future__ import annotations

from harness import Client, Harness
from headrace.core.outbound.fan_out import LANES_BYTES_MAX
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_QOS0_SLOW
from shard_wires import received


def small_buffers() -> Harness:
    """A broker whose subscribers' buffers take 64 KiB."""
    settings = BrokerSettings()
    settings.write_buffer_high = 64 << 10
    return Harness(settings)


def subscriber(of: Harness) -> Client:
    client = of.client("observer", version=5)
    client.subscribe("t", 1)
    return client


def dropped(of: Harness) -> int:
    return sum(of.broker.fold.tenant("default").counters.dropped.values())


def leave_behind(of: Harness, name: str, size: int) -> None:
    """A client publishes so many bytes, and is gone before anything of it is durable."""
    client = of.client(name, clean=True, sync=False)
    client.publish("t", b"x" * size, 0, sync=False)
    client.lose_unsynced()


def test_what_has_waited_is_not_too_much_at_once_for_who_reads() -> None:
    """More has gathered than a subscriber's buffer takes: it leaves in several passes, and nothing is dropped."""
    harness = small_buffers()
    observer = subscriber(harness)
    sender = harness.client("sender", version=5)
    sender.publish("t", b"first", sync=False)
    messages = [b"%d" % number + b"x" * 10_000 for number in range(100)]
    for payload in messages:
        sender.publish("t", payload, 0, sync=False)
    assert sender.link.deferred > 2 * 10_000 * len(messages)
    harness.sync()
    assert received(observer) == [b"first", *messages]
    assert dropped(harness) == 0
    assert sender.link.deferred == harness.broker.publishing.following.bytes == 0


def test_of_what_those_left_who_are_gone_the_oldest_is_dropped_and_counted() -> None:
    harness = Harness()
    observer = subscriber(harness)
    here = harness.client("here", version=5, clean=True)
    here.publish("t", b"1", 1, sync=False)
    here.publish("t", b"2", 0, sync=False)
    size, count = 1_000_000, 100
    for number in range(count):
        leave_behind(harness, f"gone{number}", size)
        assert harness.broker.publishing.following.bytes <= LANES_BYTES_MAX + 3 * size
    here.publish("t", b"3", 0, sync=False)
    lost = harness.broker.fold.tenant("default").counters.dropped[DROP_QOS0_SLOW]
    assert 0 < lost < count
    harness.sync()
    found = received(observer)
    assert found == [b"1", b"2", *[b"x" * size] * (count - lost), b"3"]
    assert dropped(harness) == lost
    assert harness.broker.publishing.following.bytes == harness.broker.commit.deferred_bytes == 0


def test_a_few_that_are_gone_lose_nothing() -> None:
    harness = Harness()
    observer = subscriber(harness)
    for number in range(20):
        leave_behind(harness, f"gone{number}", 1000)
    harness.sync()
    assert len(received(observer)) == 20
    assert dropped(harness) == 0
