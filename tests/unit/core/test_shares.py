"""What waits for the journal on behalf of one client is bounded, whatever the client sends, and nobody waits for it."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.commit import ENTRY_BYTES, SHARE_BYTES_LEAST, SHARE_BYTES_MAX, SHARES_BYTES_MAX
from headrace.core.inbound.gate import DELIVERIES_MAX, LET_GO_AT_ONCE
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec
from headrace.mqtt.packets import SubscriptionRequest
from headrace.stream import MORE

READ = 32 << 10
ENTRIES = SHARE_BYTES_MAX // ENTRY_BYTES
SUBSCRIBE = codec.encode_subscribe(4, 9, [SubscriptionRequest("a/b", 1)])
LONG_SUBSCRIBE = codec.encode_subscribe(
    4, 9, [SubscriptionRequest(f"{number}/" + "x" * 200, 1) for number in range(100)]
)
LONG_UNSUBSCRIBE = codec.encode_unsubscribe(4, 9, [f"{number}/" + "x" * 200 for number in range(100)])


def publish(topic: bytes, qos: int, retain: bool = False, packet_id: int = 7) -> bytes:
    return codec.encode_publish(4, topic, b"x", qos, retain, False, packet_id if qos else 0)


def sequence_of_ids(qos: int) -> bytes:
    return b"".join(publish(b"t", qos, packet_id=number) for number in range(1, 60_000))


FLOODS = {
    "PUBREL": codec.encode_pubrel(4, 7),
    "PUBREC": codec.encode_pubrec(4, 7),
    "PUBLISH that is refused": publish(b"$SYS/x", 1),
    "QoS 1": publish(b"t", 1),
    "QoS 2, new": sequence_of_ids(2),
    "QoS 2, repeated": publish(b"t", 2),
    "QoS 0, retained": publish(b"t", 0, True),
    "QoS 0 behind a retained one": publish(b"t", 0, True) + publish(b"t", 0) * 100_000,
    "QoS 0 behind QoS 1": publish(b"t", 1) + publish(b"t", 0) * 100_000,
    "QoS 0 behind SUBSCRIBE": SUBSCRIBE + publish(b"t", 0) * 100_000,
    "SUBSCRIBE": SUBSCRIBE,
    "long SUBSCRIBE": LONG_SUBSCRIBE,
    "UNSUBSCRIBE": codec.encode_unsubscribe(4, 9, ["a"]),
    "long UNSUBSCRIBE": LONG_UNSUBSCRIBE,
}


def flood(client: Client, packets: bytes, most: int = 400) -> int:
    """Send for as long as the broker reads, up to so many reads; returns how many it took."""
    whole = packets if len(packets) > READ else packets * (READ // len(packets))
    for number in range(most):
        if not reads(client):
            return number
        at = number * READ if len(whole) > READ else 0
        client.protocol.receive_data(whole[at : at + READ])
        client.harness.worker.end_tick()
    return most


def reads(client: Client) -> bool:
    return client.link.reading


def waiting(harness: Harness) -> int:
    commit = harness.broker.commit
    return len(commit._pending) + len(commit._outstanding or [])


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_while_the_disk_stands_still_is_bounded_and_answered_in_the_end(name: str) -> None:
    harness = Harness()
    client = harness.client("flood")
    client.publish("warm", b"x", qos=2)
    client.feed(publish(b"other", 1), sync=False)
    harness.worker.end_tick()  # on its way to a disk that does not answer
    before = waiting(harness)
    assert flood(client, FLOODS[name]) < 400
    assert not reads(client)
    assert waiting(harness) - before <= 2 * ENTRIES + 3  # a SUBSCRIBE is an event and its answer
    assert client.link.deferred <= SHARE_BYTES_MAX + 4 * len(LONG_SUBSCRIBE) + 400 * 300
    seen = 0
    while harness.broker.commit.deferred_bytes or not harness.broker.commit.idle or not reads(client):
        harness.sync()
        client.take()
        seen += 1
        assert seen < 300
    assert client.link.deferred == 0


def test_pings_before_connack_are_counted() -> None:
    harness = Harness()
    client = Client(harness, "c", sync=False)
    harness.worker.end_tick()
    assert flood(client, b"\xc0\x00") < 400
    assert waiting(harness) <= ENTRIES + 3
    while not harness.broker.commit.idle:
        harness.sync()
    assert client.take()[0][0] == 0x20
    assert reads(client)


@pytest.mark.parametrize("name", FLOODS)
def test_a_neighbour_is_acknowledged_within_a_bounded_number_of_passes(name: str) -> None:
    """The flood goes on, a read in every pass: what it has waiting when the neighbour publishes is before it, no more."""
    harness = Harness()
    broker, journal = harness.broker, harness.journal
    client, neighbour = harness.client("flood"), harness.client("n")
    flood(client, FLOODS[name])
    neighbour.feed(publish(b"n", 1), sync=False)
    passes = 0
    while not neighbour.take():
        flood(client, FLOODS[name], 1)
        journal.durable = len(journal.records)
        broker.commit.on_high_watermark(journal.durable)
        broker.worker.end_tick()
        client.take()
        passes += 1
        assert passes <= 2 * (ENTRIES // broker.worker.settings.deliveries_at_once + 4)


@pytest.mark.slow
def test_a_thousand_floods_share_what_is_there() -> None:
    settings = BrokerSettings()
    settings.commit_bytes_max = 1 << 40
    harness = Harness(settings)
    clients = [harness.client(f"c{number}", clean=True) for number in range(300)]
    clients[0].feed(publish(b"other", 1), sync=False)
    harness.worker.end_tick()
    for client in clients:
        client.protocol.receive_data(FLOODS["PUBREL"] * 1024)
    total = harness.broker.commit.deferred_bytes
    assert total <= SHARES_BYTES_MAX + SHARE_BYTES_MAX + len(clients) * (SHARE_BYTES_LEAST + ENTRY_BYTES)
    assert waiting(harness) <= total // ENTRY_BYTES + 2
    let_go = 0
    while not all(client.link.reading for client in clients) or not harness.broker.commit.idle:
        before = sum(client.link.reading for client in clients)
        harness.journal.durable = len(harness.journal.records)
        harness.broker.commit.on_high_watermark(harness.journal.durable)
        harness.worker.end_tick()
        let_go = max(let_go, sum(client.link.reading for client in clients) - before)
        for client in clients:
            client.take()
    assert 0 < let_go <= LET_GO_AT_ONCE


@pytest.mark.slow
def test_messages_of_many_publishers_share_what_is_there() -> None:
    """What waits of all of them takes effect in a few passes, however many they are."""
    harness = Harness()
    clients = [harness.client(f"c{number}", clean=True) for number in range(50)]
    clients[0].feed(publish(b"other", 1), sync=False)
    harness.worker.end_tick()
    for client in clients:
        client.protocol.receive_data(publish(b"t", 1) * 5000)
    total = harness.broker.commit.deferred_bytes
    assert total == sum(client.link.deferred for client in clients)
    assert SHARES_BYTES_MAX < total <= SHARES_BYTES_MAX + len(clients) * (SHARE_BYTES_LEAST + 2 * ENTRY_BYTES)
    while harness.broker.commit.deferred_bytes or not all(client.link.reading for client in clients):
        harness.sync()
        for client in clients:
            client.take()
    assert harness.broker.fold.tenant("default").counters.publishes_received == 50 * 5000 + 1


@pytest.mark.slow
def test_those_held_back_are_let_go_as_far_as_there_is_room() -> None:
    """In turn, so that all of them get on: what waits in any moment is as much as all may have, and one share."""
    harness = Harness()
    clients = [harness.client(f"c{number}", clean=True) for number in range(40)]
    for client in clients:
        client.protocol.packets_at_once = 512
        client.protocol.receive_data(publish(b"t", 1) * 3000)
    broker, journal = harness.broker, harness.journal
    most = SHARES_BYTES_MAX + len(clients) * (SHARE_BYTES_LEAST + 2 * ENTRY_BYTES)
    counters = broker.fold.tenant("default").counters
    read = 0
    while counters.publishes_received < 40 * 3000:
        before = counters.publishes_received
        broker.worker.end_tick()
        journal.durable = len(journal.records)
        broker.commit.on_high_watermark(journal.durable)
        for client in clients:
            client.take()
            if client.protocol.outcome == MORE and reads(client):
                client.protocol.parse_on()
        assert broker.commit.deferred_bytes <= most
        read = max(read, counters.publishes_received - before)
    assert 0 < read <= most // ENTRY_BYTES


def test_a_large_payload_counts_as_what_it_costs_the_disk() -> None:
    harness = Harness()
    client = harness.client("c", clean=True)
    client.feed(publish(b"other", 1), sync=False)
    harness.worker.end_tick()
    large = codec.encode_publish(4, b"t", bytes(1_000_000), 1, False, False, 7)
    client.protocol.receive_data(large * 5)
    assert not reads(client)
    assert len(harness.broker.commit._pending) == 3
    harness.sync()
    assert client.link.deferred == harness.broker.commit.deferred_bytes == 0
    assert harness.broker.fold.tenant("default").counters.publishes_received == 6


def test_retained_messages_for_who_does_not_read_them_are_counted() -> None:
    """A client that subscribes again and again, and reads nothing of what that brings."""
    harness = Harness()
    publisher = harness.client("p", clean=True)
    publisher.publish("r", b"x", qos=1, retain=True)
    client = harness.client("slow", clean=True)
    client.link.paused = True
    packet = codec.encode_subscribe(4, 9, [SubscriptionRequest("r", 0)])
    for _ in range(200):
        if reads(client):
            client.protocol.receive_data(packet * 100)
        harness.sync()
    assert not reads(client)
    assert len(harness.broker.commit._until_writable.get(client.link, [])) <= ENTRIES
    client.link.paused = False
    harness.broker.on_writable(client.link)
    while not reads(client):
        harness.sync()
    assert client.link.deferred == 0


def test_the_position_of_a_part_is_found_in_that_part() -> None:
    """However much deferred work waits behind it: each pass looks at what took effect in it, and at nothing else."""
    harness = Harness()
    broker = harness.broker
    client = harness.client("c", clean=True)
    looks: list[int] = []

    def applied() -> int:
        return int(broker.commit.high_watermark)

    client.feed(publish(b"t", 1) + codec.encode_pubrel(4, 7) * 1500 + publish(b"t", 1), sync=False)
    broker.worker.end_tick()
    start = applied()
    harness.journal.durable = len(harness.journal.records)
    broker.commit.on_high_watermark(harness.journal.durable)
    looks.append(applied() - start)
    while not broker.commit.idle:
        broker.worker.end_tick()
        looks.append(applied() - start)
    assert looks == [1, 1, 1, 2]


@pytest.mark.parametrize(("clean", "qos"), [(True, 0), (True, 1), (False, 0), (False, 1)])
def test_retained_messages_are_looked_for_on_behalf_of_few_subscribes_at_once(clean: bool, qos: int) -> None:
    """Each of them has a page in every batch, for which everybody waits: 100 small packets are 32 pages and not 100."""
    harness = Harness()
    keeper = harness.client("keeper")
    for number in range(70):
        keeper.publish(f"r/{number}", b"x", retain=True)
    client = harness.client("c", clean=clean)
    before = len(harness.journal.records)
    client.protocol.receive_data(100 * codec.encode_subscribe(4, 9, [SubscriptionRequest("#", qos)]))
    assert not reads(client)
    harness.worker.end_tick()
    assert len(harness.journal.records) - before <= 33
    seen = 0
    while not harness.broker.commit.idle or not reads(client):
        harness.sync()
        client.take()
        seen += 1
        assert seen < 300
    assert client.link.deferred == 0


def test_a_subscribe_that_names_one_filter_over_and_over_gets_no_more_done_than_the_limit() -> None:
    settings = BrokerSettings()
    settings.subscriptions_max = 50
    harness = Harness(settings)
    client = harness.client("c")
    same = [SubscriptionRequest("a", 1)] * 60
    client.feed(codec.encode_subscribe(4, 9, same))
    assert client.take()[-1:] == [(0x90, b"\x00\x09" + b"\x01" * 50 + b"\x80" * 10)]
    client.feed(
        codec.encode_subscribe(4, 10, same[:51])
    )  # what it has may be named again, beside as many new ones
    assert client.take() == [(0x90, b"\x00\x0a" + b"\x01" * 51)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_who_publishes_to_many_has_few_messages_under_way(qos: int) -> None:
    """Others wait behind them in the journal's order; all of them come, also at QoS 2 without a PUBREL in between."""
    harness = Harness()
    members = [harness.client(f"m{number}") for number in range(1000)]
    for member in members:
        member.subscribe("many", qos)
    publisher = harness.client("p", clean=True)
    publisher.publish("many", b"first", qos)
    sent = 60
    packets = b"".join(
        codec.encode_publish(4, b"many", b"%d" % number, qos, False, False, 100 + number, b"", -1)
        for number in range(sent)
    )
    publisher.feed(packets, sync=False)
    assert publisher.link.holds
    assert publisher.link.deferred // ENTRY_BYTES <= DELIVERIES_MAX // 1000 + 1
    harness.sync()
    for member in (members[0], members[-1]):
        assert [payload for _, payload, _, _ in member.publishes()][1:] == [b"%d" % n for n in range(sent)]
    assert not publisher.link.holds


