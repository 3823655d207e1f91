"""Shared subscriptions whose members are at home in other shards than their group; `faults/model` has histories."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import cast

import pytest

from harness import Client
from headrace.core.homes import MEMBER_PREFIX
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import DEFAULT_TENANT, Identity
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.event import Subscribed, Unsubscribed
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_SESSION_ENDED, UPPER_ID_FIRST
from headrace.core.shards import group_frames as frames
from headrace.core.shards import group_members
from headrace.core.shards.enrolments import Enrolment, Enrolments
from headrace.core.shards.group_frames import ASKED, ENROL
from headrace.core.shards.peer_codec import decode
from headrace.core.state.away import borrowing_of
from headrace.core.state.groups import Group
from headrace.core.state.session import Session
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import SubscriptionRequest
from headrace.mqtt.properties import Properties
from shard_wires import End, NarrowEnd, WiredShards, received

SUBACK = 9
PUBREL = 6


def share_in(shards: WiredShards, home: int, topic_filter: str = "a/#") -> str:
    """A shared subscription that is at home in a shard."""
    homes = shards[0].worker.homes
    names = (f"g{number}" for number in count())
    name = next(name for name in names if homes.of_group(DEFAULT_TENANT, name, topic_filter) == home)
    return f"$share/{name}/{topic_filter}"


def group_of(shards: WiredShards, home: int) -> Group:
    [group] = shards[home].broker.fold.tenant(DEFAULT_TENANT).groups.values()
    return group


def write_nothing() -> None:
    """Take the place of a shard's sync."""


def suback(client: Client) -> list[int]:
    """The codes of the SUBACK that has come."""
    codes = [list(body[2:]) for first, body in client.drain() if first >> 4 == SUBACK]
    client.packets = [packet for packet in client.packets if packet[0] >> 4 != SUBACK]
    return codes[0] if codes else []


def member(shards: WiredShards, shard: int, share: str, qos: int = 1, **options: int) -> Client:
    """A connected member in a shard, of which the home of the group knows."""
    client = shards[shard].client("m", version=4, **options)
    client.subscribe(share, qos)
    shards.carry()
    assert suback(client) == [qos]
    return client


def enrols_said(shards: WiredShards) -> int:
    """How often shard 1 is told of members in shard 0, until all that is said is heard."""
    said = 0
    moved = True
    while moved:
        said += sum(data[0] == ENROL for data in shards.wires[0, 1][0].said)
        moved = shards.step()
    return said


def publish(shards: WiredShards, shard: int, payloads: list[bytes], qos: int = 1) -> None:
    writer = shards[shard].client("w", clean=True)
    for payload in payloads:
        writer.publish("a/1", payload, qos)
    shards.carry()


def complete(client: Client, packet_id: int, shards: WiredShards) -> None:
    """PUBREC, and PUBCOMP when PUBREL has come."""
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    assert PUBREL in [first >> 4 for first, _ in client.take()]
    client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("publisher", [0, 1, 2])
def test_a_member_elsewhere_gets_what_is_published_anywhere(publisher: int, qos: int) -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0), qos)
    publish(shards, publisher, [b"1", b"2", b"3"], qos)
    assert received(client) == [b"1", b"2", b"3"]


def test_members_of_all_shards_share_the_messages() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    members = [member(shards, shard, share) for shard in range(3)]
    publish(shards, 1, [b"%d" % number for number in range(9)])
    shares = [received(client) for client in members]
    assert sorted(payload for found in shares for payload in found) == [b"%d" % n for n in range(9)]
    assert all(shares)


@pytest.mark.parametrize("strategy", ["round-robin", "least-in-flight"])
@pytest.mark.parametrize("home", [0, 1])
def test_a_strategy_counts_what_a_member_elsewhere_has_in_flight(strategy: str, home: int) -> None:
    """One member, in the shard of the group or in another one, acknowledges nothing; the two others at once."""
    settings = BrokerSettings()
    settings.shared_strategy = strategy
    shards = WiredShards(settings=settings)
    share = share_in(shards, home)
    members = [member(shards, shard, share) for shard in range(3)]
    counts = [0, 0, 0]
    for number in range(12):
        publish(shards, 2, [b"%d" % number])
        for at, client in enumerate(members):
            for packet_id, _, _, _ in client.publishes():
                counts[at] += 1
                if at:
                    client.ack(packet_id)
        shards.carry()
    assert sum(counts) == 12
    assert counts[0] == (4 if strategy == "round-robin" else 1)
    assert min(counts[1:]) >= 4


def test_the_payload_is_in_the_journal_of_the_home_alone_and_qos_1_leaves_no_record_with_the_member() -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0))
    before = len(shards[1].journal.records)
    publish(shards, 2, [b"x"])
    client.ack(client.publishes()[0][0])
    shards.carry()
    assert [m.payload for m in shards[0].journal.records if isinstance(m, Message)] == [b"x"]
    assert len(shards[1].journal.records) == before
    assert not group_of(shards, 0).drawn


