"""A shard that was put back from an older copy, and accepted: nobody passes anything over, and nothing hangs."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from headrace.core.records.event import BrokerStarted
from headrace.core.records.message import Message
from headrace.core.records.record import Record
from headrace.core.records.stream_record import FOLLOWED, OWNED, TAKEN, StreamRecord, stream_record
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.away import Away
from headrace.core.state.state import Fold
from headrace.data.acceptance import Misfit, Side, highest_known, misfit, records
from headrace.journal.segment import void_records
from headrace.mqtt import codec
from shard_wires import WiredShard, WiredShards, received
from unit.core.shards.test_group_members import complete, member, share_in

COUNT = 3
PUT_BACK = 0


def shards_of_short_notes() -> WiredShards:
    streams = StreamSettings()
    streams.note_step = 5
    return WiredShards(COUNT, streams=streams)


def reopen(shard: WiredShard, bodies: list[bytes]) -> None:
    """The shard has a new owner, of this journal; its epoch is the record of its start, as that of a node is."""
    shard._open(bodies)
    shard.epoch = shard.broker.fold.streams.starts[-1][0]
    shard.neighbours.begin(shard.epoch)


def put_back(shards: WiredShards, bodies: list[bytes]) -> None:
    """All processes end, a while passes, and one shard has an older copy of its journal."""
    shards.advance(1)
    for shard in shards.shards:
        shards.isolate(shard.number)
    for shard in shards.shards:
        shard.now_us = max(each.now_us for each in shards.shards) + 1_000_000
        reopen(shard, bodies if shard.number == PUT_BACK else list(shard.journal.bodies))


def side(shard: WiredShard) -> Side:
    return Side(shard.number, shard.broker.fold, len(shard.journal.records))


def misfits(shards: WiredShards) -> list[Misfit]:
    accepted = side(shards[PUT_BACK])
    found = [misfit(accepted, side(shards[other])) for other in range(1, COUNT)]
    return [each for each in found if each is not None]


def packed(found: list[Record]) -> bytes:
    out = BytesWriter()
    for record in found:
        record.encode_into(out)
    return bytes(out.getvalue())


def accept(shards: WiredShards) -> list[Misfit]:
    """What `headrace journal accept` does, over journals in memory; then all have new owners."""
    accepted, found = side(shards[PUT_BACK]), misfits(shards)
    above = max(highest_known(accepted, side(shards[other])) for other in range(1, COUNT))
    gap = range(accepted.end, max(accepted.end + 1, above))
    bodies = {shard.number: list(shard.journal.bodies) for shard in shards.shards}
    bodies[PUT_BACK].append(void_records(len(gap), 1))
    for each in found:
        bodies[each.other].append(packed(list(records(each, gap.start, 1))))
    for shard in shards.shards:
        shards.isolate(shard.number)
    for shard in shards.shards:
        reopen(shard, bodies[shard.number])
    assert misfits(shards) == []
    return found


def refused(shards: WiredShards) -> bool:
    """Whether streams to or from the shard that was put back do not begin."""
    ours = shards[PUT_BACK].neighbours
    theirs = [shards[other].neighbours for other in range(1, COUNT)]
    return bool(ours.ahead or ours.behind or any(each.ahead or each.behind for each in theirs))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("starts", [1, 3])
@pytest.mark.parametrize("published", [0, 3, 60])
def test_the_others_get_all_that_a_shard_publishes_after_it_was_put_back(
    published: int, starts: int, qos: int
) -> None:
    """Whether or not it has served before it was accepted, and has grown past what the others had taken."""
    shards = shards_of_short_notes()
    readers = [shards[other].client("r") for other in range(1, COUNT)]
    for reader in readers:
        reader.subscribe("a", qos)
    shards.carry()
    writer = shards[PUT_BACK].client("w")
    writer.publish("a", b"before", qos)
    shards.carry()
    copied = list(shards[PUT_BACK].journal.bodies)
    for number in range(20):
        writer.publish("a", b"lost %d" % number, qos)
        shards.carry()
    put_back(shards, copied)
    after = []
    for start in range(starts):
        writer = shards[PUT_BACK].client(f"start{start}-")
        for number in range(published):
            after.append(b"after %d.%d" % (start, number))
            writer.publish("a", after[-1], qos)
        shards[PUT_BACK].now_us += 1_000_000
        reopen(shards[PUT_BACK], list(shards[PUT_BACK].journal.bodies))
    shards.connect_all()
    assert refused(shards)
    assert len(accept(shards)) == COUNT - 1
    shards.connect_all()
    assert not refused(shards)
    writer = shards[PUT_BACK].client("w3")
    writer.publish("a", b"last", qos)
    shards.carry()
    for other in range(1, COUNT):
        reader = shards[other].client("r")
        queued = [found.payload for found in shards[other].journal.records if isinstance(found, Message)]
        assert queued == [b"before", *(b"lost %d" % number for number in range(20)), *after, b"last"]
        assert received(reader)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_shard_that_was_put_back_gets_again_what_it_has_forgotten(qos: int) -> None:
    shards = shards_of_short_notes()
    reader = shards[PUT_BACK].client("r")
    reader.subscribe("b", qos)
    shards.carry()
    copied = list(shards[PUT_BACK].journal.bodies)
    writer = shards[1].client("w")
    sent = [b"%d" % number for number in range(20)]
    for payload in sent:
        writer.publish("b", payload, qos)
        shards.carry()
    for _ in range(4):
        shards.advance(1)
    put_back(shards, copied)
    shards.connect_all()
    assert refused(shards)
    assert received(shards[PUT_BACK].client("r")) == []
    [found] = [each for each in accept(shards) if each.other == 1]
    assert found.asks < found.known
    shards.connect_all()
    assert not refused(shards)
    assert received(shards[PUT_BACK].client("r")) == sent


def test_a_subscription_of_before_the_copy_and_one_of_after_it_get_what_comes() -> None:
    """P11 holds where the session is known; the journal of the others is kept for whoever follows, from there on."""
    shards = shards_of_short_notes()
    reader = shards[PUT_BACK].client("r")
    reader.subscribe("b", 1)
    shards.carry()
    copied = list(shards[PUT_BACK].journal.bodies)
    shards[PUT_BACK].client("late").subscribe("b", 1)
    shards.carry()
    for _ in range(20):
        shards[1].client("w").publish("c", b"")
    for _ in range(4):
        shards.advance(1)
    put_back(shards, copied)
    accept(shards)
    assert shards[1].broker.fold.streams.floor([PUT_BACK]) <= len(shards[1].journal.records) - 20
    shards.connect_all()
    late = shards[PUT_BACK].client("late")
    late.subscribe("b", 1)
    shards.carry()
    shards[1].client("w").publish("b", b"now")
    shards.carry()
    assert received(late) == [b"now"]
    assert received(shards[PUT_BACK].client("r")) == [b"now"]


def test_what_is_lent_of_a_group_is_not_taken_for_what_the_group_numbers_anew() -> None:
    """A member elsewhere has an entry at QoS 2 in flight that the group's home has forgotten, and gives its number to
    another message: that one was acknowledged to nobody."""
    shards = shards_of_short_notes()
    share = share_in(shards, PUT_BACK)
    client = member(shards, 1, share, 2)
    copied = list(shards[PUT_BACK].journal.bodies)
    shards[2].client("w").publish("a/1", b"lost", 2)
    shards.carry()
    [(packet_id, payload, _, _)] = client.publishes()
    assert payload == b"lost"
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    put_back(shards, copied)
    accept(shards)
    shards.connect_all()
    shards[PUT_BACK].client("x").publish("a/2", b"new", 2)
    shards.carry()
    client = shards[1].client("m", version=4)
    shards.carry()
    client.feed(codec.encode_pubcomp(4, packet_id))  # of the first
    shards.carry()
    given = client.publishes()
    assert b"new" in [payload for _, payload, _, _ in given]
    for packet_id, _, _, _ in given:
        complete(client, packet_id, shards)
    assert shards[1].broker.fold.away.loans == {}


@pytest.mark.parametrize("is_accepted", [True, False])
def test_what_is_lent_does_not_fit_where_all_streams_do(is_accepted: bool) -> None:
    """Nobody elsewhere had anything of what the home of a group has lost, but a member, of which no stream tells."""
    shards = WiredShards(COUNT)
    client = member(shards, 1, share_in(shards, PUT_BACK), 2)
    copied = list(shards[PUT_BACK].journal.bodies)
    shards[PUT_BACK].client("w").publish("a/1", b"lost", 2)
    shards.carry()
    [(packet_id, _, _, _)] = client.publishes()
    client.feed(codec.encode_pubrec(4, packet_id))
    shards.carry()
    put_back(shards, copied)
    if is_accepted:
        assert [(found.other, len(found.loans)) for found in accept(shards)] == [(1, 1)]
    shards.connect_all()
    assert not refused(shards)
    shards[PUT_BACK].client("x").publish("a/2", b"new", 2)
    shards.carry()
    client = shards[1].client("m", version=4)
    shards.carry()
    client.feed(codec.encode_pubcomp(4, packet_id))
    shards.carry()
    given = [payload for _, payload, _, _ in client.publishes()]
    assert (b"new" in given) == is_accepted  # ADR 0025: what it is for


def test_shards_that_fit_are_left_alone() -> None:
    shards = shards_of_short_notes()
    member(shards, 1, share_in(shards, PUT_BACK), 2)
    for writer in range(COUNT):
        shards[writer].client("w").publish("a/1", b"x", 2)
        shards.carry()
    assert misfits(shards) == []
    put_back(shards, list(shards[PUT_BACK].journal.bodies))
    assert misfits(shards) == []


def fold(*found: tuple[int, Record]) -> Fold:
    """The state of shard 0 or 1, of which only streams matter."""
    made = Fold(WiredShards(2, connected=False)[0].journal)
    homes = WiredShards(2, connected=False)[0].worker.homes
    made.spread(homes, 0)
    made.away = Away(homes, 0)
    for offset, record in found:
        record.offset = offset
        if isinstance(record, BrokerStarted):
            made.started(record)
        elif isinstance(record, StreamRecord):
            made.streams.apply(record)
    return made


def test_an_owner_of_a_start_that_is_gone_does_not_fit() -> None:
    """Only groups know of it: nothing was taken of its stream."""
    started = [(0, BrokerStarted.at(5)), (30, BrokerStarted.at(7))]
    other = fold((0, stream_record(OWNED, 0, [(0, 20)])))
    assert misfit(Side(0, fold(*started), 40), Side(1, other, 9)) is not None
    assert misfit(Side(0, fold(*started, (20, BrokerStarted.at(8))), 40), Side(1, other, 9)) is not None
    known = fold((0, stream_record(OWNED, 0, [(0, 30)])))
    assert misfit(Side(0, fold(*started), 40), Side(1, known, 9)) is None
    assert highest_known(Side(0, fold(*started), 40), Side(1, other, 9)) == 21


def test_what_an_older_headrace_wrote_is_judged_by_offsets() -> None:
    other = fold((0, stream_record(TAKEN, 0, [(0, 20)])), (1, stream_record(FOLLOWED, 0, [(0, 3)])))
    fits = fold((0, stream_record(TAKEN, 0, [(1, 3)])))
    assert misfit(Side(0, fits, 20), Side(1, other, 9)) is None
    assert misfit(Side(0, fold(), 20), Side(1, other, 9)) == Misfit(0, 1, 20, 20, 0, 3, [])
    assert misfit(Side(0, fits, 10), Side(1, other, 9)) == Misfit(0, 1, 10, 20, 3, 3, [])
