"""A connection over a fake transport: what may stay unread, and what its listener counts."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.net.connection import REASONS, Connection, ConnectionSet


class Transport:
    """`waiting` bytes were written and not read by the peer."""

    def __init__(self) -> None:
        self.waiting = 0
        self.aborted = False
        self.closed = False
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Client:
    def __init__(self, pending_bytes_max: int = 1000) -> None:
        self.harness = Harness()
        self.node = ConnectionSet(10, 1000)
        self.listener = ConnectionSet(10, 1000, 0, self.node, pending_bytes_max)
        self.connection = Connection(self.harness.broker, self.listener)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    @property
    def parsed(self) -> int:
        """PUBLISH packets that came as far as the broker."""
        return self.harness.broker.fold.tenant("default").counters.publishes_received

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.harness.sync()


def counted(**reasons: int) -> dict[str, int]:
    return dict.fromkeys(REASONS, 0) | reasons


def test_answers_that_are_not_read_end_the_connection() -> None:
    client = Client()
    client.send(codec.encode_connect(Connect(4, "deaf", keep_alive_s=0)))
    for _ in range(400):
        client.send(codec.PINGREQ)  # 800 bytes: below the limit
    client.connection.pause_writing()
    client.send(codec.PINGREQ)
    assert client.listener.turned_away == counted()
    for _ in range(100):
        client.send(codec.PINGREQ)
    assert client.transport.aborted
    assert client.listener.turned_away["pending_bytes"] == client.node.turned_away["pending_bytes"] >= 1


def test_who_reads_is_never_cut() -> None:
    client = Client()
    client.send(codec.encode_connect(Connect(4, "reads", keep_alive_s=0)))
    client.connection.pause_writing()
    for _ in range(1000):
        client.transport.waiting = 900
        client.send(codec.PINGREQ)
    assert not client.transport.aborted
    assert client.listener.turned_away == counted()


def test_who_does_not_read_is_counted_until_it_does_or_is_gone() -> None:
    client = Client()
    client.send(codec.encode_connect(Connect(4, "slow", keep_alive_s=0)))
    broker = client.harness.broker
    client.connection.pause_writing()
    assert broker.slow == 1
    client.connection.resume_writing()
    assert broker.slow == 0
    client.connection.pause_writing()
    client.connection.connection_lost(None)
    assert broker.slow == 0


def test_who_says_no_connect_is_cut_and_counted() -> None:
    client = Client()
    client.harness.advance(2)
    assert client.transport.aborted
    assert client.listener.turned_away == client.node.turned_away == counted(connect_timeout=1)


@pytest.mark.parametrize("ends", ["disconnect", "lost"])
def test_a_listener_counts_who_is_there(ends: str) -> None:
    client = Client()
    assert (client.listener.accepted, len(client.listener.open), len(client.node.open)) == (1, 1, 1)
    if ends == "disconnect":
        client.send(codec.encode_connect(Connect(4, "c")) + codec.encode_disconnect(4))
        assert client.transport.closed
    client.connection.connection_lost(None)
    assert (client.listener.accepted, len(client.listener.open), len(client.node.open)) == (1, 0, 0)


FLOOD = codec.encode_publish(4, b"t", b"x" * 60, 0, False, False, 0, b"", -1) * 3000
PACKETS_OF_A_SHARE = -(-3000 * (32 << 10) // len(FLOOD))


def flooding() -> Client:
    client = Client()
    client.send(codec.encode_connect(Connect(4, "flood", keep_alive_s=0)))
    client.connection.data_received(FLOOD)
    return client


def test_a_pass_parses_one_share_of_a_flood_and_reads_no_more_until_it_is_through() -> None:
    client = flooding()
    broker, seen = client.harness.broker, 0
    while client.parsed < 3000:
        assert 0 < client.parsed - seen <= PACKETS_OF_A_SHARE
        assert not client.transport.reading
        seen = client.parsed
        broker.end_tick()
    assert client.transport.reading
    client.send(codec.encode_publish(4, b"t", b"more", 0, False, False, 0, b"", -1))
    assert client.parsed == 3001


def test_what_comes_while_a_flood_waits_keeps_its_place() -> None:
    client = flooding()
    client.connection.data_received(FLOOD[:50])
    client.connection.data_received(FLOOD[50:])
    client.harness.sync()
    for _ in range(20):
        client.harness.broker.end_tick()
    assert client.parsed == 6000
    assert client.transport.reading


def test_a_flood_does_not_undo_a_pause_that_the_broker_asked_for() -> None:
    client = flooding()
    client.connection.pause_reading()
    for _ in range(20):
        client.harness.broker.end_tick()
    assert client.parsed == 3000
    assert not client.transport.reading
    client.connection.resume_reading()
    assert client.transport.reading


def test_a_flood_that_ends_in_the_middle_leaves_nothing_behind() -> None:
    client = flooding()
    client.connection.connection_lost(None)
    seen = client.parsed
    for _ in range(20):
        client.harness.broker.end_tick()
    assert client.parsed == seen < 3000
