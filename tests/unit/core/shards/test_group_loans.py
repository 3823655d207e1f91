"""What groups at home elsewhere have lent to a session: sent once, completed once, given back when it was never sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from harness import Client, message
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_PERMISSION, DROP_REFUSED, DROP_TOO_LARGE, UPPER_ID_FIRST
from headrace.core.records.stream_record import LENT_SETTLED, StreamRecord
from headrace.core.shards import group_frames as frames
from headrace.core.shards.group_homes import MemberLink
from headrace.core.shards.peer import Frame
from headrace.core.state.away import Borrowing, borrowing_of
from headrace.core.state.session import Session
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from shard_wires import WiredShards, received
from unit.core.shards.test_group_members import (
    PUBREL,
    Rights,
    complete,
    group_of,
    member,
    publish,
    share_in,
    write_nothing,
)

PUBLISH = 3


def borrowed(client: Client) -> Borrowing:
    """What the session of a client has of groups elsewhere."""
    found = borrowing_of(cast("Session", client.link.session))
    assert found is not None
    return found


def stand_link(shards: WiredShards, home: int, shard: int) -> MemberLink:
    """The link to the one member of a shard, as the home of its group has it."""
    stands = shards[home].neighbours.homes._members.items()
    [link] = [stand.link() for key, stand in stands if key[0] == shard]
    assert link is not None
    return link


def say(shards: WiredShards, member_shard: int, home: int, frame: Frame) -> None:
    """Let a home hear something of a shard of members, on the wire that there is."""
    _, far = shards.wires[member_shard, home]
    shards[home].neighbours.heard(far, frame)
    shards.carry()


def kinds(client: Client) -> list[int]:
    """The types of the packets that have come."""
    return [first >> 4 for first, _ in client.take()]


def narrow() -> WiredShards:
    """Two shards whose clients may have one message unacknowledged."""
    settings = BrokerSettings()
    settings.inflight_max = 1
    return WiredShards(2, settings=settings)


def in_line(shards: WiredShards) -> tuple[Client, int, int]:
    """A client that is back, whose window a direct message takes; its loan, which it was sent before, is in line. Returns
    also the packet ids of the loan and of that message."""
    client = member(shards, 1, share_in(shards, 0), 2)
    client.subscribe("b", 1)
    shards.carry()
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    shards[1].client("d", clean=True).publish("b", b"direct")
    client.lose()
    client = shards[1].client("m")
    shards.carry()
    [(direct, payload, _, _)] = client.publishes()
    assert payload == b"direct"
    assert [loan.packet_id for loan in borrowed(client).arrived] == [packet_id]
    return client, packet_id, direct


def only_one(shards: WiredShards, qos: int = 2) -> tuple[Client, int]:
    """A member in shard 1 that was sent one entry of the group in shard 0; and its packet id."""
    client = member(shards, 1, share_in(shards, 0), qos)
    publish(shards, 0, [b"1"], qos)
    [(packet_id, *_)] = client.publishes()
    return client, packet_id


def pubrec(client: Client, packet_id: int) -> None:
    client.feed(codec.encode_pubrec(client.version, packet_id))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_goes_on_and_on(qos: int) -> None:
    """Each entry that is done grants another one, and no more than that."""
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), qos)
    publish(shards, 0, [b"%d" % number for number in range(100)], qos)
    got: list[bytes] = []
    while came := client.publishes():
        got += [payload for _, payload, _, _ in came]
        assert borrowed(client).used == len(came) <= 32
        for packet_id, *_ in came:
            client.feed(codec.encode_puback(4, packet_id) if qos == 1 else codec.encode_pubrec(4, packet_id))
        if qos == 2:
            assert kinds(client) == [PUBREL] * len(came)
            for packet_id, *_ in came:
                client.feed(codec.encode_pubcomp(4, packet_id))
        shards.carry()
    assert got == [b"%d" % number for number in range(100)]
    assert borrowed(client).used == 0
    assert stand_link(shards, 0, 1).window == 32


def test_what_a_client_completed_while_there_was_no_wire_costs_it_no_place() -> None:
    """Its home sends that again, which it may not have heard of."""
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 2)
    publish(shards, 0, [b"1", b"2", b"3"], 2)
    shards.disconnect(1, 0)
    for packet_id, *_ in client.publishes():
        pubrec(client, packet_id)
        client.feed(codec.encode_pubcomp(4, packet_id))
    shards.connect(1, 0)
    shards.carry()
    assert received(client) == []
    assert (stand_link(shards, 0, 1).window, group_of(shards, 0).drawn) == (32, {})
    assert not shards[1].neighbours.members.away.loans


def test_a_loan_that_is_settled_is_so_after_a_crash_too() -> None:
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    complete(client, packet_id, shards)
    records = [r for r in shards[1].journal.records if isinstance(r, StreamRecord)]
    assert [r.subkind for r in records][-1] == LENT_SETTLED
    shards.crash(1)
    assert shards[1].neighbours.members.away.loans == {}


def test_a_settled_that_is_too_early_forgets_nothing() -> None:
    shards = WiredShards(2)
    _, _ = only_one(shards)
    [loan] = shards[1].neighbours.members.away.loans.values()
    near, _ = shards.wires[1, 0]
    shards[1].neighbours.heard(near, frames.Settled(loan.group, loan.serial))
    assert list(shards[1].neighbours.members.away.loans.values()) == [loan]


# PUBREC, PUBREL, PUBCOMP


@pytest.mark.parametrize(
    ("qos", "answer"),
    [(1, codec.encode_pubrec), (2, codec.encode_puback), (2, codec.encode_pubcomp)],
    ids=["PUBREC at QoS 1", "PUBACK at QoS 2", "PUBCOMP before PUBREL"],
)
def test_an_answer_that_is_not_its_turn_ends_the_connection(
    qos: int, answer: Callable[[int, int], bytes]
) -> None:
    shards = WiredShards(2)
    client, packet_id = only_one(shards, qos)
    client.feed(answer(4, packet_id))
    assert client.link.closed


def test_a_second_pubrec_brings_no_second_pubrel() -> None:
    """The packet id may be another one's by then."""
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    pubrec(client, packet_id)
    pubrec(client, packet_id)
    shards.carry()
    assert kinds(client) == [PUBREL]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_refuses_is_over_and_counted(qos: int) -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    client = shards[1].client("m", version=5)
    client.subscribe(share, qos)
    shards.carry()
    client.take()
    publish(shards, 0, [b"1"], qos)
    [(packet_id, *_)] = client.publishes()
    encode = codec.encode_puback if qos == 1 else codec.encode_pubrec
    client.feed(encode(5, packet_id, rc.UNSPECIFIED_ERROR))
    shards.carry()
    assert kinds(client) == []
    assert (group_of(shards, 0).drawn, borrowed(client).used) == ({}, 0)
    session = cast("Session", client.link.session)
    assert (session.dropped or {})[DROP_REFUSED] == 1


