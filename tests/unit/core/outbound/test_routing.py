"""A message for many sessions, and a batch of many messages, take effect a part at a time, in order."""

from __future__ import annotations

from harness import Client, Harness, state
from headrace.core.outbound.fan_out import WRITE_WORK
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.snapshots import SnapshotPass

AT_ONCE, SESSIONS = 10, 95


def harness() -> Harness:
    settings = BrokerSettings()
    settings.deliveries_at_once = AT_ONCE
    return Harness(settings)


def subscribers(of: Harness, qos: int = 1) -> list[Client]:
    clients = [of.client(f"c{number}") for number in range(SESSIONS)]
    for client in clients:
        client.subscribe("t", qos)
    return clients


def durable(of: Harness) -> None:
    """What was appended is, and its first part takes effect."""
    of.broker.worker.end_tick()
    of.journal.durable = len(of.journal.records)
    of.broker.commit.on_high_watermark(of.journal.durable)


def payloads(clients: list[Client]) -> list[list[bytes]]:
    return [[payload for _, payload, _, _ in client.publishes()] for client in clients]


def test_a_message_for_many_reaches_some_in_each_pass_and_the_next_message_waits() -> None:
    one = harness()
    clients = subscribers(one)
    publisher = one.client("p", clean=True)
    publisher.publish("t", b"first", sync=False)
    publisher.publish("t", b"second", sync=False)
    position = one.broker.commit.high_watermark
    durable(one)
    got = payloads(clients)
    assert one.broker.commit.high_watermark == position  # not all have it
    while not one.broker.commit.idle:
        one.broker.worker.end_tick()
        more = payloads(clients)
        assert sum(map(len, more)) <= 4 * AT_ONCE  # two passes, each of two parts at most
        got = [before + after for before, after in zip(got, more, strict=True)]
        durable(one)
    assert [before + after for before, after in zip(got, payloads(clients), strict=True)] == [
        [b"first", b"second"]
    ] * SESSIONS


def test_no_snapshot_has_half_of_a_message() -> None:
    one = harness()
    clients = subscribers(one)
    for client in clients:
        client.lose()
    one.client("p", clean=True).publish("t", b"first", sync=False)
    walk = SnapshotPass(one.broker.fold, one.broker.commit)
    slices = walk.slices(1)
    durable(one)
    assert one.broker.commit.unfinished
    assert [next(slices) for _ in range(10)] == [[]] * 10
    one.sync()
    one.snapshot = (walk.position, [entry for part in slices for entry in part])
    expected = state(one.broker.fold)
    one.crash()
    assert state(one.broker.fold) == expected


def test_qos0_for_many_keeps_its_place() -> None:
    one = harness()
    clients = subscribers(one, 0)
    alone = one.client("alone")
    alone.subscribe("+", 0)
    alone.subscribe("u", 0)
    publisher = one.client("p", clean=True)
    for number in range(3):
        publisher.publish("t", b"t%d" % number, qos=0, sync=False)
        publisher.publish("u", b"u%d" % number, qos=0, sync=False)
    one.sync()
    assert payloads(clients) == [[b"t0", b"t1", b"t2"]] * SESSIONS
    assert payloads([alone]) == [[b"t0", b"u0", b"t1", b"u1", b"t2", b"u2"]]


def test_what_comes_while_a_batch_takes_effect_waits_for_its_turn() -> None:
    """The next batch is durable before all of the one before has taken effect."""
    one = harness()
    clients = subscribers(one)
    publisher = one.client("p", clean=True)
    publisher.publish("t", b"0", sync=False)
    one.broker.worker.end_tick()
    publisher.publish("t", b"1", sync=False)
    durable(one)
    publisher.publish("t", b"2", sync=False)
    durable(one)
    publisher.publish("t", b"3", sync=False)
    one.sync()
    assert payloads(clients) == [[b"0", b"1", b"2", b"3"]] * SESSIONS
    assert one.broker.commit.idle


def test_who_had_very_many_subscriptions_leaves_them_bit_by_bit() -> None:
    one = harness()
    tenant = one.broker.fold.tenant("default")
    client = one.client("many", clean=True)
    for number in range(3 * AT_ONCE):
        client.subscribe(f"t/{number}")
    heir = one.client("heir")
    heir.subscribe("t/1")
    one.broker.on_connection_lost(client.link)
    left = [3 * AT_ONCE + 1]
    while tenant.tree.count > 1:
        one.broker.worker.end_tick()
        left.append(tenant.tree.count)
        assert left[-2] - left[-1] <= AT_ONCE
    one.client("p", clean=True).publish("t/1", b"x")
    assert payloads([client, heir]) == [[], [b"x"]]
    one.crash()
    assert one.broker.fold.tenant("default").tree.count == 1


def test_members_that_get_what_another_gave_back_take_it_in_turns() -> None:
    one = harness()
    members = [one.client(f"m{number}", version=5, receive_maximum=100) for number in range(3)]
    members[0].subscribe("$share/g/t")
    publisher = one.client("p", clean=True)
    for number in range(60):
        publisher.publish("t", b"%02d" % number)
    assert [len(got) for got in payloads(members)] == [60, 0, 0]
    for member in members[1:]:
        member.subscribe("$share/g/t")
    members[0].lose()
    one.sync()
    while one.broker.delivery.hungry:
        one.broker.worker.end_tick()
    got = payloads(members[1:])
    assert sorted(got[0] + got[1]) == [b"%02d" % number for number in range(60)]


def test_a_snapshot_gets_its_moment_between_two_messages_for_many() -> None:
    """Messages for many without a pause: the commit begins no next one before the snapshot had its turn."""
    one = harness()
    clients = subscribers(one)
    publisher = one.client("p", clean=True)
    for number in range(20):
        publisher.publish("t", b"%d" % number, sync=False)
    durable(one)
    assert one.broker.commit.unfinished
    walk = SnapshotPass(one.broker.fold, one.broker.commit)
    passes, written = 0, 0
    for part in walk.slices(100):
        written += len(part)
        one.broker.worker.end_tick()
        durable(one)
        passes += 1
        assert passes < 40 * (SESSIONS // AT_ONCE + 2)
        publisher.publish("t", b"more", sync=False)
    assert written == walk.entries >= SESSIONS
    assert not one.broker.commit.idle
    one.sync()
    assert all(len(got) == 20 + passes for got in payloads(clients))


def test_a_durable_message_costs_as_many_passes_as_its_receivers_need() -> None:
    """One pass for each AT_ONCE of them, beyond that with what their writes cost; what it has left goes to the next."""
    for count in (AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE, 9 * AT_ONCE + 5):
        one = harness()
        clients = [one.client(f"c{number}", clean=True) for number in range(count)]
        for client in clients:
            client.subscribe("t", 1)
        publisher = one.client("p", clean=True)
        for _ in range(30):
            publisher.publish("t", b"x", sync=False)
        durable(one)
        passes = 1
        while not one.broker.commit.idle:
            one.broker.worker.end_tick()
            one.journal.durable = len(one.journal.records)
            one.broker.commit.on_high_watermark(one.journal.durable)
            passes += 1
        work = count if count <= AT_ONCE else count * (1 + WRITE_WORK)
        assert passes <= 30 * (work + 1) // AT_ONCE + 6
