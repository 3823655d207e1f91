"""QoS 0 for many: in order, to who is still there, bounded in every pass, and as cheap for many as for few."""

from __future__ import annotations

import pytest

import headrace.core.outbound.fan_out
from harness import Client, Harness
from headrace.core.outbound.fan_out import JOB_BYTES_MAX, LANES_BYTES_MAX, WRITE_WORK
from headrace.core.outbound.routing import Router
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_QOS0_SLOW
from headrace.core.state.session import Target
from headrace.core.state.snapshots import SnapshotPass
from headrace.mqtt import codec
from headrace.mqtt.packets import Will

AT_ONCE = 10
MANY = 95


def harness(at_once: int = AT_ONCE) -> Harness:
    settings = BrokerSettings()
    settings.deliveries_at_once = at_once
    return Harness(settings)


def receivers(of: Harness, count: int, topic: str = "t", **more: int) -> list[Client]:
    clients = [
        of.client(f"{topic}{number}", clean=True, version=more.get("version", 4)) for number in range(count)
    ]
    for client in clients:
        client.subscribe(topic, 0)
        client.take()
    return clients


def packet(payload: bytes, topic: bytes = b"t", retain: bool = False) -> bytes:
    return codec.encode_publish(4, topic, payload, 0, retain)


def reads(client: Client) -> bool:
    return client.link.reading


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def sent(of: Harness) -> int:
    return of.broker.fold.tenant("default").counters.publishes_sent


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("count", [9, 10, 11, 50, 501, 2000])
def test_a_delivery_costs_the_same_however_many_get_it(count: int) -> None:
    """Passes in proportion to deliveries, with no step at the number that is served at once; one write each for many."""
    one = harness(500)
    clients = receivers(one, count)
    messages = 300
    writes = 0
    publisher = one.client("p", clean=True)
    publisher.feed(b"".join(packet(payload) for payload in numbered(messages)), sync=False)
    passes, most = 0, 0
    while True:
        before = sent(one)
        one.broker.worker.end_tick()
        passes += 1
        most = max(most, sent(one) - before)
        for client in clients:
            writes += bool(client.link.sent)
            client.drain()
            client.link.sent = b""
        if one.broker.idle:
            break
    assert sent(one) == messages * count
    assert most <= 500 * (WRITE_WORK + 1) + messages
    assert passes <= 3 + count * (messages + WRITE_WORK) // 500
    assert writes <= 3 * count
    for client in clients:
        assert payloads(client) == numbered(messages)


def test_what_one_read_brings_for_some_hundreds_is_bounded_too() -> None:
    """Below the number of sessions that are served at once: a pass serves that many, not each message so many."""
    one = harness(500)
    clients = receivers(one, 400)
    publisher = one.client("p", clean=True)
    before = sent(one)
    publisher.feed(packet(b"x") * 1000, sync=False)
    assert sent(one) - before <= 500
    one.sync()
    assert [len(payloads(client)) for client in clients] == [1000] * 400


def test_lanes_take_turns_and_nobody_else_waits_for_them() -> None:
    one = harness()
    wide, narrow = receivers(one, MANY), receivers(one, 1, "alone")
    other = one.client("other")
    publishers = [one.client(f"p{number}", clean=True) for number in range(3)]
    for publisher in publishers:
        publisher.feed(packet(b"x") * 100, sync=False)
    passes = 0
    while not one.broker.idle:
        other.feed(
            packet(b"quick", b"alone") + codec.encode_publish(4, b"q", b"x", 1, False, False, 5), sync=False
        )
        one.broker.worker.end_tick()
        one.journal.durable = len(one.journal.records)
        one.broker.commit.on_high_watermark(one.journal.durable)
        assert payloads(narrow[0]) == [b"quick"]
        passes += 1
        if passes % 3 == 0:
            assert other.take()
    assert passes > 20
    assert {len(payloads(client)) for client in wide} == {300}


def test_order_holds_beside_retained_messages_and_the_will() -> None:
    one = harness()
    clients = receivers(one, MANY)
    publisher = one.client("p", clean=True, will=Will("t", b"will", 0))
    publisher.feed(
        packet(b"0") * 2 + packet(b"1", retain=True) + packet(b"2") + packet(b"3", retain=True), sync=False
    )
    publisher.lose_unsynced()
    one.sync()
    assert [payloads(client) for client in clients] == [[b"0", b"0", b"1", b"2", b"3", b"will"]] * MANY


def test_a_session_that_comes_back_does_not_overtake_itself() -> None:
    one = harness()
    clients = receivers(one, MANY)
    publisher = one.client("p")
    publisher.feed(packet(b"0") + packet(b"1"), sync=False)
    publisher.lose_unsynced()
    again = one.client("p", sync=False)
    one.broker.worker.end_tick()
    one.journal.durable = len(one.journal.records)
    one.broker.commit.on_high_watermark(one.journal.durable)
    assert one.broker.router.fan_out.busy
    again.feed(packet(b"2"), sync=False)
    one.sync()
    assert [payloads(client) for client in clients] == [[b"0", b"1", b"2"]] * MANY


def test_who_leaves_meanwhile_is_passed_over() -> None:
    one = harness()
    clients = receivers(one, MANY)
    one.client("p", clean=True).feed(packet(b"x") * 3, sync=False)
    clients[MANY - 1].lose_unsynced()
    one.sync()
    assert payloads(clients[MANY - 1]) == []
    assert [payloads(client) for client in clients[:-1]] == [[b"x"] * 3] * (MANY - 1)