def test_suback_waits_for_the_journal_of_the_home() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = shards[1].client("m")
    client.subscribe(share, 1)
    assert suback(client) == []
    shards[0].sync = write_nothing  # type: ignore[method-assign]
    shards.carry()
    assert suback(client) == []
    del shards[0].sync
    shards.carry()
    assert suback(client) == [1]
    assert [session.client_id for session in group_of(shards, 0).members] == [
        f"{MEMBER_PREFIX}1/{client.link.session.incarnation}"  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_a_home_that_is_out_of_reach_refuses_new_members(version: int) -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    shards.isolate(0)
    client = shards[1].client("m", version=version)
    client.subscribe(share, 1)
    shards.carry()
    assert suback(client) == []
    shards.advance(3)
    code = rc.IMPLEMENTATION_SPECIFIC_ERROR if version == 5 else 0x80
    assert [found for found in suback(client) if found >= 0x80] == [code]
    assert shards[1].neighbours.members.enrolments.refused == 1
    session = client.link.session
    assert not session.subscriptions  # type: ignore[attr-defined]
    shards.join_again(0)
    shards.carry()
    assert not shards[0].broker.fold.tenant(DEFAULT_TENANT).groups
    client.subscribe(share, 1)
    shards.carry()
    assert suback(client)[-1] == 1


def test_of_all_who_join_groups_of_a_home_that_does_not_answer_one_waits() -> None:
    shards = WiredShards()
    shares = [share_in(shards, 0, f"a{n}/#") for n in range(5)]
    member(shards, 1, shares[0])
    shards[0].sync = write_nothing  # type: ignore[method-assign]
    for number, share in enumerate(shares[1:]):
        client = shards[1].client(f"m{number}-", version=5)
        client.subscribe(share, 1)
        shards.carry()
        if number == 0:
            assert suback(client) == []
            shards.advance(3)
        assert suback(client)[-1:] == [rc.IMPLEMENTATION_SPECIFIC_ERROR]
    assert shards[1].neighbours.members.enrolments.refused == 4
    del shards[0].sync
    shards.carry()
    client = shards[1].client("n", version=5)
    client.subscribe(shares[1], 1)
    shards.carry()
    assert suback(client)[-1:] == [1]


def test_a_home_that_answers_is_waited_for_beside_one_that_does_not() -> None:
    """A SUBSCRIBE of two filters: the one is refused, the other is a member, and its home is not taken for silent."""
    shards = WiredShards()
    away, there = share_in(shards, 0), share_in(shards, 2)
    shards[0].sync = write_nothing  # type: ignore[method-assign]
    first = shards[1].client("m", version=5)
    first.subscribe(away, 1)
    shards.carry()
    shards.advance(3)
    second = shards[1].client("n", version=5)
    requests = [SubscriptionRequest(name, 1, False, False, 0) for name in (away, there)]
    shards.held = {(1, 2)}
    second.feed(codec.encode_subscribe(5, 7, requests, Properties()))
    shards.carry()
    assert suback(second) == []
    shards.held = set()
    shards.carry()
    assert suback(second)[-2:] == [rc.IMPLEMENTATION_SPECIFIC_ERROR, 1]
    third = shards[1].client("o", version=5)
    third.subscribe(there, 1)
    shards.carry()
    assert suback(third)[-1:] == [1]


def test_what_came_while_the_shard_stood_still_is_heard_before_time_decides() -> None:
    """The first of two homes to be heard then says nothing about the other one."""
    shards = WiredShards()
    client = shards[1].client("m", version=5)
    requests = [SubscriptionRequest(share_in(shards, home), 1, False, False, 0) for home in (0, 2)]
    client.feed(codec.encode_subscribe(5, 8, requests, Properties()))
    shards.held = {(1, 0), (1, 2)}
    shards.carry()
    for home in (0, 2):  # each has heard of it, and answers
        while shards.wires[1, home][0].said:
            shards.hear(shards.wires[1, home][0])
        shards.carry()
    shards[1].now_us += 10_000_000
    shards[1]._set_clock()
    for home in (0, 2):
        assert suback(client) == []
        while shards.wires[1, home][1].said:
            shards.hear(shards.wires[1, home][1])
        shards[1].sync()
    shards.held = set()
    shards.carry()
    assert suback(client)[-2:] == [1, 1]
    assert shards[1].neighbours.members.enrolments.refused == 0


def test_of_two_subscribes_that_wait_both_are_refused_and_none_is_a_member() -> None:
    """The first refusal takes the membership away; the second answer may not say that there is one."""
    shards = WiredShards()
    share = share_in(shards, 0)
    shards.held.add((1, 0))
    client = shards[1].client("m")
    client.subscribe(share, 1)
    shards.advance(2)
    client.subscribe(share, 1)
    shards.advance(1)
    shards.held.clear()
    shards.carry()
    codes = [list(body[2:]) for first, body in client.take() if first >> 4 == SUBACK]
    assert codes == [[0x80], [0x80]]
    assert not shards[0].broker.fold.tenant(DEFAULT_TENANT).groups


def test_what_a_member_was_never_sent_that_has_left_meanwhile_goes_to_another() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    shards.held.add((1, 0))
    publish(shards, 0, [b"1"], 2)
    assert [draw.serial for draw in group_of(shards, 0).drawn.values()] == [1]
    other = member(shards, 2, share, 2)
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.held.clear()
    shards.crash(1)
    shards.connect_all()
    assert received(other) == [b"1"]
    assert [session.client_id.split("/")[1] for session in group_of(shards, 0).members] == ["2"]


@pytest.mark.interpreted
def test_what_one_answer_of_a_home_costs_is_not_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    clients = [shards[1].client(f"m{number}-", version=4) for number in range(40)]
    shards.held.add((1, 0))
    for client in clients:
        client.subscribe(share, 1)
    looked = []
    is_due = Enrolments._is_due

    def count_is_due(self: Enrolments, enrolment: Enrolment) -> bool:
        looked.append(enrolment)
        return is_due(self, enrolment)

    monkeypatch.setattr(Enrolments, "_is_due", count_is_due)
    shards.held.clear()
    shards.carry()
    assert [suback(client) for client in clients] == [[1]] * 40
    assert len(looked) == 40


def test_a_home_is_told_once_of_all_groups_that_a_client_joins_or_leaves_at_a_time() -> None:
    shards = WiredShards(2)
    client = shards[0].client("m", version=5)
    names = [f"$share/g{number}/a" for number in range(60)]
    rows = [SubscriptionRequest(name, 1, False, False, 0) for name in names]
    client.feed(codec.encode_subscribe(5, 9, rows, Properties()))
    assert enrols_said(shards) == 1
    assert suback(client)[-60:] == [1] * 60
    away = [name for name in names if shards[0].neighbours.members.away.home_of("default", name) == 1]
    assert len(shards[1].broker.fold.groups.by_id) == len(away) > 10
    client.feed(codec.encode_unsubscribe(5, 10, names))
    assert enrols_said(shards) == 1
    assert shards[1].broker.fold.groups.by_id == {}


def test_the_filter_of_a_group_is_looked_for_before_suback() -> None:
    """P11: the home has announced it to the shard of the publisher, or taken nothing from there meanwhile."""
    shards = WiredShards()
    share = share_in(shards, 0)
    shards.held.add((0, 2))
    client = shards[1].client("m")
    client.subscribe(share, 1)
    shards.carry()
    assert suback(client) == []
    shards.held.clear()
    shards.carry()
    assert suback(client) == [1]
    publish(shards, 2, [b"x"])
    assert received(client) == [b"x"]


def test_what_a_connection_had_unacknowledged_goes_back_in_order() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    first = member(shards, 1, share)
    publish(shards, 0, [b"1", b"2", b"3"])
    [one, *_] = first.publishes()
    first.ack(one[0])
    shards.carry()
    first.lose()
    shards.carry()
    assert len(group_of(shards, 0).returned) == 2
    second = member(shards, 2, share)
    assert received(second) == [b"2", b"3"]


@pytest.mark.parametrize("how", ["wire", "member's shard"])
def test_what_was_lent_over_a_wire_that_broke_is_given_out_again(how: str) -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    other, client = member(shards, 2, share), member(shards, 1, share)
    publish(shards, 0, [b"1", b"2", b"3", b"4"])
    got = received(client)
    assert len(got) == 2
    received(other)
    if how == "wire":
        shards.disconnect(1, 0)
    else:
        shards.crash(1)
    shards.carry()
    assert received(other) == got


def test_a_late_acknowledgement_of_an_old_draw_touches_no_new_one() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    publish(shards, 0, [b"1"])
    [(packet_id, _, _, _)] = client.publishes()
    shards.disconnect(1, 0)
    other = member(shards, 0, share)
    assert received(other) == [b"1"]
    shards.connect(1, 0)
    shards.carry()
    client.ack(packet_id)
    shards.carry()
    assert [draw.serial for draw in group_of(shards, 0).drawn.values()] == [1]


@pytest.mark.parametrize(("qos", "at_once"), [(1, [b"1"]), (2, [])])
def test_qos_1_waits_for_nothing_and_qos_2_for_the_record_of_its_packet_id(
    qos: int, at_once: list[bytes]
) -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0), qos)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    publish(shards, 0, [b"1"], qos)
    assert received(client) == at_once
    del shards[1].sync
    shards.carry()
    assert at_once + received(client) == [b"1"]