def test_pubrel_comes_again_though_the_home_is_away() -> None:
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    pubrec(client, packet_id)
    shards.isolate(0)
    client.lose()
    client = shards[1].client("m")
    assert PUBREL in kinds(client)
    assert borrowed(client).used == 1
    client.feed(codec.encode_pubcomp(4, packet_id))
    assert borrowed(client).used == 0


def test_a_pubrec_that_is_durable_on_the_next_connection_alone_has_its_pubrel_there() -> None:
    """Its home has sent the entry again by then, and it is in line, or about to be sent."""
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    pubrec(client, packet_id)
    client.lose_unsynced()
    again = shards[1].client("m", sync=False)
    del shards[1].sync
    shards.carry()
    assert [kind for kind in kinds(again) if kind in (PUBLISH, PUBREL)] == [PUBREL]
    assert borrowed(again).used == 1
    again.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    assert (group_of(shards, 0).drawn, borrowed(again).used) == ({}, 0)


def test_a_pubrec_for_what_is_in_line_has_its_pubrel_and_no_second_one() -> None:
    shards = narrow()
    client, packet_id, direct = in_line(shards)
    pubrec(client, packet_id)
    shards.carry()
    assert [kind for kind in kinds(client) if kind in (PUBLISH, PUBREL)] == [PUBREL]
    client.ack(direct)
    shards.carry()
    assert kinds(client) == []
    assert borrowed(client).used == 1
    [loan] = shards[1].neighbours.members.away.loans.values()
    assert loan.message is None
    client.feed(codec.encode_pubcomp(4, packet_id))
    assert borrowed(client).used == 0


