"""A connection over a fake transport: what may stay unread, and what its listener counts."""

from __future__ import annotations

import pytest

from harness import Harness
from headrace.core.inbound.pace import Budget, Meter
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import WORK_AT_ONCE, Link
from headrace.core.ports.rights import Rights
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.net.connection import REASONS, STRANGERS_BYTES_MAX, Connection, ConnectionSet


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
    def __init__(
        self, pending_bytes_max: int = 1000, harness: Harness | None = None, node: ConnectionSet | None = None
    ) -> None:
        self.harness = harness or Harness()
        self.node = node or ConnectionSet(10, 1000)
        self.listener = ConnectionSet(10, 1000, 0, self.node, pending_bytes_max)
        self.connection = Connection(self.harness.worker, self.listener)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    @property
    def parsed(self) -> int:
        """PUBLISH packets that came as far as the broker."""
        return self.harness.broker.fold.tenant("default").counters.publishes_received

    def hear(self, data: bytes) -> None:
        """These bytes come, at the time of the harness."""
        self.harness.clock.stale = False
        self.connection.data_received(data)

    def send(self, data: bytes) -> None:
        self.hear(data)
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
    assert broker.worker.slow == 1
    client.connection.resume_writing()
    assert broker.worker.slow == 0
    client.connection.pause_writing()
    client.connection.connection_lost(None)
    assert broker.worker.slow == 0


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
        broker.worker.end_tick()
    assert client.transport.reading
    client.send(codec.encode_publish(4, b"t", b"more", 0, False, False, 0, b"", -1))
    assert client.parsed == 3001


def test_what_comes_while_a_flood_waits_keeps_its_place() -> None:
    client = flooding()
    client.connection.data_received(FLOOD[:50])
    client.connection.data_received(FLOOD[50:])
    client.harness.sync()
    for _ in range(20):
        client.harness.worker.end_tick()
    assert client.parsed == 6000
    assert client.transport.reading


def test_a_pause_that_the_broker_asked_for_holds_what_was_read_as_well() -> None:
    client = flooding()
    client.connection.pause_reading()
    seen = client.parsed
    for _ in range(20):
        client.harness.worker.end_tick()
    assert client.parsed == seen < 3000
    assert not client.transport.reading
    client.connection.resume_reading()
    assert not client.transport.reading
    passes(client, 20)
    assert client.parsed == 3000
    assert client.transport.reading


def passes(client: Client, count: int) -> None:
    for _ in range(count):
        client.harness.worker.end_tick()


def test_tiny_packets_take_turns_as_well() -> None:
    """16 000 of two bytes fit into the bytes of one share: they are counted in packets."""
    client = Client(1 << 20)
    client.send(codec.encode_connect(Connect(4, "pings", keep_alive_s=0)))
    client.transport.waiting = 0
    client.connection.data_received(codec.PINGREQ * 16_000)
    answered = 0
    while not client.transport.reading:
        client.harness.worker.end_tick()
        assert client.transport.waiting - answered <= 2 * 1024
        answered = client.transport.waiting
    passes(client, 1)
    assert client.transport.waiting == 2 * 16_000
    assert answered > 15 * 1024


@pytest.mark.parametrize("share", [1, 3, 1024, 1025, 2048, 2049])
def test_what_waits_for_its_turn_keeps_its_place_to_the_byte(share: int) -> None:
    client = Client(1 << 20)
    client.send(codec.encode_connect(Connect(4, "pings", keep_alive_s=0)))
    client.transport.waiting = 0
    stream = codec.PINGREQ * 3000
    for start in range(0, len(stream), share * 3):
        client.connection.data_received(stream[start : start + share * 3])
    passes(client, 8)
    assert client.transport.waiting == len(stream)
    assert client.transport.reading


@pytest.mark.interpreted
def test_an_error_of_ours_in_one_turn_costs_that_connection_alone() -> None:
    client, other = flooding(), flooding()
    other.harness.worker.end_tick()
    client.connection._stream = None  # type: ignore[assignment]
    client.harness.worker.take_turns(other.connection)
    before = other.parsed
    client.harness.worker.end_tick()
    assert client.transport.aborted
    assert client.listener.turned_away == counted(error=1)
    assert other.parsed > before