@pytest.mark.slow
@pytest.mark.parametrize(("to", "qos"), [("many", 1), ("many", 2), ("many", 0), ("$share/{}/many", 1)])
def test_what_is_sent_to_many_at_once_is_bounded_from_the_first_message_on(to: str, qos: int) -> None:
    """Nothing of this client has taken effect yet, so nothing says yet how many its messages are for: sessions or groups,
    and at QoS 0 those are durable that are retained."""
    harness = Harness()
    for number in range(1000):
        harness.client(f"m{number}").subscribe(to.format(number), 1)
    publisher = harness.client("p", clean=True)
    few = [codec.encode_publish(4, b"few", b"", 1, False, False, 1 + n, b"", -1) for n in range(20)]
    sent = [
        codec.encode_publish(4, b"many", b"x", qos, qos == 0, False, 100 + n, b"", -1) for n in range(1000)
    ]
    publisher.feed(b"".join(few + sent), sync=False)
    assert publisher.link.holds
    assert publisher.link.deferred // ENTRY_BYTES <= 48
    harness.sync()
    answers = [first for first, _ in publisher.drain()]
    assert answers.count(0x40) == len(few) + (len(sent) if qos == 1 else 0)
    assert answers.count(0x50) == (len(sent) if qos == 2 else 0)