def test_groups_get_their_copies_in_order_and_every_version_its_form() -> None:
    one = harness()
    old, new = receivers(one, MANY), receivers(one, 3, "t", version=5)
    member = one.client("member", clean=True)
    member.subscribe("$share/g/t", 0)
    member.take()
    one.client("p", clean=True).feed(b"".join(packet(payload) for payload in numbered(20)))
    for client in [*old[3:], *new, member]:
        assert payloads(client) == numbered(20)


def test_a_publisher_is_held_back_and_let_go() -> None:
    one = harness()
    clients = receivers(one, MANY)
    publisher = one.client("p", clean=True)
    for _ in range(40):
        if reads(publisher):
            publisher.protocol.receive_data(packet(b"x" * 60) * 400)
    assert not reads(publisher)
    held = publisher.link.deferred
    assert held <= 5 << 20
    one.sync()
    while not one.broker.idle or not reads(publisher):
        one.sync()
    assert publisher.link.deferred == 0
    assert len({len(payloads(client)) for client in clients}) == 1


def waiting(of: Harness) -> int:
    """What waits for its turn, or for what its publisher has sent before: as many bytes as it counts."""
    broker = of.broker
    return int(broker.router.fan_out.bytes + broker.publishing.following.bytes)


def make_durable(of: Harness, is_durable: bool) -> None:
    """Let CONNECT take effect, and nothing that waits for its turn; or let everything wait for it."""
    if is_durable:
        commit = of.broker.commit
        commit.flush()
        commit.flush()
        of.journal.durable = len(of.journal.records)
        commit.on_high_watermark(of.journal.durable)


@pytest.mark.parametrize("is_durable", [False, True])
def test_publishers_that_come_and_go_leave_a_bounded_number_of_messages(is_durable: bool) -> None:
    one = harness()
    clients = receivers(one, AT_ONCE + 2)
    for number in range(100):
        publisher = one.client(f"p{number}", clean=True, sync=False)
        make_durable(one, is_durable)
        publisher.feed(packet(b"x" * 500_000), sync=False)
        publisher.lose_unsynced()
    assert waiting(one) <= LANES_BYTES_MAX + (2 << 20)
    assert one.broker.fold.tenant("default").counters.dropped[DROP_QOS0_SLOW] > 0
    for client in clients:
        client.lose_unsynced()
    one.sync()
    assert waiting(one) == 0
    assert one.broker.commit.deferred_bytes == 0


@pytest.mark.parametrize("is_durable", [False, True])
def test_what_those_left_who_are_gone_costs_nobody_who_is_here_a_message(is_durable: bool) -> None:
    one = harness()
    clients = receivers(one, AT_ONCE + 2)
    dropped = one.broker.fold.tenant("default").counters.dropped
    here = one.client("here", clean=True, sync=False)
    for number in range(100):
        publisher = one.client(f"p{number}", clean=True, sync=False)
        make_durable(one, is_durable)
        publisher.feed(packet(b"x" * 500_000), sync=False)
        publisher.lose_unsynced()
        if number % 10 == 9:
            here.feed(packet(b"here"), sync=False)
    assert waiting(one) <= LANES_BYTES_MAX + (2 << 20)
    assert 0 < dropped[DROP_QOS0_SLOW] < 100
    for client in clients[1:]:
        client.lose_unsynced()
    came: list[bytes] = []
    while not one.broker.idle:
        one.sync()
        came += [payload for payload in payloads(clients[0]) if payload == b"here"]
    assert came == [b"here"] * 10
    assert waiting(one) == 0
    assert one.broker.commit.deferred_bytes == 0


def test_one_write_is_bounded() -> None:
    one = harness()
    clients = receivers(one, MANY)
    one.client("p", clean=True).feed(packet(b"x" * 30_000) * 30, sync=False)
    largest = 0
    while True:
        one.broker.worker.end_tick()
        largest = max(largest, *(len(client.link.sent) for client in clients))
        for client in clients:
            client.drain()
        if one.broker.idle:
            break
    assert largest <= JOB_BYTES_MAX + 2 * 30_010


def test_a_snapshot_does_not_wait_for_it() -> None:
    one = harness()
    receivers(one, MANY)
    one.client("p", clean=True).feed(packet(b"x") * 50, sync=False)
    one.broker.worker.end_tick()
    assert one.broker.router.fan_out.busy
    walk = SnapshotPass(one.broker.fold, one.broker.commit)
    assert all(walk.slices())


@pytest.mark.skipif(
    not headrace.core.outbound.fan_out.__file__.endswith(".py"), reason="compiled, it cannot be replaced"
)
def test_a_lane_goes_on_after_a_turn_that_fails() -> None:
    """Its publisher is let go, and what it sends later is not put behind something that never leaves."""

    class Failing(Router):
        """Cannot even say that something failed, once."""

        fails = True

        def offer(self, target: Target, message: Message) -> None:
            if Failing.fails:
                raise MemoryError
            super().offer(target, message)

        def missed(self, target: Target, message: Message, error: Exception) -> None:
            Failing.fails = False
            raise error

    of = harness(10)
    clients = receivers(of, 12)
    publisher = of.client("p")
    router = of.broker.router
    fan_out = router.fan_out
    fan_out._offering = Failing(of.broker.delivery, of.broker.sharing, of.broker.commit, of.worker)
    for number in range(3):
        publisher.feed(packet(b"%d" % number), sync=False)
        publisher.feed(packet(b"%d" % number, b"nobody"), sync=False)
    for _ in range(20):
        of.broker.worker.end_tick()
    assert not fan_out.busy
    assert fan_out._lanes == {}
    assert publisher.link.deferred == 0
    assert [payloads(client)[-2:] for client in clients] == [[b"1", b"2"]] * 12
