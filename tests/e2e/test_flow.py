"""Flow towards a subscriber: the window, the backlog, and the seam between backlog and live (O2-O6)."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.background import Background
from e2e.consumer import Ledger, arrival
from e2e.producer import Producer
from e2e.raw import RawClient
from e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RECEIVE_MAXIMUM, SESSION_EXPIRY, Packet

Clients = Callable[..., RawClient]
BACKLOG = 5_000


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {"session.backlog_messages_max": 65_535}


def keep(version: int, receive_maximum: int = 20) -> dict[str, object]:
    if version < 5:
        return {"clean": False}
    return {"clean": False, "properties": {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: receive_maximum}}


def leave_a_backlog(
    broker: BrokerProcess, clients: Clients, name: str, count: int, *, version: int = 5, qos: int = 1
) -> None:
    subscriber = clients(broker, name, version, **keep(version))
    subscriber.subscribe(name, qos=qos)
    subscriber.disconnect()
    clients(broker).deliver_many(name, range(count), qos)


class Window:
    """A subscriber's side of the window: at no moment more unacknowledged than it allowed."""

    def __init__(self, client: RawClient, maximum: int) -> None:
        self.client, self.maximum = client, maximum
        self.unacked: list[int] = []
        self.released: list[int] = []  # QoS 2: PUBREL came, PUBCOMP is ours to send
        self.numbers: list[int] = []

    @property
    def used(self) -> int:
        return len(self.unacked) + len(self.released)

    def take(self, packet: Packet) -> None:
        if packet.kind == PUBREL:
            assert packet.packet_id in self.unacked
            self.unacked.remove(packet.packet_id)
            self.released.append(packet.packet_id)
            return
        assert packet.kind == PUBLISH, str(packet)
        assert self.used < self.maximum, f"{packet}: {self.used} are unacknowledged [MQTT-3.3.4-7]"
        assert packet.packet_id not in self.unacked + self.released, f"{packet}: id in use"
        assert not packet.dup
        self.unacked.append(packet.packet_id)
        self.numbers.append(int(packet.payload))

    def full(self) -> None:
        """The broker has nothing more to send until we acknowledge."""
        for packet in self.client.ping():
            self.take(packet)
        assert self.used == self.maximum


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [1, 7, 100])
def test_receive_maximum_holds_during_a_backlog(
    broker: BrokerProcess, clients: Clients, name: str, maximum: int
) -> None:
    """Acks leave in random order and in bursts; the window is refilled by exactly as many."""
    leave_a_backlog(broker, clients, name, BACKLOG)
    chance = random.Random(maximum)
    window = Window(clients(broker, name, 5, **keep(5, maximum)), maximum)
    while len(window.numbers) < BACKLOG:
        window.take(window.client.read())
        more = len(window.numbers) < BACKLOG
        if more and window.used == maximum and (len(window.numbers) < 50 * maximum or chance.random() < 0.05):
            window.full()
        if window.used == maximum or chance.random() < 0.1:
            for packet_id in chance.sample(window.unacked, chance.randint(1, window.used)):
                window.unacked.remove(packet_id)
                window.client.ack(PUBACK, packet_id)
    assert window.numbers == list(range(BACKLOG))
    for packet_id in window.unacked:
        window.client.ack(PUBACK, packet_id)
    assert window.client.ping() == []