@pytest.mark.parametrize("number", [0, 1])
def test_qos_2_is_settled_when_both_journals_have_it(number: int) -> None:
    """The member's shard tells of it when it is durable there, and forgets it when it is durable at the home."""
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0), 2)
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    shards[number].sync = write_nothing  # type: ignore[method-assign]
    client.feed(codec.encode_pubcomp(4, packet_id), sync=False)
    shards.carry()
    assert len(group_of(shards, 0).drawn) == number
    assert shards[1].neighbours.members.away.loans
    del shards[number].sync
    shards.carry()
    assert not group_of(shards, 0).drawn
    assert not shards[1].neighbours.members.away.loans


def test_qos_2_stays_with_its_member_over_a_crash_of_each_shard_and_comes_once() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    other = member(shards, 2, share, 2)
    publish(shards, 2, [b"1", b"2"], 2)
    [(packet_id, payload, dup, qos)] = client.publishes()
    assert (packet_id, dup, qos) == (UPPER_ID_FIRST, False, 2)
    received(other)
    shards.crash(1)
    shards.crash(0)
    shards.connect_all()
    client = shards[1].client("m")
    shards.carry()
    assert client.publishes() == [(packet_id, payload, True, 2)]
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    shards.crash(1)
    shards.connect_all()
    client = shards[1].client("m")
    shards.carry()
    assert [first >> 4 for first, _ in client.take() if first >> 4 in (3, PUBREL)] == [PUBREL]
    client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    assert len(group_of(shards, 0).drawn) == 1  # the other one's
    assert not shards[1].neighbours.members.away.loans
    assert received(other) == []


