"""kill -9 of the broker: nothing acknowledged is lost, order stays, repeats carry DUP (P1-P4)."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from e2e.consumer import Consumer, Ledger, arrival
from e2e.producer import Producer
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY,
    connect_packet,
)

Brokers = Callable[..., BrokerProcess]
Clients = Callable[..., RawClient]
KILLS = 5


def subscribe_and_leave(broker: BrokerProcess, client_id: str, topic_filter: str, qos: int) -> None:
    with RawClient(broker.address, client_id) as client:
        client.connect(clean=False)
        client.subscribe(topic_filter, qos=qos)
        client.disconnect()


def read_all(broker: BrokerProcess, client_id: str, producers: list[Producer], qos: int) -> Ledger:
    """The backlog of a subscriber who was away all the time."""
    consumer = Consumer(broker, client_id, "load/#", qos, resume=True)
    consumer.start()
    consumer.finish(producers)
    assert consumer.sessions_lost == 0
    return consumer.ledger


# The largest backlog there is, for the one who is away; and with it, once, a journal that rolls and a snapshot
# every second, so that kills meet both.
ROOMY: dict[str, object] = {"session.backlog_messages_max": 65_535}
RESTLESS: dict[str, object] = ROOMY | {
    "journal.segment_bytes_max": 65_536,
    "journal.snapshot_interval_bytes": 4_096,
    "session.page_messages": 10,
}


@pytest.mark.parametrize(
    ("qos", "settings"),
    [
        pytest.param(1, ROOMY, id="QoS 1"),
        pytest.param(2, ROOMY, id="QoS 2", marks=pytest.mark.deep),
        pytest.param(1, RESTLESS, id="QoS 1, snapshots and rolls", marks=pytest.mark.deep),
        pytest.param(2, RESTLESS, id="QoS 2, snapshots and rolls"),
    ],
)
def test_kill_five_times_under_load(brokers: Brokers, qos: int, settings: dict[str, object]) -> None:
    """Three publishers that never stop, a subscriber who is there and one who is away, five kills."""
    own_broker = brokers(settings).start()
    subscribe_and_leave(own_broker, "away", "load/#", qos)
    online = Consumer(own_broker, "online", "load/#", qos)
    online.start()
    producers = [
        Producer(own_broker, f"p{n}", f"load/{n}", qos=qos, window=window, rate=1_500, padding=64)
        for n, window in enumerate((1, 8, 64))
    ]
    for producer in producers:
        producer.start()
    for life in range(1, KILLS + 1):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 100)
        wait_until(partial(has_lived, online, life), "the subscriber returned")
        own_broker.crash()
    for producer in producers:
        producer.wait_acked(len(producer.acked) + 100)
        producer.finish()
    for producer in producers:
        producer.join_finished()
    online.finish(producers)
    away = read_all(own_broker, "away", producers, qos)

    assert online.sessions_lost == 0
    assert all(producer.reconnects == KILLS for producer in producers)
    assert online.lives == KILLS + 1
    for ledger in (online.ledger, away):
        assert ledger.missing(producers) == {}
        assert ledger.faults(producers) == []
        if qos == 2:  # exactly once on either side of every crash
            assert [ledger.repeated(producer.name) for producer in producers] == [set(), set(), set()]
    assert not any(one.dup for one in away.arrivals), "never sent before, so no DUP"
    order = [[(one.source, one.number) for one in ledger.arrivals] for ledger in (online.ledger, away)]
    assert first_seen(order[0]) == first_seen(order[1]), "both must see the one order of the journal"


def has_lived(consumer: Consumer, lives: int) -> bool:
    return consumer.lives == lives


def first_seen(order: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys(order))


def test_o6_with_a_kill_while_away_and_one_on_return(own_broker: BrokerProcess, clients: Clients) -> None:
    """The published scenario; the broker dies while the subscriber is away, and again when it is back."""
    keep = {"clean": False, "properties": {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: 20}}
    subscriber = clients(own_broker, "s", 5, **keep)
    subscriber.subscribe("t", qos=1)
    producer = Producer(own_broker, "p", "t", count=2_000, window=10, rate=2_000)
    producer.start()
    ledger = Ledger()
    for _ in range(500):
        packet = subscriber.expect(PUBLISH)
        ledger.arrivals.append(arrival(packet, 1))
        subscriber.ack(PUBACK, packet.packet_id)
    subscriber.leave()
    wait_until(lambda: producer.sent >= 750, "750 sent")
    own_broker.crash()
    wait_until(lambda: producer.sent >= 1_000, "1 000 sent")
    subscriber = clients(own_broker, "s", 5, **keep)
    assert subscriber.connack.session_present
    try:
        while True:
            packet = subscriber.expect(PUBLISH)
            ledger.arrivals.append(arrival(packet, 2))
            subscriber.ack(PUBACK, packet.packet_id)
            if ledger.arrivals[-1].number == 1_200:
                own_broker.kill()
    except ClosedError:
        pass
    own_broker.start()
    subscriber = clients(own_broker, "s", 5, **keep)
    assert subscriber.connack.session_present
    while not ledger.arrivals or ledger.arrivals[-1].number != 1_999:
        packet = subscriber.receive()
        ledger.arrivals.append(arrival(packet, 3))
    producer.join_finished()
    assert ledger.missing([producer]) == {}
    assert ledger.faults([producer]) == []


# -- QoS 2, the publishing side


@pytest.mark.parametrize(
    ("end", "resend", "version"),
    [
        ("SIGKILL", "PUBREL", 4),
        ("SIGKILL", "PUBLISH", 5),
        ("SIGTERM", "PUBREL", 5),
        ("SIGTERM", "PUBLISH", 4),
        pytest.param("SIGKILL", "PUBREL", 5, marks=pytest.mark.deep),
        pytest.param("SIGKILL", "PUBLISH", 4, marks=pytest.mark.deep),
        pytest.param("SIGTERM", "PUBREL", 4, marks=pytest.mark.deep),
        pytest.param("SIGTERM", "PUBLISH", 5, marks=pytest.mark.deep),
    ],
)
def test_qos_2_publisher_after_pubrec(
    own_broker: BrokerProcess, clients: Clients, version: int, resend: str, end: str
) -> None:
    """PUBREC was sent, so the message is ours: whatever the client repeats, it is delivered once."""
    subscribe_and_leave(own_broker, "away", "t", 2)
    keep = {"clean": False} if version == 4 else {"clean": False, "properties": {SESSION_EXPIRY: 600}}
    publisher = clients(own_broker, "p", version, **keep)
    for packet_id in (7, 9, 8):
        publisher.publish("t", str(packet_id), 2, packet_id=packet_id)
    for packet_id in (7, 9, 8):
        publisher.expect_ack(PUBREC, packet_id)
    if end == "SIGKILL":
        own_broker.crash()
    else:  # what a snapshot forgets nobody remembers
        own_broker.restart()
    publisher = clients(own_broker, "p", version, **keep)
    assert publisher.connack.session_present
    for packet_id in (7, 9, 8):
        if resend == "PUBLISH":  # as a client does that has not seen the PUBREC
            publisher.publish("t", str(packet_id), 2, packet_id=packet_id, dup=True)
            publisher.expect_ack(PUBREC, packet_id)
        publisher.ack(PUBREL, packet_id)
        done = publisher.expect(PUBCOMP)
        assert (done.packet_id, done.reason) == (packet_id, 0)
    publisher.deliver("t", b"end", 2, packet_id=7)  # a new message under an id that is free again
    away = clients(own_broker, "away", clean=False)
    assert [away.receive().payload for _ in range(4)] == [b"7", b"9", b"8", b"end"]
    assert away.ping() == []


def test_qos_2_publisher_after_pubcomp(own_broker: BrokerProcess, clients: Clients) -> None:
    """PUBCOMP waits for the journal too: else a new message under the same id would be taken for a repeat."""
    subscribe_and_leave(own_broker, "away", "t", 2)
    publisher = clients(own_broker, "p", clean=False)
    publisher.deliver("t", b"one", 2, packet_id=7)
    own_broker.crash()
    publisher = clients(own_broker, "p", clean=False)
    publisher.ack(PUBREL, 7)  # as a client does that has not seen the PUBCOMP
    publisher.expect_ack(PUBCOMP, 7)
    publisher.deliver("t", b"two", 2, packet_id=7)
    own_broker.crash()
    publisher = clients(own_broker, "p", clean=False)
    publisher.deliver("t", b"three", 2, packet_id=7)
    away = clients(own_broker, "away", clean=False)
    assert [away.receive().payload for _ in range(3)] == [b"one", b"two", b"three"]
    assert away.ping() == []


def test_qos_2_publisher_whose_clean_session_is_gone(own_broker: BrokerProcess, clients: Clients) -> None:
    """A new session starts with free ids, also after a crash."""
    subscribe_and_leave(own_broker, "away", "t", 2)
    publisher = clients(own_broker, "p", clean=False)
    publisher.publish("t", b"one", 2, packet_id=7)
    publisher.expect_ack(PUBREC, 7)
    own_broker.crash()
    publisher = clients(own_broker, "p", clean=True)
    publisher.deliver("t", b"two", 2, packet_id=7)
    away = clients(own_broker, "away", clean=False)
    assert [away.receive().payload for _ in range(2)] == [b"one", b"two"]


# -- QoS 2, the subscribing side


def test_qos_2_subscriber_in_every_state(own_broker: BrokerProcess, clients: Clients) -> None:
    """After PUBREL it comes again and PUBLISH never does; before, PUBLISH comes with DUP; over two kills."""
    client = clients(own_broker, "s", 4, clean=False)
    client.subscribe("t", qos=2)
    clients(own_broker).deliver_many("t", range(6), qos=2)
    sent = [client.expect(PUBLISH) for _ in range(6)]
    for number in (0, 2, 4):
        client.ack(PUBREC, sent[number].packet_id)
        client.expect_ack(PUBREL, sent[number].packet_id)
    for _ in range(2):
        own_broker.crash()
        client = clients(own_broker, "s", 4, clean=False)
        back = [client.expect_any(PUBLISH, PUBREL) for _ in range(6)]
        again = [(one.payload, one.packet_id, one.dup) for one in back if one.kind == PUBLISH]
        assert again == [(sent[n].payload, sent[n].packet_id, True) for n in (1, 3, 5)]
        released = [one.packet_id for one in back if one.kind == PUBREL]
        assert released == [sent[n].packet_id for n in (0, 2, 4)]
        assert client.ping() == []


def test_acknowledged_before_the_last_commit_does_not_return(
    own_broker: BrokerProcess, clients: Clients
) -> None:
    """Acks are journaled with the next batch: a later PUBACK to a publisher proves them durable."""
    client = clients(own_broker, "s", 4, clean=False)
    client.subscribe("t", qos=1)
    clients(own_broker).deliver_many("t", range(50))
    for _ in range(50):
        client.receive()
    assert client.ping() == []
    clients(own_broker).deliver("t", b"50")
    assert client.expect(PUBLISH).payload == b"50"
    own_broker.crash()
    client = clients(own_broker, "s", 4, clean=False)
    found = client.expect(PUBLISH)
    assert (found.payload, found.dup) == (b"50", True)


# -- what else is state


def test_retained_and_subscriptions_survive(own_broker: BrokerProcess, clients: Clients) -> None:
    publisher = clients(own_broker, "p", 4)
    publisher.deliver("r/kept", b"old", 1, retain=True)
    publisher.deliver("r/gone", b"x", 2, retain=True)
    publisher.deliver("r/kept", b"new", 2, retain=True)
    publisher.deliver("r/gone", b"", 1, retain=True)
    publisher.deliver("r/zero", b"zero", 0, retain=True)
    publisher.deliver("flush", b"", 1)
    away = clients(own_broker, "away", 4, clean=False)
    away.subscribe(("a/+/c", 1), ("b/#", 2), ("d", 1))
    away.unsubscribe("d")
    away.disconnect()
    for _ in range(2):
        own_broker.crash()
    fresh = clients(own_broker)
    fresh.subscribe("r/#", "marker", qos=1)
    fresh.deliver("marker", b"")
    found = {}
    while (packet := fresh.receive()).topic != "marker":
        assert packet.retain
        found[packet.topic] = packet.payload
    assert found == {"r/kept": b"new", "r/zero": b"zero"}
    for topic, qos in (("d", 2), ("a/b/c", 2), ("b", 2), ("x", 1)):
        fresh.deliver(topic, topic, qos)
    away = clients(own_broker, "away", 4, clean=False)
    assert away.connack.session_present
    assert [(one.topic, one.qos) for one in (away.receive(), away.receive())] == [("a/b/c", 1), ("b", 2)]
    assert away.ping() == []


def test_a_clean_session_is_not_revived_by_a_crash(own_broker: BrokerProcess, clients: Clients) -> None:
    """Its will waits for the grace, but its state must never be used again [MQTT-3.1.2-6]."""
    old = clients(own_broker, "old", 4, clean=True, will=("will", b"gone"))
    new = clients(own_broker, "new", 5, clean=False)
    for client in (old, new):
        client.subscribe("t", qos=1)
    own_broker.crash()
    again = clients(own_broker, "old", 4, clean=False)
    assert again.connack.session_present is False
    assert clients(own_broker, "new", 5, clean=False).connack.session_present is False
    again.deliver("t", b"for a subscription that is gone")
    again.subscribe("t", qos=1)
    again.deliver("t", b"x")
    assert again.receive().payload == b"x"


def test_retained_pages_survive(own_broker: BrokerProcess, clients: Clients) -> None:
    """SUBACK was sent, 1 500 retained messages were found, five were read, then the plug was pulled."""
    publisher = clients(own_broker)
    for start in range(0, 1_500, 100):
        for number in range(start, start + 100):
            publisher.publish(f"r/{number}", str(number), 1, retain=True)
        for _ in range(100):
            publisher.expect(PUBACK)
    client = clients(own_broker, "s", 4, clean=False)
    client.subscribe("r/+", qos=1)
    found = {int(client.receive().payload) for _ in range(5)}
    own_broker.crash()
    client = clients(own_broker, "s", 4, clean=False)
    while len(found) < 1_500:
        found.add(int(client.receive().payload))
    assert found == set(range(1_500))


def test_retention_keeps_what_sessions_and_retained_need(brokers: Brokers, clients: Clients) -> None:
    """Decision 19: size and time bind archives, never the backlog of a session, nor a retained message."""
    settings = {"journal.segment_bytes_max": 65_536, "journal.retention_bytes": 131_072}
    broker = brokers(settings | {"journal.snapshot_interval_bytes": 65_536}).start()
    publisher = clients(broker)
    publisher.deliver("kept", b"old and retained", retain=True)
    subscribe_and_leave(broker, "away", "few", 1)
    publisher.deliver_many("few", range(20))
    subscribe_and_leave(broker, "gone", "few", 1)
    clients(broker, "gone", clean=True).disconnect()
    oldest = min((broker.data_dir / "journal").glob("*.log"))
    for _ in range(2):
        for _ in range(100):
            publisher.publish("bulk", b"x" * 20_000, 1)
        for _ in range(100):
            publisher.expect(PUBACK)
        broker.restart()  # a stop writes a snapshot and lets retention work
        publisher = clients(broker)
    broker.crash()
    away = clients(broker, "away", 4, clean=False)
    assert [int(away.receive().payload) for _ in range(20)] == list(range(20))
    fresh = clients(broker)
    fresh.subscribe("kept", qos=1)
    assert fresh.receive().payload == b"old and retained"
    assert oldest.exists() or len(list((broker.data_dir / "journal").glob("*.log"))) < 20


@pytest.mark.slow
def test_a_fuzzy_snapshot_is_exact_for_each_session(brokers: Brokers, clients: Clients) -> None:
    """Snapshots of 700 sessions are written in slices while messages pour in: each session has a position of its
    own, and after a kill none may have a message twice, or one less than the others."""
    broker = brokers(RESTLESS).start()
    fleet = [clients(broker, f"s{number}", connect=False) for number in range(700)]
    for client in fleet:
        client.send(connect_packet(client.client_id, clean=False))
    for client in fleet:
        client.expect(CONNACK)
        client.subscribe("t", qos=1)
    for client in fleet:
        client.disconnect()
    sent = 0
    for _ in range(2):
        publisher = clients(broker)
        until = time.monotonic() + 1.6  # the housekeeper looks once a second
        while time.monotonic() < until:
            publisher.deliver_many("t", range(sent, sent + 20), window=4)
            sent += 20
        broker.crash()
        listed = headrace("session", "list", "--json", "--data-dir", str(broker.data_dir))
        rows = [json.loads(line) for line in listed.stdout.splitlines()]
        backlogs = Counter(row["backlog"] for row in rows if row["client_id"].startswith("s"))
        assert backlogs == Counter({sent: 700})
    for number in (0, 350, 699):
        client = clients(broker, f"s{number}", clean=False)
        assert [int(client.receive().payload) for _ in range(sent)] == list(range(sent))


@pytest.mark.slow
def test_killed_again_while_it_recovers(own_broker: BrokerProcess, clients: Clients) -> None:
    """A crash loop: killed at any moment of its start, it loses nothing in the end."""
    subscribe_and_leave(own_broker, "away", "t", 1)
    clients(own_broker).deliver_many("t", range(3_000))
    own_broker.kill()
    chance = random.Random(3)
    for _ in range(6):
        own_broker.spawn()
        with pytest.raises(TimeoutError):
            own_broker.wait_for_line("never said", chance.uniform(0.02, 0.6))
        own_broker.kill()
    own_broker.start()
    away = clients(own_broker, "away", 4, clean=False)
    assert [int(away.receive().payload) for _ in range(3_000)] == list(range(3_000))


def test_a_torn_tail_is_cut_back_and_said(own_broker: BrokerProcess, clients: Clients) -> None:
    """P9: what a crash half wrote is cut off; every acknowledged message before it is there."""
    subscribe_and_leave(own_broker, "away", "t", 1)
    clients(own_broker).deliver_many("t", range(500))
    own_broker.kill()
    tail = max((own_broker.data_dir / "journal").glob("*.log"))
    written = len(tail.read_bytes().rstrip(b"\0"))
    with tail.open("r+b") as file:
        file.seek(written)
        file.write(random.Random(1).randbytes(300))
    said = len(own_broker.lines)
    own_broker.start()
    away = clients(own_broker, "away", 4, clean=False)
    assert [int(away.receive().payload) for _ in range(500)] == list(range(500))
    away.deliver("t", b"next")
    assert away.receive().payload == b"next"
    lines = "".join(own_broker.lines[said:]).lower()
    assert any(word in lines for word in ("cut", "torn", "truncat")), lines


def test_half_of_a_batch_is_cut_back(own_broker: BrokerProcess, clients: Clients) -> None:
    """The same with the first bytes of a good batch: a copy of the journal's own beginning of a batch."""
    subscribe_and_leave(own_broker, "away", "t", 1)
    publisher = clients(own_broker)
    publisher.deliver_many("t", range(100))
    tail = max((own_broker.data_dir / "journal").glob("*.log"))
    before = len(tail.read_bytes().rstrip(b"\0"))
    publisher.deliver("t", b"100" + b"x" * 2_000)
    own_broker.kill()
    content = tail.read_bytes().rstrip(b"\0")
    assert len(content) >= before + 2_000
    with tail.open("r+b") as file:
        file.seek(len(content))
        file.write(content[before : before + 1_000])
    own_broker.start()
    away = clients(own_broker, "away", 4, clean=False)
    assert [away.receive().payload[:3] for _ in range(101)] == [b"%d" % number for number in range(101)]
    assert away.ping() == []