def test_what_a_client_refuses_in_line_is_not_sent_and_takes_no_place() -> None:
    shards = narrow()
    client, packet_id, direct = in_line(shards)
    client.version = client.link.version = 5
    client.protocol.version = 5
    client.feed(codec.encode_pubrec(5, packet_id, rc.UNSPECIFIED_ERROR))
    client.ack(direct)
    shards.carry()
    assert [kind for kind in kinds(client) if kind in (PUBLISH, PUBREL)] == []
    assert (group_of(shards, 0).drawn, borrowed(client).used) == ({}, 0)


def test_what_a_client_refuses_before_it_is_bound_again_is_not_sent() -> None:
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    client.lose()
    client = shards[1].client("m", version=5)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    shards.carry()
    client.feed(codec.encode_pubrec(5, packet_id, rc.UNSPECIFIED_ERROR))
    del shards[1].sync
    shards.carry()
    assert [kind for kind in kinds(client) if kind in (PUBLISH, PUBREL)] == []
    assert (group_of(shards, 0).drawn, borrowed(client).used) == ({}, 0)


def test_what_a_client_refuses_behind_its_pubrec_has_no_pubrel() -> None:
    shards = WiredShards(2)
    client = shards[1].client("m", version=5)
    client.subscribe(share_in(shards, 0), 2)
    shards.carry()
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    pubrec(client, packet_id)
    client.feed(codec.encode_pubrec(5, packet_id, rc.UNSPECIFIED_ERROR))
    del shards[1].sync
    shards.carry()
    assert (kinds(client), borrowed(client).used) == ([], 0)


# Connections that end


def test_what_was_bound_for_a_connection_that_ended_is_sent_on_the_next_one() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 2)
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    publish(shards, 0, [b"1"], 2)
    client.lose_unsynced()
    again = shards[1].client("m", sync=False)
    shards.carry()
    del shards[1].sync
    shards.carry()
    assert received(client) == []
    assert received(again) == [b"1"]


def test_what_a_client_had_stays_its_own_while_it_waits_for_room() -> None:
    shards = narrow()
    client, packet_id, direct = in_line(shards)
    shards.advance(2)
    assert [draw.serial for draw in group_of(shards, 0).drawn.values()] == [1]
    client.ack(direct)
    shards.carry()
    assert client.publishes() == [(packet_id, b"1", True, 2)]