def test_a_home_that_has_not_heard_that_qos_2_is_completed_is_told_on_the_next_wire() -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0), 2)
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    shards.disconnect(1, 0)
    client.take()
    client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    assert group_of(shards, 0).drawn
    shards.crash(1)
    shards.connect_all()
    client = shards[1].client("m")
    shards.carry()
    assert received(client) == []
    assert not group_of(shards, 0).drawn
    assert not shards[1].neighbours.members.away.loans


def test_a_member_without_room_gives_back_and_is_lent_again_when_it_has_some() -> None:
    settings = BrokerSettings()
    settings.inflight_max = 1
    shards = WiredShards(settings=settings)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    client.subscribe("b", 1)
    shards.carry()
    writer = shards[1].client("w")
    writer.publish("b", b"direct")
    shards.carry()
    publish(shards, 0, [b"1", b"2"])
    [(direct, payload, _, _)] = client.publishes()
    assert payload == b"direct"
    for _ in range(3):
        shards.advance(1)
    other = member(shards, 2, share)
    assert received(other) == [b"1"]
    client.ack(direct)
    shards.carry()
    assert received(client) == [b"2"]


def test_unsubscribe_and_the_end_of_a_session_are_told() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    stays, leaves, ends = (member(shards, shard, share) for shard in (0, 1, 2))
    leaves.feed(codec.encode_unsubscribe(4, 9, [share]))
    ends.lose()
    shards.carry()
    assert len(group_of(shards, 0).members) == 2
    shards[2].client("m", clean=True)
    shards.carry()
    assert len(group_of(shards, 0).members) == 1
    publish(shards, 2, [b"1", b"2"])
    assert received(stays) == [b"1", b"2"]


def test_a_home_hears_later_of_who_ended_while_there_was_no_wire() -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0))
    shards.disconnect(1, 0)
    client.lose()
    shards[1].client("m", clean=True)
    shards.carry()
    publish(shards, 0, [b"1"])
    assert group_of(shards, 0).waiting
    shards.connect(1, 0)
    shards.carry()
    fold = shards[0].broker.fold
    assert not fold.tenant(DEFAULT_TENANT).groups
    assert fold.tenant(DEFAULT_TENANT).counters.dropped[DROP_SESSION_ENDED] == 1
    assert not any(s.client_id.startswith(MEMBER_PREFIX) for s in fold.by_incarnation.values())


def test_the_end_of_a_session_is_told_when_it_is_durable_and_not_before() -> None:
    """An owner that was replaced ends nothing: what it does is never durable."""
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0))
    shards[1].sync = lambda: None  # type: ignore[method-assign]
    client.lose_unsynced()
    shards[1].client("m", clean=True, sync=False)
    shards[1].worker.end_tick()
    shards.carry()
    assert len(group_of(shards, 0).members) == 1
    del shards[1].sync
    shards.carry()
    assert not shards[0].broker.fold.tenant(DEFAULT_TENANT).groups


def test_an_owner_that_was_replaced_is_left_alone_after_a_crash_too() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    member(shards, 1, share)
    shards.crash(0)
    shards.connect_all()
    assert shards[1].broker.fold.streams.owners == {0: 1}
    shards.crash(1)
    shards[0].neighbours.epoch = 0  # as the owner before says
    shards.connect(1, 0)
    near, _ = shards.wires[1, 0]
    shards.carry()
    assert near.is_cut
    assert shards[1].neighbours.members.loans.wires == {}


def test_shards_without_members_elsewhere_write_nothing() -> None:
    shards = WiredShards()
    before = [len(shard.journal.records) for shard in shards.shards]
    assert before == [1, 1, 1]
    share = share_in(shards, 0)
    member(shards, 0, share)
    assert [len(shard.journal.records) for shard in shards.shards][1:] == [1, 1]


def test_the_state_of_a_home_and_of_a_member_is_in_a_snapshot() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 2, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    for number in (0, 1):
        shards[number].take_snapshot()
        shards.crash(number)
    shards.connect_all()
    client = shards[1].client("m")
    shards.carry()
    assert client.publishes() == [(packet_id, b"1", True, 2)]
    complete(client, packet_id, shards)
    assert not group_of(shards, 0).drawn


def test_a_stand_in_is_no_session_of_a_client_after_a_start_either() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    for shard in range(3):
        member(shards, shard, share)
    for snapshot in (False, True):
        if snapshot:
            shards[0].take_snapshot()
        tenants = [shard.broker.fold.tenant(DEFAULT_TENANT) for shard in shards.shards]
        assert [len(tenant.sessions) for tenant in tenants] == [1, 1, 1]
        assert sum(session.stands_in for session in shards[0].broker.fold.by_incarnation.values()) == 2
        shards.crash(0)
        shards.connect_all()
    assert len(shards[0].broker.fold.tenant(DEFAULT_TENANT).sessions) == 1
    assert len(group_of(shards, 0).members) == 3


def test_a_client_may_not_take_the_name_of_a_stand_in() -> None:
    shards = WiredShards(1)
    client = Client(shards[0], f"{MEMBER_PREFIX}1/7")
    assert client.link.closed


