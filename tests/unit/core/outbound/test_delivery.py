"""What leaves for a connected session, and what counts against its Receive Maximum."""

from __future__ import annotations

from harness import Harness


def test_what_is_acknowledged_before_it_came_again_leaves_no_room_for_others() -> None:
    harness = Harness()
    subscriber = harness.client("sub", version=5)
    subscriber.subscribe("t")
    publisher = harness.client("pub", clean=True)
    for number in range(5):
        publisher.publish("t", b"%d" % number)
    assert len(subscriber.publishes()) == 5
    subscriber.lose()
    subscriber = harness.client("sub", version=5, receive_maximum=1)
    assert [packet_id for packet_id, _, _, _ in subscriber.publishes()] == [1]
    subscriber.ack(3)
    subscriber.ack(4)
    assert subscriber.publishes() == []
    subscriber.ack(1)
    assert [packet_id for packet_id, _, _, _ in subscriber.publishes()] == [2]
    subscriber.ack(2)
    assert [packet_id for packet_id, _, _, _ in subscriber.publishes()] == [5]
    publisher.publish("t", b"5")
    assert subscriber.publishes() == []
    subscriber.ack(5)
    assert [packet_id for packet_id, _, _, _ in subscriber.publishes()] == [6]