def test_what_a_client_had_stays_its_own_when_it_goes_while_that_is_in_line() -> None:
    shards = narrow()
    client, _, _ = in_line(shards)
    client.lose()
    shards.carry()
    assert [draw.serial for draw in group_of(shards, 0).drawn.values()] == [1]
    assert not group_of(shards, 0).returned


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_in_line_and_was_never_sent_goes_to_another_when_the_client_goes(qos: int) -> None:
    settings = BrokerSettings()
    settings.inflight_max = 1
    shards = WiredShards(settings=settings)
    share = share_in(shards, 0)
    client = member(shards, 1, share, qos)
    client.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    publish(shards, 0, [b"1"], qos)
    assert received(client) == [b"direct"]
    assert len(borrowed(client).arrived) == 1
    other = member(shards, 2, share, qos)
    client.lose()
    shards.carry()
    assert [(payload, dup) for _, payload, dup, _ in other.publishes()] == [(b"1", False)]
    again = borrowed(shards[1].client("m"))
    assert (again.used, len(again.arrived)) == (0, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_comes_for_a_client_that_has_gone_goes_to_another(qos: int) -> None:
    """Its home drew it before it heard of that."""
    shards = WiredShards()
    share = share_in(shards, 0)
    client = member(shards, 1, share, qos)
    shards.held.add((1, 0))
    publish(shards, 0, [b"1"], qos)
    client.lose()
    other = member(shards, 2, share, qos)
    shards.held.clear()
    shards.carry()
    assert received(other) == [b"1"]


def test_what_is_in_line_when_the_wire_breaks_comes_from_another_or_not_at_all() -> None:
    settings = BrokerSettings()
    settings.inflight_max = 1
    shards = WiredShards(settings=settings)
    share = share_in(shards, 0)
    client = member(shards, 1, share)
    client.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    publish(shards, 0, [b"1"])
    [(direct, *_)] = client.publishes()
    other = member(shards, 2, share)
    shards.disconnect(1, 0)
    shards.carry()
    assert received(other) == [b"1"]
    shards.connect(1, 0)
    shards.carry()
    client.ack(direct)
    shards.carry()
    assert received(client) == []


def test_qos_0_of_another_connection_is_dropped() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 0)
    [lender] = borrowed(client).lenders.values()
    near, _ = shards.wires[1, 0]
    session = cast("Session", client.link.session)
    for connection in (lender.connection - 1, lender.connection):
        frame = frames.Drawn(
            session.incarnation, connection, 0, 0, 0, 0x30, b"", message(payload=b"%d" % connection, qos=0)
        )
        shards[1].neighbours.heard(near, frame)
        shards.carry()
    assert received(client) == [b"%d" % lender.connection]


# Room


def test_a_place_that_was_withheld_is_granted_once() -> None:
    shards = narrow()
    client = member(shards, 1, share_in(shards, 0))
    client.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    publish(shards, 0, [b"1"])
    [(direct, *_)] = client.publishes()
    [lender] = borrowed(client).lenders.values()
    for _ in range(3):
        shards.advance(1)
    assert (lender.granted, lender.withheld) == (1, 1)
    client.ack(direct)
    shards.carry()
    [(packet_id, payload, _, _)] = client.publishes()
    assert payload == b"1"
    client.ack(packet_id)
    shards.carry()
    assert (lender.granted, lender.withheld) == (3, 0)  # one that was withheld, one that was done
    assert stand_link(shards, 0, 1).window == 1


def test_each_entry_that_finds_no_room_waits_a_second_of_its_own() -> None:
    shards = narrow()
    client = member(shards, 1, share_in(shards, 0))
    client.subscribe("b", 1)
    writer = shards[1].client("d", clean=True)
    writer.publish("b", b"direct")
    [(direct, *_)] = client.publishes()
    publish(shards, 0, [b"1"])
    shards.advance(0.9)
    client.ack(direct)
    shards.carry()
    [(packet_id, *_)] = client.publishes()
    writer.publish("b", b"direct")
    client.ack(packet_id)
    assert received(client) == [b"direct"]
    publish(shards, 0, [b"2"])
    shards.advance(0.9)
    assert len(borrowed(client).arrived) == 1
    shards.advance(0.2)
    assert len(borrowed(client).arrived) == 0
    assert group_of(shards, 0).returned


def test_a_second_of_waiting_ends_with_the_connection() -> None:
    shards = narrow()
    client = member(shards, 1, share_in(shards, 0))
    client.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    publish(shards, 0, [b"1"])
    assert shards[1].neighbours.members.loans._waiting
    client.lose()
    assert not shards[1].neighbours.members.loans._waiting