class Rights(Access):
    """Everybody may do everything, but for one client: it may read nothing, or nobody can say."""

    def __init__(self) -> None:
        super().__init__()
        self.victim = ""
        self.fails = False
        self.asked = 0

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        if link.client_id != self.victim:
            return True
        self.asked += 1
        if self.fails:
            raise ValueError(topic)
        return False


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_may_not_read_goes_to_one_that_may(qos: int) -> None:
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    share = share_in(shards, 0)
    first, second = member(shards, 1, share, qos), member(shards, 2, share, qos)
    rights.victim = first.link.client_id
    publish(shards, 0, [b"1"], qos)
    publish(shards, 0, [b"2", b"3", b"4"], qos)
    assert received(first) == []
    assert sorted(received(second)) == [b"1", b"2", b"3", b"4"]
    assert rights.asked == 1  # its home knows the topic then


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_may_read_again_gets_what_waited(qos: int) -> None:
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    client = member(shards, 1, share_in(shards, 0), qos)
    rights.victim = client.link.client_id
    publish(shards, 0, [b"1", b"2"], qos)
    shards.advance(60)
    assert received(client) == []
    assert rights.asked < 10  # not over and over
    rights.victim = ""
    assert client.link.rights is not None
    client.link.rights.forget()  # what a change of the rules does
    for _ in range(3):
        shards.advance(10)
    assert received(client) == [b"1", b"2"]


def test_a_home_remembers_some_of_the_topics_that_a_member_may_not_read() -> None:
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    client = member(shards, 1, share_in(shards, 0))
    rights.victim = client.link.client_id
    other = member(shards, 2, share_in(shards, 0))
    publisher = shards[0].client("p", clean=True)
    for number in range(600):
        publisher.publish(f"a/{number:0200}", b"x", 1)  # longer than what every connection remembers
        shards.carry()
        for packet_id, _, _, _ in other.publishes():
            other.ack(packet_id)
    [link] = [stand.link() for key, stand in shards[0].neighbours.homes._members.items() if key[0] == 1]
    assert link is not None
    assert link.rights is not None
    assert 0 < len(link.rights.receive) <= 256


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_that_fails_costs_its_connection_and_loses_nothing(qos: int) -> None:
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    client = member(shards, 1, share_in(shards, 0), qos)
    rights.victim, rights.fails = client.link.client_id, True
    publish(shards, 0, [b"1", b"2"], qos)
    assert client.link.closed
    rights.fails, rights.victim = False, ""
    client = shards[1].client("m")
    shards.carry()
    assert received(client) == [b"1", b"2"]


def test_an_error_on_the_way_to_a_member_ends_the_wire_and_nothing_else() -> None:
    shards = WiredShards()
    client = member(shards, 1, share_in(shards, 0))
    _, far = shards.wires[1, 0]

    def fail(frame: object) -> None:
        raise MemoryError

    far.say = fail  # type: ignore[method-assign]
    publish(shards, 0, [b"1"])
    assert far.is_cut
    shards.connect(1, 0)
    shards.carry()
    assert received(client) == [b"1"]


# What members say, and when


def lives_said(shards: WiredShards) -> list[int]:
    """How the sessions are of which shard 1 tells shard 0, as far as that was not heard yet."""
    near, _ = shards.wires[1, 0]
    return [frame.life for frame in map(decode, near.said) if isinstance(frame, frames.Enrol)]


def session_of(client: Client) -> Session:
    return cast("Session", client.link.session)


def remembered(shards: WiredShards) -> list[object]:
    """All that shard 1 remembers of what it has told homes, and of answers that wait for them."""
    members = shards[1].neighbours.members
    return [
        members._pending,
        members._unanswered,
        members.enrolments.enrolled,
        members.enrolments.leaving,
        members._told,
        members.enrolments._held,
    ]


def test_a_second_member_on_the_same_wire_is_lent_to() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    clients = [member(shards, 1, share), shards[1].client("n", version=4)]
    clients[1].subscribe(share, 1)
    shards.carry()
    clients[1].take()
    publish(shards, 0, [b"1", b"2"])
    assert [len(received(client)) for client in clients] == [1, 1]


def test_a_member_that_joins_another_group_keeps_its_connection() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    publish(shards, 0, [b"1"])
    [draw] = group_of(shards, 0).drawn.values()
    client.subscribe(share_in(shards, 0, "b/#"), 1)
    shards.carry()
    assert draw.group.drawn == {draw.serial: draw}
    assert received(client) == [b"1"]


def test_a_member_that_joins_and_is_connected_anew_in_one_batch_is_told_of_in_that_order() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    member(shards, 1, share).lose()
    client = shards[1].client("n", version=4)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    client.subscribe(share, 1)
    client.lose_unsynced()
    client = Client(shards[1], client.link.client_id, sync=False)
    del shards[1].sync
    shards.carry()
    publish(shards, 0, [b"1"])
    assert received(client) == [b"1"]


def test_a_member_that_joins_and_ends_in_one_batch_is_known_to_nobody() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    stays = member(shards, 1, share)
    client = shards[1].client("n", version=4)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    client.subscribe(share, 1)
    client.lose_unsynced()
    Client(shards[1], client.link.client_id, clean=True, sync=False)
    del shards[1].sync
    shards.carry()
    stands = [s for s in shards[0].broker.fold.by_incarnation.values() if s.stands_in]
    assert [s.client_id for s in stands] == [f"{MEMBER_PREFIX}1/{session_of(stays).incarnation}"]


