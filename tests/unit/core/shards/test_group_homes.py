"""The home of a group and what it is told of members elsewhere: late, twice, of an older connection, in one batch."""

from __future__ import annotations

from typing import cast

import pytest

from harness import Client, state
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.event import Subscribed, SubscriptionRow, Unsubscribed
from headrace.core.records.record import DROP_SESSION_ENDED, FLAG_DUP
from headrace.core.shards import group_frames as frames
from headrace.core.shards.group_homes import DENIED_BYTES_MAX, DENIED_MAX, MemberRights
from headrace.core.shards.peer_codec import decode
from headrace.core.state.groups import Draw
from headrace.core.state.session import Session
from headrace.mqtt import codec
from shard_wires import WiredShards, received
from unit.core.shards.test_group_loans import borrowed, only_one, say, stand_link
from unit.core.shards.test_group_members import group_of, member, publish, share_in, write_nothing


def incarnation_of(client: Client) -> int:
    return cast("Session", client.link.session).incarnation


def only_draw(shards: WiredShards) -> Draw:
    [draw] = group_of(shards, 0).drawn.values()
    return draw


def finished(
    shards: WiredShards, client: Client, qos: int, outcome: int = frames.DONE, later: int = 0, draw: int = 0
) -> frames.Finished:
    """What a member's shard says of the one draw: on its connection, or `later` ones, of a packet id `draw` behind."""
    found, link = only_draw(shards), stand_link(shards, 0, 1)
    return frames.Finished(
        incarnation_of(client),
        link.connection + later,
        33,
        found.group.incarnation,
        found.serial,
        found.packet_id + draw,
        outcome,
        qos,
    )


def drawn_frames(shards: WiredShards) -> list[frames.Drawn]:
    """What shard 0 has said of draws to shard 1, and has not been heard yet."""
    _, far = shards.wires[1, 0]
    return [frame for frame in map(decode, far.said) if isinstance(frame, frames.Drawn)]


def without_room(shards: WiredShards, qos: int) -> Client:
    """A member in shard 1 whose window a direct message takes."""
    client = member(shards, 1, share_in(shards, 0), qos)
    client.subscribe("b", 1)
    shards[1].client("d", clean=True).publish("b", b"direct")
    shards.carry()
    assert received(client) == [b"direct"]
    return client


@pytest.fixture
def narrow() -> WiredShards:
    settings = BrokerSettings()
    settings.inflight_max = 1
    return WiredShards(settings=settings)


# What is late, or said twice


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("outcome", [frames.DONE, frames.UNSENT, frames.NOT_ALLOWED])
@pytest.mark.parametrize(("later", "draw"), [(-1, 0), (0, 1)], ids=["an old connection", "an old draw"])
def test_what_became_of_something_else_touches_no_draw(qos: int, outcome: int, later: int, draw: int) -> None:
    """At QoS 2 what is done is done, whenever that is heard."""
    shards = WiredShards(2)
    client, _ = only_one(shards, qos)
    before = only_draw(shards)
    say(shards, 1, 0, finished(shards, client, qos, outcome, later, draw))
    if qos == 2 and outcome == frames.DONE:
        assert not group_of(shards, 0).drawn
    else:
        assert only_draw(shards) is before
        assert stand_link(shards, 0, 1).window == (32 if later else 33)


def test_nobody_finishes_what_another_member_has() -> None:
    shards = WiredShards()
    client, _ = only_one(shards, 2)
    frame = finished(shards, client, 2)
    other = member(shards, 2, share_in(shards, 0), 2)
    frame.incarnation = incarnation_of(other)
    frame.connection = stand_link(shards, 0, 2).connection
    say(shards, 2, 0, frame)
    assert only_draw(shards).serial == 1


def test_an_absence_on_an_old_connection_is_none() -> None:
    shards = WiredShards(2)
    client, _ = only_one(shards, 1)
    link = stand_link(shards, 0, 1)
    say(shards, 1, 0, frames.Absent(incarnation_of(client), link.connection - 1))
    assert stand_link(shards, 0, 1) is link
    assert only_draw(shards).serial == 1


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_presence_that_is_known_is_no_new_one(earlier: int) -> None:
    shards = WiredShards(2)
    client, _ = only_one(shards, 1)
    link, before = stand_link(shards, 0, 1), only_draw(shards)
    say(shards, 1, 0, frames.Present(incarnation_of(client), link.connection - earlier, 5, 4, 0))
    assert stand_link(shards, 0, 1) is link
    assert only_draw(shards) is before


