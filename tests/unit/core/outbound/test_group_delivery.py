"""Shared subscriptions: one queue for a group (decisions 9, 13)."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest

import headrace.core.broker
from harness import Client, Harness, held, recover
from headrace.core.outbound.member_choice import COMPARED_MAX, LEAST_IN_FLIGHT
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.groups import membership_in
from headrace.core.state.session import session_of
from headrace.core.state.state import Fold
from headrace.mqtt import codec
from headrace.mqtt.packets import SubscriptionRequest
from headrace.mqtt.properties import Properties

COMPILED = not str(headrace.core.broker.__file__).endswith(".py")


def members(harness: Harness, count: int, qos: int = 1, version: int = 5, window: int = 20) -> list[Client]:
    clients = [harness.client(f"m{n}", version=version, receive_maximum=window) for n in range(count)]
    for client in clients:
        client.subscribe("$share/g/t/#", qos)
    return clients


def test_each_message_goes_to_one_member_in_turn() -> None:
    harness = Harness()
    clients = members(harness, 3)
    publisher = harness.client("p", clean=True)
    for n in range(9):
        publisher.publish("t/x", b"%d" % n)
    got = [client.publishes() for client in clients]
    assert [len(part) for part in got] == [3, 3, 3]
    assert sorted(payload for part in got for _, payload, _, _ in part) == [b"%d" % n for n in range(9)]
    assert all(packet_id > 49_151 for part in got for packet_id, _, _, _ in part)


def test_a_member_that_leaves_gives_its_unacknowledged_qos1_to_another() -> None:
    harness = Harness()
    one, two = members(harness, 2)
    publisher = harness.client("p", clean=True)
    for n in range(4):
        publisher.publish("t/x", b"%d" % n)
    mine = one.publishes()
    one.ack(mine[0][0])
    one.lose()
    payloads = Counter(payload for _, payload, _, _ in two.publishes())
    assert payloads == Counter([b"0", b"1", b"2", b"3"]) - Counter([mine[0][1]])


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_member_had_that_had_left_goes_to_the_others_when_its_session_ends(others: int) -> None:
    """While the session lasts it may still acknowledge it. The other member came later."""
    harness = Harness()
    one = members(harness, 1)[0]
    harness.client("p", clean=True).publish("t/x", b"x")
    assert [payload for _, payload, _, _ in one.publishes()] == [b"x"]
    readers = [harness.client(f"other{n}", version=5) for n in range(others)]
    for reader in readers:
        reader.subscribe("$share/g/t/#", 1)
    one.feed(codec.encode_unsubscribe(5, 9, ["$share/g/t/#"]))
    one.lose()
    assert [reader.publishes() for reader in readers] == [[]] * others
    harness.client("m0", clean=True)
    assert [[payload for _, payload, _, _ in reader.publishes()] for reader in readers] == [[b"x"]] * others
    live = held(harness.broker.fold)
    fold = Fold(harness.journal)
    recover(fold, harness.journal.bodies, None)
    assert held(fold) == live


def test_qos2_completes_with_its_member() -> None:
    harness = Harness()
    one, two = members(harness, 2, qos=2)
    publisher = harness.client("p", clean=True)
    publisher.publish("t/x", b"a", 2)
    holder, other = (one, two) if (held := one.publishes()) else (two, one)
    held = held or two.publishes()
    name = "m0" if holder is one else "m1"
    holder.lose()
    harness.crash()
    assert harness.client("m1" if name == "m0" else "m0", version=5).publishes() == []
    again = harness.client(name, version=5).publishes()
    assert [(packet_id, payload, dup) for packet_id, payload, dup, _ in again] == [(held[0][0], b"a", True)]
    assert other is not holder


def test_with_all_members_away_messages_stay_in_the_group() -> None:
    harness = Harness()
    for client in members(harness, 2):
        client.lose()
    publisher = harness.client("p", clean=True)
    for n in range(5):
        publisher.publish("t/x", b"%d" % n)
    harness.take_snapshot()
    publisher.publish("t/x", b"5")
    harness.crash()
    back = harness.client("m1", version=5, receive_maximum=20)
    assert [payload for _, payload, _, _ in back.publishes()] == [b"%d" % n for n in range(6)]


def test_members_draw_as_they_have_quota() -> None:
    harness = Harness()
    slow, fast = members(harness, 2, window=1)
    publisher = harness.client("p", clean=True)
    for n in range(10):
        publisher.publish("t/x", b"%d" % n)
    slow.publishes()
    total = 1
    while got := fast.publishes():
        total += len(got)
        for packet_id, _, _, _ in got:
            fast.ack(packet_id)
    assert total == 10


def test_acknowledged_before_a_crash_does_not_come_again() -> None:
    harness = Harness()
    (one,) = members(harness, 1)
    publisher = harness.client("p", clean=True)
    for n in range(3):
        publisher.publish("t/x", b"%d" % n)
    got = one.publishes()
    one.ack(got[1][0])
    harness.crash()
    again = harness.client("m0", version=5, receive_maximum=5).publishes()
    assert [(payload, dup) for _, payload, dup, _ in again] == [(b"0", True), (b"2", True)]


def test_the_last_member_takes_the_group_along() -> None:
    harness = Harness()
    (one,) = members(harness, 1)
    one.feed(codec.encode_unsubscribe(5, 3, ["$share/g/t/#"]))
    tenant = harness.broker.fold.tenants["default"]
    assert tenant.groups == {}
    assert tenant.shared_tree.count == 0
    assert harness.broker.fold.groups.by_id == {}


def by_load() -> Harness:
    settings = BrokerSettings()
    settings.shared_strategy = LEAST_IN_FLIGHT
    return Harness(settings)


@pytest.mark.parametrize(("strategy", "shares"), [("round-robin", [4, 4, 4]), (LEAST_IN_FLIGHT, [1, 6, 5])])
def test_who_has_the_fewest_in_flight_gets_the_next_message_or_who_is_next_in_turn(
    strategy: str, shares: list[int]
) -> None:
    """The first member acknowledges nothing, the others at once. It has the first message with either strategy."""
    harness = Harness(BrokerSettings())
    harness.settings.shared_strategy = strategy
    clients = members(harness, 3)
    publisher = harness.client("p", clean=True)
    counts = [0, 0, 0]
    for number in range(12):
        publisher.publish("t/x", b"%d" % number)
        for at, client in enumerate(clients):
            for packet_id, _, _, _ in client.publishes():
                counts[at] += 1
                if at:
                    client.ack(packet_id)
    assert counts == shares


@pytest.mark.parametrize("qos", [0, 1])
def test_of_members_with_as_many_in_flight_each_has_its_turn(qos: int) -> None:
    """Who acknowledges at once has nothing in flight whenever a message comes, as at QoS 0."""
    harness = by_load()
    clients = members(harness, 3, qos)
    publisher = harness.client("p", clean=True)
    counts = Counter[int]()
    for number in range(12):
        publisher.publish("t/x", b"%d" % number, qos)
        for at, client in enumerate(clients):
            for packet_id, _, _, _ in client.publishes():
                counts[at] += 1
                if packet_id:
                    client.ack(packet_id)
    assert counts == {0: 4, 1: 4, 2: 4}


def test_of_very_many_members_the_next_sixteen_are_compared_and_all_come_to_be_asked() -> None:
    harness = by_load()
    clients = members(harness, COMPARED_MAX + 4)
    publisher = harness.client("p", clean=True)
    for number in range(2 * len(clients)):
        publisher.publish("t/x", b"%d" % number)
    counts = [len(client.publishes()) for client in clients]
    assert sum(counts) == 2 * len(clients)
    assert min(counts) >= 1
    assert max(counts) <= 3


def test_what_a_member_leaves_goes_to_those_with_the_fewest_in_flight() -> None:
    harness = by_load()
    clients = members(harness, 3)
    publisher = harness.client("p", clean=True)
    for number in range(9):
        publisher.publish("t/x", b"%d" % number)
    leaving, working, holding = clients
    held = holding.publishes()
    for packet_id, _, _, _ in working.publishes():
        working.ack(packet_id)
    leaving.lose()
    assert len(held) == len(working.publishes()) == 3
    assert holding.publishes() == []


def test_what_is_given_back_goes_first_oldest_first_however_often() -> None:
    harness = Harness()
    publisher = harness.client("p", clean=True)
    sole = harness.client("m", version=5, receive_maximum=10)
    sole.subscribe("$share/g/t", 1)
    for n in range(40):
        publisher.publish("t", b"%d" % n)
    acked: list[bytes] = []
    while len(acked) < 40:
        sent = sole.publishes()
        assert [payload for _, payload, _, _ in sent] == [
            b"%d" % n for n in range(40) if b"%d" % n not in acked
        ][: len(sent)]
        sole.ack(sent[1 % len(sent)][0])
        acked.append(sent[1 % len(sent)][1])
        sole.lose()
        sole = harness.client("m", version=5, receive_maximum=10)


def test_a_member_without_a_free_packet_id_gets_nothing_until_one_is_free() -> None:
    settings = BrokerSettings()
    settings.upper_ids = 3
    harness = Harness(settings)
    (member,) = members(harness, 1, window=100)
    publisher = harness.client("p", clean=True)
    for number in range(10):
        publisher.publish("t/x", b"%d" % number)
    came = member.publishes()
    assert [payload for _, payload, _, _ in came] == [b"0", b"1", b"2"]
    for number in range(3, 10):
        member.ack(came.pop(0)[0])
        came += member.publishes()
        assert came[-1][1] == b"%d" % number
        assert len({packet_id for packet_id, _, _, _ in came} - {0}) == 3


def test_with_every_packet_id_taken_what_is_in_flight_still_comes_again() -> None:
    settings = BrokerSettings()
    settings.upper_ids = 1
    harness = Harness(settings)
    (member,) = members(harness, 1, qos=2)
    harness.client("p", clean=True).publish("t/x", b"x", 2)
    packet_id = member.publishes()[0][0]
    member.lose()
    again = harness.client("m0", version=5).publishes()
    assert again == [(packet_id, b"x", True, 2)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_is_in_flight_of_a_dissolved_group_completes_over_a_crash(snapshot: bool) -> None:
    harness = Harness()
    (member,) = members(harness, 1, qos=2)
    publisher = harness.client("p", clean=True)
    for qos in (2, 2, 1):
        publisher.publish("t/x", b"%d" % qos, qos)
    first, second, third = [packet_id for packet_id, _, _, _ in member.publishes()]
    member.feed(codec.encode_unsubscribe(5, 9, ["$share/g/t/#"]))
    if snapshot:
        harness.take_snapshot()
    member.feed(codec.encode_pubrec(5, first))
    member.take()
    harness.crash()
    member = harness.client("m0", version=5)
    packets = member.take()
    assert [(head, body[:2]) for head, body in packets if head >> 4 == 6] == [
        (0x62, first.to_bytes(2, "big"))
    ]
    member.feed(codec.encode_pubcomp(5, first))
    member.feed(codec.encode_pubrec(5, second))
    member.feed(codec.encode_pubcomp(5, second))
    member.ack(third)
    harness.crash()
    assert harness.client("m0", version=5).publishes() == []
    assert harness.broker.fold.groups.all() == []


def crashed_back(harness: Harness, snapshot: bool) -> None:
    if snapshot:
        harness.take_snapshot()
    harness.crash()


@pytest.mark.parametrize("crash", ["", "crash", "snapshot"])
def test_dup_is_for_the_member_that_was_sent_it_before(crash: str) -> None:
    harness = Harness()
    one, two = members(harness, 2)
    two.lose()
    harness.client("p", clean=True).publish("t/x", b"x")
    assert [dup for _, _, dup, _ in one.publishes()] == [False]
    one.lose()
    if crash:
        crashed_back(harness, crash == "snapshot")
    two = harness.client("m1", version=5)
    assert [dup for _, _, dup, _ in two.publishes()] == [False]
    two.lose()
    if crash:
        crashed_back(harness, crash == "snapshot")
    one = harness.client("m0", version=5)
    assert [dup for _, _, dup, _ in one.publishes()] == [True]
    if crash:
        crashed_back(harness, crash == "snapshot")
    else:
        one.lose()
    two = harness.client("m1", version=5)
    assert [dup for _, _, dup, _ in two.publishes()] == [True]


def test_who_had_an_entry_is_remembered_of_a_few_members_only() -> None:
    harness = Harness()
    clients = members(harness, 12)
    for client in clients:
        client.lose()
    harness.client("p", clean=True).publish("t/x", b"x")
    dups = []
    for number in range(12):
        client = harness.client(f"m{number}", version=5)
        dups += [dup for _, _, dup, _ in client.publishes()]
        client.lose()
    assert dups[:9] == [False] * 9
    assert all(dups[9:])
    (group,) = harness.broker.fold.groups.all()
    assert [len(had) for had in group.had.values()] == [1]
    client = harness.client("m3", version=5)
    client.ack(client.publishes()[0][0])
    assert not group.had


def test_a_member_of_many_groups_looks_only_where_something_waits() -> None:
    harness = Harness()
    member = harness.client("m", version=5, receive_maximum=1)
    groups = 2 * harness.settings.page_messages + 50
    for number in range(groups):
        member.subscribe(f"$share/g{number}/t/{number}", 1)
    session = session_of(member.link)
    assert session is not None
    membership = membership_in(session)
    assert not membership.awaiting
    publisher = harness.client("p", clean=True)
    for number in range(groups):
        publisher.publish(f"t/{number}", b"%d" % number)
    assert len(membership.awaiting or {}) == groups - 1
    got = []
    while found := member.publishes():
        got += [payload for _, payload, _, _ in found]
        member.ack(found[-1][0])
    assert got == [b"%d" % number for number in range(groups)]
    assert not membership.awaiting
    member.feed(codec.encode_unsubscribe(5, 9, ["$share/g0/t/0"]))
    assert len(membership.groups) == groups - 1


def test_groups_of_a_member_with_little_room_have_their_turns() -> None:
    harness = Harness()
    member = harness.client("m", version=5, receive_maximum=1)
    for name in "ab":
        member.subscribe(f"$share/{name}/{name}", 1)
    publisher = harness.client("p", clean=True)
    for number in range(3):
        publisher.publish("a", b"a%d" % number)
    for number in range(3):
        publisher.publish("b", b"b%d" % number)
    got = []
    while found := member.publishes():
        got += [payload for _, payload, _, _ in found]
        member.ack(found[-1][0])
    assert got == [b"a0", b"a1", b"b0", b"a2", b"b1", b"b2"]


def test_what_waits_in_a_group_is_forgotten_with_the_membership_and_found_again_by_the_next_connection() -> (
    None
):
    harness = Harness()
    member = harness.client("m", version=5, receive_maximum=1)
    member.subscribe("$share/a/t", 1)
    member.subscribe("$share/b/t", 1)
    publisher = harness.client("p", clean=True)
    for payload in (b"0", b"1"):
        publisher.publish("t", payload)
    member.feed(codec.encode_unsubscribe(5, 9, ["$share/a/t"]))
    waiting = session_of(member.link)
    assert waiting is not None
    assert list(membership_in(waiting).awaiting or []) == [
        harness.broker.fold.tenant("default").groups["$share/b/t"]
    ]
    member.lose()
    back = harness.client("m", version=5, receive_maximum=5)
    assert [payload for _, payload, _, _ in back.publishes()] == [b"0", b"0", b"1"]
    resumed = session_of(back.link)
    assert resumed is not None
    assert not membership_in(resumed).awaiting


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of ours it calls: what it costs, whatever else the machine does."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # what other tests have left behind would be finalized within the count
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def in_many_groups(count: int, window: int) -> tuple[Harness, Client]:
    harness = Harness()
    member = harness.client("m", version=5, receive_maximum=window)
    requests = [SubscriptionRequest(f"$share/g{number}/t", 1) for number in range(count)]
    member.feed(codec.encode_subscribe(5, 1, requests, Properties()))
    return harness, member


@pytest.mark.skipif(COMPILED, reason="compiled code is not profiled")
@pytest.mark.parametrize("window", [2, 1000])
def test_an_acknowledgement_costs_the_same_however_many_groups_its_session_is_in(window: int) -> None:
    costs = []
    for count in (10, 400):
        harness, member = in_many_groups(count, window)
        harness.client("p", clean=True).publish("t", b"x")
        first, second, *_ = [packet_id for packet_id, _, _, _ in member.publishes()]
        member.ack(first)
        costs.append(calls_of(lambda member=member, second=second: member.ack(second)))  # type: ignore[misc]
    assert costs[0] == costs[1]


def test_a_member_of_many_groups_gets_what_waits_in_all_of_them_in_turn() -> None:
    harness, member = in_many_groups(5, 2)
    publisher = harness.client("p", clean=True)
    for number in range(2):
        publisher.publish("t", b"%d" % number)
    came = []
    while packets := member.publishes():
        came += [payload for _, payload, _, _ in packets]
        member.ack(packets[0][0])
        if len(packets) == 2:
            member.ack(packets[1][0])
    assert came == [b"0"] * 5 + [b"1"] * 5


@pytest.mark.skipif(COMPILED, reason="compiled code is not profiled")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("state", ["away", "full"])
def test_a_message_costs_the_same_however_many_members_cannot_take_it(qos: int, state: str) -> None:
    costs = []
    for count in (10, 200):
        harness = Harness()
        clients = members(harness, count, window=1)
        publisher = harness.client("p", clean=True)
        if state == "away":
            for client in clients:
                client.lose()
        else:
            for _ in range(count):
                publisher.publish("t/x", b"fills")
        for _ in range(2):
            publisher.publish("t/x", b"x", qos)
        costs.append(calls_of(lambda publisher=publisher: publisher.publish("t/x", b"x", qos)))  # type: ignore[misc]
    assert costs[0] == costs[1]


@pytest.mark.skipif(COMPILED, reason="compiled code is not profiled")
def test_members_who_leave_together_are_not_each_told_of_each_other() -> None:
    costs = []
    for count in (20, 200):
        harness = Harness()
        clients = members(harness, count, window=1)
        publisher = harness.client("p", clean=True)
        for _ in range(count):
            publisher.publish("t/x", b"x")
        costs.append(calls_of(clients[0].lose_unsynced))
    assert costs[0] == costs[1]


def test_a_member_whose_socket_has_drained_gets_qos0_again() -> None:
    harness = Harness()
    (member,) = members(harness, 1, window=1)
    publisher = harness.client("p", clean=True)
    publisher.publish("t/x", b"fills the window")
    member.publishes()
    member.link.paused = True
    publisher.publish("t/x", b"lost", 0)
    member.link.paused = False
    harness.broker.on_writable(member.link)
    publisher.publish("t/x", b"comes", 0)
    assert [payload for _, payload, _, _ in member.publishes()] == [b"comes"]


class Failing(Access):
    """Fails when it is asked about one client."""

    victim = ""

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        if link.client_id == self.victim:
            raise ValueError(topic)
        return True

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return True


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_member_that_fails_costs_the_others_nothing(qos: int) -> None:
    harness = Harness()
    access = Failing()
    harness.worker.guard(access)
    clients = members(harness, 3, qos=2)
    publisher = harness.client("p", clean=True)
    access.victim = "m0"
    for number in range(4):
        publisher.publish("t/x", b"%d" % number, qos)
    assert [client.link.closed for client in clients] == [True, False, False]
    came = [payload for client in clients for _, payload, _, _ in client.publishes()]
    assert sorted(came) == [b"0", b"1", b"2", b"3"]


def test_what_waits_for_the_record_that_it_was_drawn_is_little_however_large_the_messages() -> None:
    """They are in memory until then, and no socket says that it is full."""
    settings = BrokerSettings()
    settings.write_buffer_high = 1000
    harness = Harness(settings)
    [client] = members(harness, 1, qos=2)
    publisher = harness.client("p", clean=True)
    payloads = [b"%d" % n * 400 for n in range(10)]
    for payload in payloads:
        publisher.publish("t/x", payload, 2, sync=False)
    harness.worker.end_tick()
    harness.journal.durable = len(harness.journal.records)
    harness.broker.commit.on_high_watermark(harness.journal.durable)
    [group] = harness.broker.fold.groups.by_id.values()
    assert (len(group.drawn), group.backlog.count) == (3, 7)
    harness.sync()
    assert [payload for _, payload, _, _ in client.publishes()] == payloads


def test_entries_that_wait_for_the_record_that_they_were_drawn_count_as_the_work_of_a_pass() -> None:
    settings = BrokerSettings()
    settings.deliveries_at_once = settings.page_messages = 4
    harness = Harness(settings)
    clients = members(harness, 3, qos=2)
    for client in clients:
        client.link.paused = True
    publisher = harness.client("p", clean=True)
    for n in range(30):
        publisher.publish("t/x", b"%d" % n, 2)
    [group] = harness.broker.fold.groups.by_id.values()
    assert not group.drawn
    for client in clients:
        client.link.paused = False
        session = session_of(client.link)
        assert session is not None
        harness.broker.delivery.feed_later(session, client.link)
    harness.broker.delivery.feed_hungry()
    assert len(group.drawn) == 4


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_comes_does_not_have_all_be_looked_at_that_waits_before_it(qos: int) -> None:
    """What takes no place of a window: messages that have expired, and those that leave at QoS 0."""
    settings = BrokerSettings()
    settings.page_messages = 4
    harness = Harness(settings)
    [client] = members(harness, 1, window=1)
    publisher = harness.client("p", clean=True, version=5)
    publisher.publish("t/x", b"first")
    [(packet_id, *_)] = client.publishes()
    for n in range(100):
        publisher.publish("t/x", b"%d" % n, expiry_s=10 if qos else -1)
    client.subscribe("$share/g/t/#", qos)
    harness.advance(20)
    [group] = harness.broker.fold.groups.by_id.values()
    client.ack(packet_id, sync=False)
    publisher.publish("t/x", b"last", sync=False)
    assert group.backlog.count == 96
    harness.worker.end_tick()
    harness.journal.durable = len(harness.journal.records)
    harness.broker.commit.on_high_watermark(harness.journal.durable)
    assert group.backlog.count > 80
    harness.sync()
    assert [payload for _, payload, _, _ in client.publishes()][-1] == b"last"
    assert group.backlog.count == 0


def test_who_leaves_and_joins_again_and_is_gone_before_that_is_durable_keeps_nothing_from_the_others() -> (
    None
):
    """It was no member when its connection ended, and is one when its SUBSCRIBE takes effect."""
    harness = Harness()
    one, two = members(harness, 2)
    publisher = harness.client("p", clean=True)
    for n in range(4):
        publisher.publish("t/x", b"%d" % n)
    mine = [payload for _, payload, _, _ in one.publishes()]
    two.publishes()
    one.feed(codec.encode_unsubscribe(5, 9, ["$share/g/t/#"]))
    request = SubscriptionRequest("$share/g/t/#", 1, False, False, 0)
    one.feed(codec.encode_subscribe(5, 10, [request], Properties()), sync=False)
    one.lose_unsynced()
    harness.sync()
    assert [payload for _, payload, _, _ in two.publishes()] == mine
    live = held(harness.broker.fold)
    fold = Fold(harness.journal)
    recover(fold, harness.journal.bodies, None)
    assert held(fold) == live


class Picky(Failing):
    """Lets one client read everything but one topic."""

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return link.client_id != self.victim or topic != b"t/x"


def test_who_may_not_read_an_entry_has_its_turn_with_the_next_one() -> None:
    harness = Harness()
    access = Picky()
    access.victim = "m0"
    harness.worker.guard(access)
    picky, full = members(harness, 2, window=1)
    picky.link.paused = full.link.paused = True
    publisher = harness.client("p", clean=True)
    publisher.publish("t/x", b"1")
    publisher.publish("t/y", b"2")
    [group] = harness.broker.fold.groups.by_id.values()
    for client in (picky, full):
        client.link.paused = False
        session = session_of(client.link)
        assert session is not None
        group.free[session] = None
    harness.broker.delivery.hand_out_later(group)
    harness.broker.delivery.feed_hungry()
    assert [payload for _, payload, _, _ in full.publishes()] == [b"1"]
    assert [payload for _, payload, _, _ in picky.publishes()] == [b"2"]


def test_what_a_member_refuses_before_it_is_sent_again_is_not_sent_again() -> None:
    """There was no room for it on the connection."""
    harness = Harness()
    [client] = members(harness, 1, qos=2)
    publisher = harness.client("p", clean=True)
    publisher.publish("t/x", b"1", 2)
    publisher.publish("t/x", b"2", 2)
    [(first, *_), (second, *_)] = client.publishes()
    client.lose()
    client = harness.client("m0", version=5, receive_maximum=1)
    assert [packet_id for packet_id, *_ in client.publishes()] == [first]
    client.feed(codec.encode_pubrec(5, second, 0x80))
    client.feed(codec.encode_pubrec(5, first))
    client.feed(codec.encode_pubcomp(5, first))
    assert client.publishes() == []
    session = session_of(client.link)
    assert session is not None
    assert session.window_used() == 0