def test_an_older_answer_of_a_home_is_not_for_what_it_was_told_since() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    shards.held.add((1, 0))
    share = share_in(shards, 0, "b/#")
    for qos in (1, 2):
        client.subscribe(share, qos)
    [_, number] = shards[1].neighbours.members._unanswered
    near, _ = shards.wires[1, 0]
    shards[1].neighbours.heard(near, frames.Enrolled(number - 1))
    shards[1].sync()
    assert suback(client) == []
    shards.held.clear()
    shards.carry()
    assert [code for first, body in client.take() if first >> 4 == SUBACK for code in body[2:]] == [1, 2]


def test_an_answer_of_a_home_is_for_what_it_was_told_and_nothing_else() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    shards.held.add((1, 0))
    for qos, topic_filter in enumerate(("b/#", "c/#"), 1):
        client.subscribe(share_in(shards, 0, topic_filter), qos)
    [_, number] = shards[1].neighbours.members._unanswered
    shards[1].neighbours.heard(shards.wires[1, 0][0], frames.Enrolled(number - 1))
    shards[1].sync()
    assert suback(client) == [1]
    shards.held.clear()
    shards.carry()
    assert suback(client) == [2]


def rows_of_home(shards: WiredShards) -> dict[str, int]:
    """The shared subscriptions that shard 0 has of the one member of shard 1, with their QoS, as its journal has them."""
    (stand,) = [one for one in shards[0].broker.fold.by_incarnation.values() if one.stands_in]
    return {name: found.qos for name, found in (stand.subscriptions or {}).items()}


def of_session(client: Client, shards: WiredShards) -> dict[str, int]:
    """The shared subscriptions of a session that are at home in shard 0."""
    members = shards[1].neighbours.members
    found = session_of(client).subscriptions or {}
    return {name: one.qos for name, one in found.items() if members.away.home_of(DEFAULT_TENANT, name) == 0}


def said_to_home(shards: WiredShards) -> int:
    """The bytes that shard 1 has said to shard 0 of its members, and that were not heard."""
    return sum(len(data) for data in shards.wires[1, 0][0].said if data[0] == ENROL)


@pytest.mark.parametrize("seed", range(6))
def test_a_home_has_what_a_session_is_subscribed_to_whatever_changes_and_breaks(seed: int) -> None:
    """By what has changed, and whole on each new wire; a member that leaves while there is none is taken out then."""
    random = Random(seed)
    shards = WiredShards(2)
    names = [share_in(shards, 0, f"{letter}/#") for letter in "abcdef"]
    client = member(shards, 1, share_in(shards, 0, "x/#"), clean=False)
    for _ in range(60):
        name = random.choice(names)
        step = random.random()
        if step < 0.45:
            client.subscribe(name, random.randint(0, 2))
        elif step < 0.8:
            client.feed(codec.encode_unsubscribe(4, 9, random.sample(names, 2)))
        elif step < 0.9:
            shards.carry()
        elif (1, 0) in shards.wires:
            shards.disconnect(1, 0)
            if step > 0.95:
                shards.crash(0)
                shards.connect(0, 1)
        else:
            shards.connect(1, 0)
    if (1, 0) not in shards.wires:
        shards.connect(1, 0)
    shards.carry()
    assert rows_of_home(shards) == of_session(client, shards) != {}
    shards.crash(0)
    shards.connect_all()
    assert rows_of_home(shards) == of_session(client, shards)
    assert shards[0].neighbours.homes._begun == {}


def test_a_change_costs_what_has_changed_and_not_what_there_is() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), clean=False)
    costs = []
    for count_before in (10, 300):
        own = [share_in(shards, 0, f"{'x' * 200}{count_before}/{n}/#") for n in range(count_before)]
        requests = [SubscriptionRequest(name, 1, False, False, 0) for name in own]
        client.feed(codec.encode_subscribe(4, 7, requests, Properties()))
        shards.carry()
        shards.held = {(1, 0)}
        client.subscribe(share_in(shards, 0, f"y{count_before}/#"), 1)
        costs.append(said_to_home(shards))
        shards.held = set()
        shards.carry()
    assert 0 < costs[1] <= costs[0] + 1


@pytest.mark.interpreted
def test_what_a_home_is_told_whole_comes_in_parts_and_nobody_leaves_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_members, "PART_BYTES", 50)
    shards = WiredShards(2)
    names = [share_in(shards, 0, f"f{n}/#") for n in range(20)]
    client = member(shards, 1, names[0], clean=False)
    for name in names[1:]:
        client.subscribe(name, 1)
    shards.carry()
    client.take()
    shards.disconnect(1, 0)
    records = len(shards[0].journal.records)
    client.feed(codec.encode_unsubscribe(4, 9, [names[3]]))
    shards.connect(1, 0)
    shards.sync()
    while not lives_said(shards):
        shards.step()
    assert len(lives_said(shards)) > 3
    assert set(lives_said(shards)[:-1]) == {frames.CONTINUES}
    assert lives_said(shards)[-1] == frames.LIVES
    shards.carry()
    assert rows_of_home(shards) == of_session(client, shards)
    new = shards[0].journal.records[records:]
    changes = [record for record in new if isinstance(record, Subscribed | Unsubscribed)]
    assert [type(record) for record in changes] == [Unsubscribed]  # of the others nothing is written again