def test_fifty_that_send_without_a_pause_share_one_pass() -> None:
    """They all come in the same one; each goes on, and one that says little is read between any two passes."""
    harness = Harness()
    node = ConnectionSet(100, 1000)
    clients = [Client(1 << 20, harness, node) for _ in range(50)]
    counters = harness.broker.fold.tenant("default").counters
    for number, client in enumerate(clients):
        client.send(codec.encode_connect(Connect(4, f"c{number}", keep_alive_s=0)))
    seen = counters.publishes_received
    for client in clients:
        client.connection.data_received(codec.encode_publish(4, b"t", b"x") * 5000)
    assert counters.publishes_received - seen <= 6 * WORK_AT_ONCE  # 1 + 1 + 1/2 + 1/3 ... of a pass
    while len(harness.worker.turns.waiting) == 50:
        seen = counters.publishes_received
        harness.worker.end_tick()
        assert 0 < counters.publishes_received - seen <= WORK_AT_ONCE
    while harness.worker.turns.waiting:
        harness.worker.end_tick()
    assert counters.publishes_received == 50 * 5000
    assert all(client.transport.reading for client in clients)


class Refusing(Transport):
    def write(self, data: bytes) -> None:
        raise RuntimeError("no transport takes this")


def test_an_error_of_ours_in_one_write_costs_that_connection_alone() -> None:
    client, other = Client(), Client()
    client.connection.worker = other.connection.worker
    client.connection._transport = Refusing()  # type: ignore[assignment]
    client.transport = client.connection._transport  # type: ignore[assignment]
    for one in (client, other):
        one.connection.send(b"something")
    other.harness.worker.end_tick()
    assert client.transport.aborted
    assert client.listener.turned_away == counted(error=1)
    assert other.transport.waiting == len(b"something")


# Keep alive: [MQTT-3.1.2-22] is about packets


def alive(client: Client, keep_alive_s: int = 2) -> None:
    client.send(codec.encode_connect(Connect(4, "k", keep_alive_s=keep_alive_s)))
    client.transport.closed = False


def test_bytes_of_an_unfinished_packet_are_no_sign_of_life() -> None:
    client = Client()
    alive(client)
    packet = codec.encode_publish(4, b"t", b"x" * 500, 0, False, False, 0, b"", -1)
    for number in range(8):
        client.hear(packet[2 * number : 2 * number + 2])
        client.harness.advance(0.5)
    assert client.transport.closed


def test_whole_packets_are_one_however_they_come() -> None:
    client = Client()
    alive(client)
    for _ in range(8):
        for byte in codec.PINGREQ:
            client.hear(bytes([byte]))
        client.harness.advance(1.4)
    assert not client.transport.closed


@pytest.mark.parametrize("why", ["paused", "waits for its turn"])
def test_the_silence_of_a_client_that_we_do_not_read_is_ours(why: str) -> None:
    client = Client()
    alive(client)
    client.connection.pause_reading()
    if why != "paused":
        client.connection._aside = b""
        client.connection._held = False
    for _ in range(20):
        client.harness.worker.on_timer()
        client.harness.advance(1)
    assert not client.transport.closed
    client.connection._aside = None
    client.connection.resume_reading()
    client.harness.advance(2.5)
    assert not client.transport.closed
    client.harness.advance(1)
    assert client.transport.closed


def test_while_the_loop_stood_still_nobody_was_silent() -> None:
    client = Client()
    alive(client)
    clock = client.harness.clock
    clock.awake_ms = clock.mono_ms + 6000
    clock.stalled_ms = 6000
    client.harness.advance(6)
    assert not client.transport.closed
    client.harness.advance(3.5)  # silent for longer than that, too
    assert client.transport.closed


# Strangers


def test_what_all_strangers_hold_is_bounded_and_short_connects_always_pass() -> None:
    client = Client()
    worker, node = client.harness.worker, client.node
    long = codec.encode_connect(Connect(4, "x" * 60_000, username="y" * 60_000, password=b"z" * 60_000))
    cut = 0
    for _ in range(400):
        connection, transport = Connection(worker, client.listener), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for start in range(0, len(long) - 1, 16_000):
            if not transport.aborted:
                connection.data_received(long[start : min(start + 16_000, len(long) - 1)])
        cut += transport.aborted
        if transport.aborted:
            connection.connection_lost(None)
        assert node.strangers_bytes <= STRANGERS_BYTES_MAX + 16_000
    assert cut == node.turned_away["strangers_bytes"] > 100
    connection, transport = Connection(worker, client.listener), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    for byte in codec.encode_connect(Connect(4, "short", keep_alive_s=0)):
        connection.data_received(bytes([byte]))
    client.harness.sync()
    assert connection.ready
    for one in list(node.open):
        one.connection_lost(None)
    assert node.strangers_bytes == 0