def test_a_socket_that_is_full_is_tried_again() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    high = shards[1].neighbours.members.loans._high
    shards[1].neighbours.members.loans._high = -1
    publish(shards, 0, [b"1"])
    assert received(client) == []
    shards[1].neighbours.members.loans._high = high
    shards[1].worker.end_tick()
    shards.carry()
    assert received(client) == [b"1"]


# Rights


def test_what_a_client_had_and_may_not_read_any_more_goes_to_nobody_else() -> None:
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 0, [b"1"], 2)
    assert received(client) == [b"1"]
    other = member(shards, 2, share, 2)
    rights.victim = client.link.client_id
    client.lose()
    client = shards[1].client("m")
    shards.carry()
    assert (received(client), received(other)) == ([], [])
    assert not group_of(shards, 0).drawn
    session = cast("Session", client.link.session)
    assert (session.dropped or {})[DROP_PERMISSION] == 1


def test_what_a_client_has_told_that_it_has_goes_on_whether_it_may_read_it_or_not() -> None:
    shards = narrow()
    rights = Rights()
    shards[1].worker.guard(rights)
    client, packet_id, direct = in_line(shards)
    pubrec(client, packet_id)
    rights.victim = client.link.client_id
    assert client.link.rights is not None
    client.link.rights.forget()
    client.ack(direct)
    shards.carry()
    assert borrowed(client).loans[packet_id].received
    client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    assert not client.link.closed
    assert not group_of(shards, 0).drawn


# Credit of the connection that there is


def test_what_was_not_sent_on_a_connection_grants_nothing_on_it() -> None:
    """A client that is back with less room completes what its home has not sent again: that had no place there."""
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 2)
    publish(shards, 0, [b"1", b"2"], 2)
    [(first, *_), (second, *_)] = client.publishes()
    client.lose()
    client = shards[1].client("m", version=5, receive_maximum=1)
    shards.carry()
    assert received(client) == [b"1"]
    [lender] = borrowed(client).lenders.values()
    assert (lender.granted, stand_link(shards, 0, 1).window) == (1, 1)
    complete(client, second, shards)
    assert (lender.granted, stand_link(shards, 0, 1).window) == (1, 1)
    complete(client, first, shards)
    assert (lender.granted, stand_link(shards, 0, 1).window) == (2, 1)


def test_what_is_completed_on_its_way_to_the_journal_grants_one_place_when_it_is_there() -> None:
    """Its home sends it again on a new wire meanwhile."""
    shards = WiredShards(2)
    client, packet_id = only_one(shards)
    pubrec(client, packet_id)
    shards.carry()
    shards.disconnect(1, 0)
    shards.connect(1, 0)
    near, _ = shards.wires[1, 0]
    while not any(data[0] == frames.PRESENT for data in near.said):
        assert shards.step()
    shards[1].sync = write_nothing  # type: ignore[method-assign]
    client.feed(codec.encode_pubcomp(4, packet_id), sync=False)
    shards.carry()
    assert len(group_of(shards, 0).drawn) == 1
    del shards[1].sync
    shards.carry()
    assert not group_of(shards, 0).drawn
    [lender] = borrowed(client).lenders.values()
    assert (lender.granted, stand_link(shards, 0, 1).window) == (33, 32)


def test_what_a_member_that_is_back_may_not_read_and_never_had_goes_to_another() -> None:
    """Its home knows the topic by the first of them, and not which of the others it has had."""
    shards = WiredShards()
    rights = Rights()
    shards[1].worker.guard(rights)
    share = share_in(shards, 0)
    client = member(shards, 1, share, 2)
    publish(shards, 0, [b"1"], 2)
    assert received(client) == [b"1"]
    shards.held.add((1, 0))
    publish(shards, 0, [b"2", b"3", b"4"], 2)
    assert len(group_of(shards, 0).drawn) == 4
    shards.disconnect(1, 0)
    shards.held.clear()
    client.lose()
    other = member(shards, 2, share, 2)
    rights.victim = client.link.client_id
    shards.connect(1, 0)
    shards[1].client("m", version=5, receive_maximum=1)
    shards.carry()
    assert received(other) == [b"2", b"3", b"4"]
    assert shards[0].broker.fold.tenant("default").counters.dropped == {}
    assert not shards[1].neighbours.members.away.loans