def test_sigterm_under_load_loses_nothing(own_broker: BrokerProcess) -> None:
    """Drains, exits with 0, and the next start knows it all; three times."""
    subscribe_and_leave(own_broker, "away", "load/#", 1)
    online = Consumer(own_broker, "online", "load/#")
    online.start()
    producers = [Producer(own_broker, f"p{n}", f"load/{n}", window=16) for n in range(2)]
    for producer in producers:
        producer.start()
    for _ in range(3):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 200)
        own_broker.restart()
    for producer in producers:
        producer.wait_acked(len(producer.acked) + 200)
        producer.finish()
        producer.join_finished()
    online.finish(producers)
    away = read_all(own_broker, "away", producers, 1)
    for ledger in (online.ledger, away):
        assert ledger.missing(producers) == {}
        assert ledger.faults(producers) == []
    assert online.sessions_lost == 0


def test_many_small_journals_roll_and_survive(brokers: Brokers, clients: Clients) -> None:
    """Segments of the smallest size: rolls, snapshots and kills together; one backlog spans them all."""
    broker = brokers(
        {"journal.segment_bytes_max": 1 << 20, "journal.snapshot_interval_bytes": 1 << 20}
    ).start()
    subscribe_and_leave(broker, "away", "t", 1)
    for life in range(4):
        publisher = clients(broker)
        for number in range(life * 200, (life + 1) * 200):
            publisher.publish("t", f"{number}:".encode() + b"x" * 10_000, 1)
        for _ in range(200):
            publisher.expect(PUBACK)
        broker.crash()
    assert len(list((broker.data_dir / "journal").glob("*.log"))) > 3
    away = clients(broker, "away", 4, clean=False)
    numbers = [int(away.receive().payload.partition(b":")[0]) for _ in range(800)]
    assert numbers == list(range(800))
    assert all(now == before + 1 for before, now in pairwise(numbers))


@pytest.mark.slow
def test_takeover_during_kill(own_broker: BrokerProcess, clients: Clients) -> None:
    """Four clients fight over one session while the broker dies: one session, and its messages, come out."""
    first = clients(own_broker, "s", 4, clean=False)
    first.subscribe("t", qos=1)
    clients(own_broker).deliver_many("t", range(20))
    stop, connects = threading.Event(), Counter[int]()

    def fight() -> None:
        while not stop.is_set():
            try:
                with RawClient(own_broker.address, "s") as client:
                    client.connect(clean=False)
                    connects[own_broker.pid] += 1
                    client.read(0.05)
            except (ClosedError, SilenceError, OSError):
                stop.wait(0.005)

    fighters = [threading.Thread(target=fight, daemon=True) for _ in range(4)]
    for fighter in fighters:
        fighter.start()
    for _ in range(3):
        wait_until(lambda: connects[own_broker.pid] >= 20, "20 takeovers")
        own_broker.crash()
    stop.set()
    for fighter in fighters:
        fighter.join(10)
    last = clients(own_broker, "s", 4, clean=False)
    assert last.connack.session_present
    assert [int(last.receive().payload) for _ in range(20)] == list(range(20))