def test_who_is_let_in_is_no_stranger_any_more() -> None:
    client = Client()
    packet = codec.encode_connect(Connect(4, "x" * 60_000, keep_alive_s=0))
    for start in range(0, len(packet), 1000):
        client.connection.data_received(packet[start : start + 1000])
    client.harness.sync()
    assert client.connection.ready
    assert client.node.strangers_bytes == 0


def test_a_stranger_may_not_announce_a_large_packet() -> None:
    client = Client()
    client.connection.data_received(b"\x10\xff\xff\x3f")  # 1 MiB
    client.harness.sync()
    assert client.transport.closed


def test_a_flood_that_ends_in_the_middle_leaves_nothing_behind() -> None:
    client = flooding()
    client.connection.connection_lost(None)
    seen = client.parsed
    for _ in range(20):
        client.harness.worker.end_tick()
    assert client.parsed == seen < 3000


def test_a_tenant_takes_smaller_packets_than_its_listener_and_says_so() -> None:
    client = Client(pending_bytes_max=0)
    client.harness.worker.anyone.limits.tenant_packet_bytes_max = 100
    publish = codec.encode_publish(5, b"t", bytes(93), 0, False, False, 0)
    assert len(publish) == 99
    longer = codec.encode_publish(5, b"t", bytes(95), 0, False, False, 0)
    client.send(codec.encode_connect(Connect(5, "c", keep_alive_s=0)) + publish)
    assert client.connection.packet_bytes_max == 100
    assert (client.parsed, client.transport.closed) == (1, False)
    client.send(longer)
    assert (client.parsed, client.transport.closed) == (1, True)


def test_what_a_tenant_allows_makes_no_listener_take_more() -> None:
    client = Client()
    client.connection.limit_packets(1 << 40)
    assert client.connection.packet_bytes_max == client.harness.worker.settings.packet_bytes_max


class OneBudget(Access):
    """Everybody may do everything, and what each sends is drawn on one budget."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget
        self.told = 0

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of("ada")

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return True

    def overdrawn(self, link: Link, rights: Rights) -> None:
        rights.left = 1 << 30
        if link.meter is None:
            link.meter = Meter(link, self.budget, self.tell)

    def tell(self) -> None:
        self.told += 1


@pytest.mark.parametrize("qos", [0, 1])
def test_bytes_beyond_the_budget_are_read_later_and_none_is_lost(qos: int) -> None:
    harness = Harness()
    budget = Budget(10_000, harness.clock.mono_ms)
    access = OneBudget(budget)
    harness.worker.guard(access)
    clients = [Client(harness=harness) for _ in range(2)]
    for number, client in enumerate(clients):
        client.send(codec.encode_connect(Connect(5, f"c{number}", keep_alive_s=10)))
        client.send(codec.encode_publish(5, b"t", b"", qos, False, False, 1 if qos else 0))
    sent = [1, 1]
    taken, began_ms = 0, harness.clock.mono_ms
    while harness.clock.mono_ms < began_ms + 20_000:
        for number, client in enumerate(clients):
            while client.transport.reading:
                sent[number] += 1
                packet_id = sent[number] if qos else 0
                data = codec.encode_publish(5, b"t", bytes(500), qos, False, False, packet_id)
                taken += len(data)
                client.send(data)
        harness.advance(0.05)
    assert 200_000 <= taken <= 1.02 * 210_000, "twenty seconds, and one that was saved up"
    assert clients[0].parsed == sum(sent)
    assert access.told == 2
    assert not any(client.transport.closed for client in clients), "their silence was ours"
    assert min(sent) > sum(sent) // 4


def test_a_meter_that_stops_lets_what_waits_be_read() -> None:
    harness = Harness()
    client = Client(harness=harness)
    client.send(codec.encode_connect(Connect(5, "c", keep_alive_s=0)))
    meter = Meter(client.connection, Budget(0, harness.clock.mono_ms), lambda: None)
    client.connection.meter = meter
    client.send(codec.PINGREQ)
    harness.advance(100)
    assert not client.transport.reading, "nothing is allowed"
    client.connection.meter = None
    meter.stop()
    assert client.transport.reading
