"""The generator's own figures: what it counts must be right before it measures anybody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.load import HEAD, Histogram, Publisher, Subscriber, Tally
from headrace.mqtt.packets import Connect, Publish


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_off_by_at_most_one_sixteenth(samples: list[int], share: float) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    ordered = sorted(samples)
    exact = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
    assert exact * 15 / 16 - 1 <= histogram.percentile(share) <= exact


def received(subscriber: Subscriber, publisher: int, sequence: int, dup: bool = False) -> None:
    payload = HEAD.pack(0, publisher, sequence)
    subscriber.on_publish(Publish(b"t", 1, False, dup, 7, b"", -1, payload))


def test_a_subscriber_tells_repeats_from_disorder() -> None:
    tally = Tally(2)
    subscriber = Subscriber(tally, Connect(4, "s"), "t", 1)
    for publisher, sequence in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 3)):
        received(subscriber, publisher, sequence)
    assert (tally.repeats, tally.reordered) == (0, 0)
    received(subscriber, 0, 3, dup=True)
    received(subscriber, 0, 2)
    assert (tally.received, tally.repeats, tally.reordered) == (7, 1, 1)
    assert subscriber.out[0] == b"\x40\x02\x00\x07"


def test_a_publisher_keeps_its_window_full_and_stops_when_told() -> None:
    tally = Tally(1)
    publisher = Publisher(tally, Connect(4, "p"), "t", 1, 0, 3, b"")
    publisher.fill()
    assert (tally.sent, len(publisher.out)) == (3, 3)
    publisher.on_puback(2, 0)
    assert (tally.sent, tally.acked) == (4, 1)
    tally.stopping = True
    publisher.on_puback(1, 0)
    assert tally.sent == 4