def test_with_a_new_connection_what_the_old_one_had_at_qos_1_is_lent_again() -> None:
    shards = WiredShards(2)
    client, _ = only_one(shards, 1)
    old = stand_link(shards, 0, 1)
    shards.held.add((1, 0))
    say(shards, 1, 0, frames.Present(incarnation_of(client), old.connection + 7, 5, 4, 0))
    assert [frame.connection for frame in drawn_frames(shards)] == [old.connection + 7]
    assert old.closed
    old.close()  # what goes wrong on it later
    assert not shards.wires[1, 0][1].is_cut


def test_a_grant_is_for_its_connection_and_never_shrinks() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    link, incarnation = stand_link(shards, 0, 1), incarnation_of(client)
    for connection, granted, window in (
        (link.connection - 1, 50, 32),
        (link.connection, 40, 40),
        (link.connection, 35, 40),
    ):
        say(shards, 1, 0, frames.Granted(incarnation, connection, granted))
        assert link.window == window


def test_a_grant_is_used_at_once() -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0))
    shards.held.add((1, 0))
    publish(shards, 0, [b"%d" % number for number in range(40)])
    assert len(drawn_frames(shards)) == 32
    link = stand_link(shards, 0, 1)
    say(shards, 1, 0, frames.Granted(incarnation_of(client), link.connection, 34))
    assert len(drawn_frames(shards)) == 34


def test_a_member_is_told_of_no_flags_that_are_of_the_publisher() -> None:
    shards = WiredShards(2)
    member(shards, 1, share_in(shards, 0))
    shards.held.add((1, 0))
    shards[0].client("w", clean=True).publish("a/1", b"1", 1, dup=1)
    [frame] = drawn_frames(shards)
    assert frame.message.flags & FLAG_DUP == 0


# What is told of members


def test_a_member_that_ends_before_it_is_durable_leaves_nothing() -> None:
    shards = WiredShards(2)
    share = share_in(shards, 0)
    shards[0].sync = write_nothing  # type: ignore[method-assign]
    row = SubscriptionRow(share, 1, False, False, 2, 0)
    _, far = shards.wires[1, 0]
    shards[0].neighbours.heard(far, frames.Enrol(1, 77, frames.LIVES, DEFAULT_TENANT, [row]))
    shards[0].neighbours.heard(far, frames.Enrol(2, 77, frames.ENDED, DEFAULT_TENANT, []))
    del shards[0].sync
    shards.carry()
    fold = shards[0].broker.fold
    assert (fold.groups.by_id, fold.departing, fold.by_incarnation) == ({}, {}, {})
    before = state(fold)
    shards.crash(0)
    assert state(shards[0].broker.fold) == before


def test_a_group_is_the_one_that_a_replay_makes_though_its_first_member_has_ended_by_then() -> None:
    """Another one has joined it behind the first: by that one's record it would have another number."""
    shards = WiredShards(2)
    share = share_in(shards, 0)
    shards[0].sync = write_nothing  # type: ignore[method-assign]
    row = SubscriptionRow(share, 1, False, False, 2, 0)
    _, far = shards.wires[1, 0]
    for number, (incarnation, life) in enumerate(
        [(77, frames.LIVES), (88, frames.LIVES), (77, frames.ENDED)]
    ):
        rows = [row] if life == frames.LIVES else []
        shards[0].neighbours.heard(far, frames.Enrol(number, incarnation, life, DEFAULT_TENANT, rows))
    del shards[0].sync
    shards[0].sync()
    before = group_of(shards, 0).incarnation
    shards.crash(0)
    assert group_of(shards, 0).incarnation == before


def test_of_a_member_only_what_is_new_or_gone_is_written() -> None:
    shards = WiredShards(2)
    one, two = share_in(shards, 0), share_in(shards, 0, "b/#")
    client = member(shards, 1, one)
    for topic_filter, qos in ((two, 1), (two, 2)):
        client.subscribe(topic_filter, qos)
        shards.carry()
    client.feed(codec.encode_unsubscribe(4, 9, [one]))
    shards.carry()
    written = [r for r in shards[0].journal.records if isinstance(r, (Subscribed, Unsubscribed))]
    assert [[row.filter for row in r.subscriptions] for r in written if isinstance(r, Subscribed)] == [
        [one],
        [two],
        [two],
    ]
    assert [r.filters for r in written if isinstance(r, Unsubscribed)] == [[one]]