def test_receive_maximum_holds_with_qos_2(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """A QoS 2 message leaves the window with PUBCOMP, not with PUBREC (4.9)."""
    leave_a_backlog(broker, clients, name, 500, qos=2)
    window = Window(clients(broker, name, 5, **keep(5, 5)), 5)
    chance = random.Random(2)
    while len(window.numbers) < 500:
        window.take(window.client.read())
        if window.used < 5:
            continue
        if len(window.numbers) < 495:
            window.full()
        for packet_id in list(window.unacked):
            window.client.ack(PUBREC, packet_id)
        while window.unacked:
            window.take(window.client.expect(PUBREL))
        if len(window.numbers) < 495:
            window.full()
        for packet_id in chance.sample(window.released, chance.randint(1, 5)):
            window.released.remove(packet_id)
            window.client.ack(PUBCOMP, packet_id)
    assert window.numbers == list(range(500))


@pytest.mark.parametrize("version", [4, 5])
def test_backlog_before_live(broker: BrokerProcess, clients: Clients, name: str, version: int) -> None:
    """O4, O5: publishing goes on while the backlog is read; nothing is lost or early at the seam."""
    leave_a_backlog(broker, clients, name, 3_000, version=version)
    publisher, go_on = clients(broker), threading.Event()

    def publish_on(enough: threading.Event) -> None:
        number = 3_000
        while not enough.is_set():
            publisher.deliver_many(name, range(number, number + 10))
            number += 10
            go_on.set()
        publisher.deliver(name, b"end")

    live = Background(publish_on)
    assert go_on.wait(10)
    subscriber = clients(broker, name, version, **keep(version))
    assert subscriber.connack.session_present
    numbers: list[int] = []
    while len(numbers) < 4_000:
        packet = subscriber.receive()
        assert not packet.dup
        numbers.append(int(packet.payload))
    live.finish()
    while (packet := subscriber.receive()).payload != b"end":
        assert not packet.dup
        numbers.append(int(packet.payload))
    assert numbers == list(range(len(numbers)))


def read_until(client: RawClient, ledger: Ledger, last: int, life: int) -> None:
    """Reads and acknowledges until number `last` has come."""
    while True:
        packet = client.expect(PUBLISH)
        ledger.arrivals.append(arrival(packet, life))
        client.ack(PUBACK, packet.packet_id)
        if ledger.arrivals[-1].number == last:
            return


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["disconnect", "end of stream", "reset"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("unacked", [0, 13])
def test_o6_leaves_after_500_returns_at_1000(
    broker: BrokerProcess, clients: Clients, name: str, cut: str, version: int, unacked: int
) -> None:
    """The scenario that found the bugs, as published.  `unacked` of the 500 stay without PUBACK."""
    subscriber = clients(broker, name, version, **keep(version))
    subscriber.subscribe(name, qos=1)
    producer = Producer(broker, "p", name, count=2_000, window=10, rate=4_000)
    producer.start()
    ledger = Ledger()
    while len(ledger.arrivals) < 500:
        packet = subscriber.expect(PUBLISH)
        ledger.arrivals.append(arrival(packet, 1))
        if len(ledger.arrivals) <= 500 - unacked:
            subscriber.ack(PUBACK, packet.packet_id)
    ids_at_cut = {one.number: one.packet_id for one in ledger.arrivals[500 - unacked :]}
    for packet in subscriber.ping():  # the broker has seen every PUBACK now
        ids_at_cut[arrival(packet).number] = packet.packet_id
    if cut == "reset":
        subscriber.abort()
    else:
        rest = subscriber.leave() if cut == "end of stream" else subscriber.disconnect()
        ids_at_cut |= {arrival(packet).number: packet.packet_id for packet in rest if packet.kind == PUBLISH}

    wait_until(lambda: producer.sent >= 1_000, "1 000 sent")
    subscriber = clients(broker, name, version, **keep(version))
    assert subscriber.connack.session_present
    assert producer.is_alive(), "the producer must never stop"
    again = len(ledger.arrivals)
    read_until(subscriber, ledger, 1_999, 2)
    producer.join_finished()

    assert [one.number for one in ledger.arrivals[again:]] == list(range(500 - unacked, 2_000))
    assert ledger.missing([producer]) == {}
    assert ledger.faults([producer]) == []
    assert subscriber.ping() == []
    window = 20 if version == 5 else 1_024
    for one in ledger.arrivals[again:]:
        if one.number in ids_at_cut:
            assert (one.dup, one.packet_id) == (True, ids_at_cut[one.number]), f"{one} was in flight"
        elif one.dup:  # only what may have been written to a line that was cut before it arrived
            assert cut != "disconnect", f"{one} had not been sent before"
            assert one.number < 500 - unacked + window


@pytest.mark.slow
def test_coming_and_going(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """Twelve lives of one subscriber during one stream; each cut is exact, so each return must be exact."""
    producer = Producer(broker, "p", name, window=10, rate=3_000)
    clients(broker, name, 5, **keep(5)).subscribe(name, qos=1)
    producer.start()
    chance = random.Random(7)
    in_flight: dict[int, Packet] = {}
    upto = 0
    for life in range(12):
        subscriber = clients(broker, name, 5, **keep(5))
        assert subscriber.connack.session_present == (life > 0) or life == 0
        expected = list(in_flight)
        got: list[Packet] = []
        wanted = chance.randint(30, 200)
        while len(got) < wanted + len(expected):
            got.append(subscriber.expect(PUBLISH))
            if chance.random() < 0.9 or len(in_flight) > 10:
                acknowledged = got[-1]
                subscriber.ack(PUBACK, acknowledged.packet_id)
                in_flight.pop(arrival(acknowledged).number, None)
            else:
                in_flight[arrival(got[-1]).number] = got[-1]
        repeats, fresh = got[: len(expected)], got[len(expected) :]
        assert [arrival(one).number for one in repeats] == expected
        assert all(one.dup for one in repeats)
        for packet in subscriber.leave():
            in_flight[arrival(packet).number] = packet
            fresh.append(packet)
        in_flight = dict(sorted(in_flight.items()))
        assert [arrival(one).number for one in fresh] == list(range(upto, upto + len(fresh)))
        marked = [one.dup for one in fresh]
        assert marked == sorted(marked, reverse=True)  # what the broker wrote when we had gone is not ours
        assert len(expected) + sum(marked) <= 20, "more than can have been in flight"
        upto += len(fresh)
    producer.finish()
    producer.join_finished()


def test_a_subscriber_that_does_not_read_holds_nobody_up(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    """10 MB wait for the one who sleeps; the one who is awake gets them meanwhile; at last both have all."""
    asleep, awake, publisher = clients(broker, f"{name}-1", clean=False), clients(broker), clients(broker)
    asleep.subscribe(name, qos=1)
    awake.subscribe(name, qos=1)
    body = b"x" * 50_000
    for number in range(200):
        publisher.deliver(name, b"%d:" % number + body)
        assert awake.receive().payload.startswith(b"%d:" % number)
    numbers = [int(asleep.receive().payload.partition(b":")[0]) for _ in range(200)]
    assert numbers == list(range(200))


@pytest.mark.slow
def test_packet_ids_wrap_and_order_stays(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """T4: 70 000 messages through one session; ids never 0, never in use twice, order kept over the wrap.

    The first message is not acknowledged: it stops nothing, and its id must not come a second time.
    """
    total = 70_000
    subscriber = clients(broker, name, 4, clean=False)
    subscriber.subscribe(name, qos=1)
    publisher = clients(broker)
    feeder = Background(lambda _: publisher.deliver_many(name, range(total)))
    first = subscriber.expect(PUBLISH)
    ids = [first.packet_id]
    while len(ids) < total:
        packet = subscriber.receive(10.0)
        assert int(packet.payload) == len(ids)
        assert packet.packet_id != first.packet_id, "this id is in use [MQTT-2.2.1-4]"
        ids.append(packet.packet_id)
    feeder.finish()
    assert len(set(ids)) < total, "the ids must have wrapped"
    assert all(now != before for before, now in itertools.pairwise(ids))
    publisher.deliver(name, b"a")
    publisher.deliver(name, b"b")
    unacked = [first.packet_id, *[subscriber.expect(PUBLISH).packet_id for _ in range(2)]]
    subscriber.leave()
    subscriber = clients(broker, name, 4, clean=False)
    again = [subscriber.receive() for _ in unacked]
    assert [(one.packet_id, one.dup) for one in again] == [(one, True) for one in unacked]