@pytest.mark.parametrize("home", [0, 1])
def test_what_is_too_large_for_a_client_that_is_back_is_dropped(home: int) -> None:
    """In the shard of its group, and in another one: sent again, it would end each of its connections."""
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, home), 2)
    publish(shards, home, [b"1" * 100, b"2"], 2)
    assert received(client) == [b"1" * 100, b"2"]
    client.lose()
    client = shards[1].client("m", version=5, maximum_packet_size=50)
    shards.carry()
    [(packet_id, payload, dup, _)] = client.publishes()
    assert (payload, dup) == (b"2", True)
    complete(client, packet_id, shards)
    session = cast("Session", client.link.session)
    assert session.tenant.counters.dropped == {DROP_TOO_LARGE: 1}
    assert not group_of(shards, home).drawn
    assert not shards[1].neighbours.members.away.loans


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_is_lent_at_a_time_is_little_however_large_the_messages(qos: int) -> None:
    """All of it would be on the wire, and wait in its shard."""
    settings = BrokerSettings()
    settings.write_buffer_high = 1000
    shards = WiredShards(2, settings=settings)
    client = member(shards, 1, share_in(shards, 0), qos)
    payloads = [b"%d" % number * 400 for number in range(10)]
    publish(shards, 0, payloads, qos)
    got: list[bytes] = []
    while came := client.publishes():
        assert len(group_of(shards, 0).drawn) <= 3
        got += [payload for _, payload, _, _ in came]
        for packet_id, *_ in came:
            if qos == 1:
                client.ack(packet_id)
            else:
                pubrec(client, packet_id)
                client.feed(codec.encode_pubcomp(4, packet_id))
        shards.carry()
    assert got == payloads
    assert stand_link(shards, 0, 1).drawing == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_without_a_free_packet_id_nothing_is_sent(qos: int) -> None:
    settings = BrokerSettings()
    settings.upper_ids = 1
    shards = WiredShards(2, settings=settings)
    client = member(shards, 1, share_in(shards, 0), qos)
    publish(shards, 0, [b"1", b"2"], qos)
    [(packet_id, payload, _, _)] = client.publishes()
    assert (packet_id, payload) == (UPPER_ID_FIRST, b"1")
    if qos == 1:
        client.ack(packet_id)
    else:
        pubrec(client, packet_id)
        client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    assert client.publishes() == [(UPPER_ID_FIRST + 1, b"2", False, qos)]


def test_a_client_whose_socket_is_full_is_sent_nothing() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    client.link.paused = True
    publish(shards, 0, [b"1"])
    assert received(client) == []
    assert len(borrowed(client).arrived) == 1
    client.link.paused = False
    shards[1].broker.on_writable(client.link)
    assert received(client) == [b"1"]


def test_who_had_an_entry_is_still_known_when_another_gives_it_back_unsent() -> None:
    """DUP says that this client may have had it (decision 13)."""
    settings = BrokerSettings()
    settings.inflight_max = 1
    shards = WiredShards(settings=settings)
    share = share_in(shards, 0)
    first = member(shards, 0, share)
    publish(shards, 0, [b"1"])
    assert received(first) == [b"1"]
    full = member(shards, 1, share)
    full.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    first.lose()
    shards.carry()
    assert received(full) == [b"direct"]
    assert len(borrowed(full).arrived) == 1
    shards.advance(1)
    assert group_of(shards, 0).returned
    other = member(shards, 2, share)
    assert [(payload, dup) for _, payload, dup, _ in other.publishes()] == [(b"1", False)]