def test_members_are_told_of_as_the_wire_takes_it() -> None:
    """Very many filters would be more than may wait on a link: it was cut for that, again and again."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    clients = []
    for number in range(5):
        client = shards[1].client(f"m{number}-", version=5, clean=False)
        client.subscribe(share, 1)
        clients.append(client)
    shards.carry()
    shards.disconnect(1, 0)
    narrow = NarrowEnd(shards[1]), End(shards[0])
    shards.wires[1, 0] = narrow
    shards[1].neighbours.connect(0, narrow[0])
    most = 0
    while shards.step():
        most = max(most, len(lives_said(shards)))
    assert most == 1
    publish(shards, 0, [b"%d" % number for number in range(10)])
    assert sorted(payload for client in clients for payload in received(client)) == [
        b"%d" % number for number in range(10)
    ]


def test_who_has_left_and_comes_again_waits_for_the_home_again() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.carry()
    client.take()
    shards.held.add((1, 0))
    client.subscribe(share, 1)
    assert suback(client) == []
    shards.held.clear()
    shards.carry()
    assert suback(client) == [1]


def test_an_answer_that_comes_when_a_member_has_just_left_is_for_one_that_it_was() -> None:
    """The record has taken effect, and the home is told of it at the end of the pass."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    shards.held.add((1, 0))
    client.subscribe(share, 2)
    [number] = shards[1].neighbours.members._unanswered
    client.feed(codec.encode_unsubscribe(4, 9, [share]), sync=False)
    journal, broker = shards[1].journal, shards[1].broker
    shards[1].worker.end_tick()
    journal.durable = len(journal.records)
    broker.commit.on_high_watermark(journal.durable)
    shards[1].neighbours.heard(shards.wires[1, 0][0], frames.Enrolled(number))
    assert shards[1].neighbours.members.enrolments.elsewhere(session_of(client), share)


def test_a_home_that_answers_when_it_was_refused_makes_nobody_a_member() -> None:
    """The record that takes the membership away is on its way; somebody else waits for the same answer."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share_in(shards, 0, "b/#"))
    shards.held.add((1, 0))
    client.subscribe(share, 1)
    shards.advance(2)
    client.subscribe(share, 1)
    numbers = list(shards[1].neighbours.members._unanswered)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    shards[1].advance(1)
    for number in numbers:
        shards[1].neighbours.heard(shards.wires[1, 0][0], frames.Enrolled(number))
    del shards[1].sync
    shards[1].sync()
    assert [code for first, body in client.take() if first >> 4 == SUBACK for code in body[2:]] == [
        0x80,
        0x80,
    ]


def test_of_a_wire_that_broke_and_a_session_that_ended_nothing_is_remembered() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    shards.held.add((1, 0))
    client.subscribe(share, 2)
    assert len(shards[1].neighbours.members._pending) == 1
    shards.disconnect(1, 0)
    assert remembered(shards)[:2] == [{}, {}]
    shards.held.clear()
    shards.connect(1, 0)
    shards.carry()
    shards.held.add((1, 0))
    client.subscribe(share_in(shards, 0, "b/#"), 1)
    client.lose()
    shards[1].client("m", clean=True)
    shards[1].sync()
    shards.held.clear()
    shards.carry()
    assert remembered(shards) == [{}, {}, set(), set(), {}, {}]


def test_a_client_that_is_back_before_its_home_has_what_it_had_there_though_it_is_no_member() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.carry()
    shards.disconnect(1, 0)
    client.lose()
    client = shards[1].client("m")
    shards.connect(1, 0)
    shards.carry()
    assert client.publishes() == [(packet_id, b"1", True, 2)]
    client.lose()
    client = shards[1].client("m")
    shards.carry()
    assert client.publishes() == [(packet_id, b"1", True, 2)]
    complete(client, packet_id, shards)
    assert not shards[1].neighbours.members.away.loans


def test_what_was_lost_with_a_wire_goes_to_others_when_its_member_has_left() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    shards.held.add((1, 0))
    publish(shards, 0, [b"1"], 2)
    other = member(shards, 2, share, 2)
    shards.disconnect(1, 0)
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.held.clear()
    shards.connect(1, 0)
    shards.carry()
    assert (received(client), received(other)) == ([], [b"1"])


def test_what_the_client_of_an_ended_session_has_had_goes_to_nobody_else() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 0, [b"1"], 2)
    assert received(client) == [b"1"]
    other = member(shards, 2, share, 2)
    shards.disconnect(1, 0)
    client.lose()
    shards[1].client("m", clean=True)
    shards.connect(1, 0)
    shards.carry()
    assert received(other) == []
    assert not group_of(shards, 0).drawn


def test_what_an_ended_session_had_at_qos_1_goes_to_others_once_that_is_durable() -> None:
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    publish(shards, 0, [b"1"])
    assert received(client) == [b"1"]
    other = member(shards, 2, share)
    near, far = shards.wires[1, 0]
    assert not near.said
    shards[0].neighbours.heard(far, frames.Enrol(99, session_of(client).incarnation, frames.ENDED, "", []))
    shards.carry()
    assert received(other) == [b"1"]


def test_a_home_that_asks_hears_of_a_client_that_is_connected_that_it_lives() -> None:
    """What was drawn for it may be on its way."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.carry()
    near, _ = shards.wires[1, 0]
    shards[1].neighbours.heard(near, frames.Asked(session_of(client).incarnation))
    shards[1].sync()
    assert lives_said(shards) == [frames.LIVES]