# What a crash of the home leaves


def test_what_a_member_has_acknowledged_comes_not_again_after_a_crash() -> None:
    shards = WiredShards(2)
    client, packet_id = only_one(shards, 1)
    client.ack(packet_id)
    shards.carry()
    shards.crash(0)
    shards.connect_all()
    assert received(client) == []
    group = group_of(shards, 0)
    assert (group.drawn, group.returned, group.backlog.count) == ({}, {}, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_without_room_gave_back_is_everybodys_after_a_crash_too(
    narrow: WiredShards, qos: int
) -> None:
    without_room(narrow, qos)
    publish(narrow, 0, [b"1"], qos)
    narrow.advance(1)
    assert list(group_of(narrow, 0).returned) == [1]
    narrow.isolate(1)
    narrow.crash(0)
    narrow.connect(2, 0)
    narrow.connect(0, 2)
    narrow.carry()
    other = member(narrow, 2, share_in(narrow, 0), qos)
    assert [(payload, dup) for _, payload, dup, _ in other.publishes()] == [(b"1", False)]


def test_a_draw_and_its_return_in_one_batch_replay_in_their_order(narrow: WiredShards) -> None:
    """Else the entry was drawn in the journal when its member had long said that it was never sent it."""
    client = without_room(narrow, 1)
    publish(narrow, 0, [b"1"])
    narrow.advance(1)
    assert list(group_of(narrow, 0).returned) == [1]
    narrow[0].sync = write_nothing  # type: ignore[method-assign]
    [lender] = borrowed(client).lenders.values()
    _, far = narrow.wires[1, 0]
    granted = frames.Granted(incarnation_of(client), lender.connection, lender.granted + 1)
    narrow[0].neighbours.heard(far, granted)
    frame = finished(narrow, client, 1, frames.UNSENT)
    frame.granted = granted.granted
    narrow[0].neighbours.heard(far, frame)
    del narrow[0].sync
    narrow.held.add((1, 0))
    narrow[0].sync()
    references = dict(group_of(narrow, 0).returned)
    assert list(references) == [1]
    narrow.crash(0)
    assert group_of(narrow, 0).returned == references


@pytest.mark.parametrize("crash", [False, True])
def test_what_comes_back_to_a_group_that_nobody_is_in_is_dropped(narrow: WiredShards, crash: bool) -> None:
    """A member that has left keeps what it has; when it was never sent that, nobody is left who could have it."""
    client = without_room(narrow, 2)
    publish(narrow, 0, [b"1"], 2)
    client.feed(codec.encode_unsubscribe(4, 9, [share_in(narrow, 0)]))
    narrow.carry()
    tenant = narrow[0].broker.fold.tenant(DEFAULT_TENANT)
    assert (tenant.groups, len(narrow[0].broker.fold.groups.by_id)) == ({}, 1)
    narrow.advance(1)
    assert tenant.counters.dropped[DROP_SESSION_ENDED] == 1
    if crash:
        narrow.crash(0)
    assert narrow[0].broker.fold.groups.all() == []


@pytest.mark.parametrize("crash", [False, True])
def test_what_comes_back_to_such_a_group_is_not_kept_with_what_is_still_in_flight(
    narrow: WiredShards, crash: bool
) -> None:
    share = share_in(narrow, 0)
    client = without_room(narrow, 2)
    publish(narrow, 0, [b"1"], 2)
    other = member(narrow, 2, share, 2)
    publish(narrow, 0, [b"2"], 2)
    assert received(other) == [b"2"]
    for each in (client, other):
        each.feed(codec.encode_unsubscribe(4, 9, [share]))
    narrow.carry()
    narrow.advance(1)
    if crash:
        narrow.crash(0)
    [group] = narrow[0].broker.fold.groups.all()
    assert (list(group.drawn), group.returned) == ([2], {})


@pytest.mark.parametrize("length", [8, 60_000])
def test_what_a_member_may_not_read_is_remembered_in_bounds(length: int) -> None:
    """Each topic may have 64 KiB; the newest is known however long, or it would be drawn for the member for ever."""
    rights = MemberRights()
    for number in range(DENIED_MAX + 10):
        topic = b"%0*d" % (length, number)
        assert rights.may_receive(topic)
        rights.deny(topic)
        assert not rights.may_receive(topic)
        denied = [known for known, allowed in rights.receive.items() if not allowed]
        assert len(denied) <= DENIED_MAX
        assert sum(map(len, denied)) <= DENIED_BYTES_MAX
