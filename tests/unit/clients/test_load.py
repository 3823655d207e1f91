"""When a client of `headrace bench` answers, and what it counts of its connection."""

from __future__ import annotations

from headrace.clients.load import Turn
from headrace.clients.publisher import Publisher
from headrace.clients.subscriber import Subscriber
from headrace.clients.tally import Tally
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from unit.clients.load_peers import CONNACK, Later, connected


def test_everybody_reads_before_anybody_answers_and_each_writes_once() -> None:
    later, tally = Later(), Tally(1)
    turn = Turn(later.call_soon)
    subscriber = Subscriber(tally, turn, Connect(4, "s"), "t", 1)
    publisher = Publisher(tally, turn, Connect(4, "p"), "t", 1, 0, 2, b"")
    wires = [connected(subscriber), connected(publisher)]
    assert len(later.calls) == 1
    later.end_turn()
    publisher.fill()
    publisher.flush()
    for wire in wires:
        wire.writes.clear()
    message = codec.encode_publish(4, b"t", bytes(16), 1, False, False, 7)
    subscriber.data_received(message)
    subscriber.data_received(message)
    publisher.data_received(codec.encode_puback(4, 1) + codec.encode_puback(4, 2))
    assert [wire.writes for wire in wires] == [[], []]
    later.end_turn()
    assert wires[0].writes == [codec.encode_puback(4, 7) * 2]
    assert [len(wire.writes) for wire in wires] == [1, 1]
    assert (tally.sent, tally.received, tally.acked) == (4, 2, 2)
    assert not later.calls


def test_who_is_refused_and_whose_connection_ends_is_counted() -> None:
    later, tally = Later(), Tally(1)
    refused, closed, left, late = (
        Publisher(tally, Turn(later.call_soon), Connect(4, "p"), "t", 1, 0, 1, b"") for _ in range(4)
    )
    refused.hello()
    refused.data_received(b"\x20\x02\x00\x05")
    assert (tally.ready, tally.refused) == (0, 1)
    connected(closed).close = lambda: None  # type: ignore[method-assign]
    closed.connection_lost(None)
    wire = connected(left)
    wire.close = lambda: None  # type: ignore[method-assign]
    left.leave()
    left.connection_lost(None)
    connected(late)
    tally.stopping = True
    late.connection_lost(None)
    assert (tally.ready, tally.closed, tally.left) == (3, 1, 1)


def test_bytes_that_are_no_mqtt_count_as_a_refusal() -> None:
    tally = Tally(1)
    client = Subscriber(tally, Turn(Later().call_soon), Connect(4, "s"), "t", 1)
    connected(client)
    client.data_received(CONNACK)
    assert tally.refused == 1