def test_a_home_that_asks_hears_of_a_member_that_is_away_that_it_lives() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    incarnation = session_of(client).incarnation
    client.lose()
    shards.carry()
    near, _ = shards.wires[1, 0]
    shards[1].neighbours.heard(near, frames.Asked(incarnation))
    shards[1].sync()
    assert lives_said(shards) == [frames.LIVES]


def test_a_home_that_asks_hears_what_is_durable() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    incarnation = session_of(client).incarnation
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    client.lose_unsynced()
    shards[1].client("m", clean=True, sync=False)
    near, _ = shards.wires[1, 0]
    shards[1].neighbours.heard(near, frames.Asked(incarnation))
    shards[1].worker.end_tick()
    assert lives_said(shards) == []
    del shards[1].sync
    shards[1].sync()
    assert set(lives_said(shards)) == {frames.ENDED}


def test_a_home_hears_what_a_client_completed_that_has_gone_again() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 2)
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    shards.disconnect(1, 0)
    client.feed(codec.encode_pubrec(4, packet_id))
    client.take()
    client.feed(codec.encode_pubcomp(4, packet_id))
    client.lose()
    shards.connect(1, 0)
    shards.carry()
    assert not group_of(shards, 0).drawn
    assert not shards[1].neighbours.members.away.loans


@pytest.mark.parametrize(("qos", "dup"), [(1, True), (2, False)])
def test_what_is_drawn_again_for_a_member_is_a_duplicate_if_it_may_have_had_it(qos: int, dup: bool) -> None:
    """At QoS 2 its own shard knows that; at QoS 1 the home."""
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), qos)
    if qos == 2:
        shards.held.add((1, 0))
    publish(shards, 0, [b"1"], qos)
    assert len(received(client)) == (qos == 1)
    shards.disconnect(1, 0)
    shards.held.clear()
    shards.connect(1, 0)
    shards.carry()
    assert [(payload, again) for _, payload, again, _ in client.publishes()] == [(b"1", dup)]


def test_of_what_finds_no_room_the_oldest_says_when_it_goes_back() -> None:
    settings = BrokerSettings()
    settings.inflight_max = 1
    shards = WiredShards(settings=settings)
    client = member(shards, 1, share_in(shards, 0))
    client.subscribe(share_in(shards, 2, "c/#"), 1)
    client.subscribe("b", 1)
    shards.carry()
    shards[1].client("d", clean=True).publish("b", b"direct")
    shards[0].client("w", clean=True).publish("a/1", b"1")
    shards.carry()
    assert received(client) == [b"direct"]
    loans = shards[1].neighbours.members.loans
    [(session, since)] = loans._waiting.items()
    shards.advance(0.6)
    shards[2].client("w", clean=True).publish("c/1", b"2")
    shards.carry()
    found = borrowing_of(session)
    assert found is not None
    assert len(found.arrived) == 2
    assert loans._waiting == {session: since}
    shards.advance(0.5)
    assert loans._waiting == {}


@pytest.mark.parametrize("when_asked", [False, True])
def test_a_home_that_forgot_who_had_left_hears_of_its_connection_when_it_is_a_member_again(
    when_asked: bool,
) -> None:
    """It was told of the session on an older wire or, `when_asked`, before it heard that there is nothing there."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    client.feed(codec.encode_unsubscribe(4, 9, [share]))
    shards.carry()
    shards.disconnect(1, 0)
    client.lose()
    shards.connect(1, 0)
    if when_asked:
        near, far = shards.wires[1, 0]
        while not any(data[0] == ASKED for data in far.said):
            end, other = (near, far) if near.said else (far, near)
            other.shard.neighbours.heard(other, decode(end.said.popleft()))
            shards.sync()
        shards.held.add((1, 0))
        client = shards[1].client("m")
        client.subscribe(share, 1)
        client.feed(codec.encode_unsubscribe(4, 9, [share]))
        client.lose()
        shards.held.clear()
    shards.carry()
    assert not shards[0].neighbours.homes._members
    client = shards[1].client("m")
    client.subscribe(share, 1)
    shards.carry()
    publish(shards, 0, [b"1"])
    assert received(client) == [b"1"]


@pytest.mark.parametrize("how", ["wire", "member's shard", "home"])
def test_qos_2_that_was_on_its_way_when_a_wire_broke_does_not_wait_for_a_member_that_is_away(
    how: str,
) -> None:
    """What it was sent does, since it goes to nobody else."""
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 0, [b"1"], 2)
    assert received(client) == [b"1"]
    shards.held.add((1, 0))
    publish(shards, 0, [b"2", b"3"], 2)
    assert len(group_of(shards, 0).drawn) == 3
    shards.isolate(1)
    shards.held.clear()
    client.lose()
    if how != "wire":
        shards.crash(0 if how == "home" else 1)
    other = member(shards, 2, share, 2) if how != "home" else None
    shards.connect_all()
    other = other or member(shards, 2, share, 2)
    shards.advance(1)
    assert received(other) == [b"2", b"3"]
    again = shards[1].client("m")
    shards.carry()
    assert [(payload, dup) for _, payload, dup, _ in again.publishes()] == [(b"1", True)]
