"""Where journals that are still written may be cut: nobody is ahead of its source, or behind what is said of it."""

from __future__ import annotations

import random
from array import array
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headrace.core.records.message import decode_batch
from headrace.core.records.record import SHARED_DRAWN, Progress, Record
from headrace.core.records.stream_record import ANEW, FOLLOWED, LENT, STARTED, TAKEN, stream_record_of
from headrace.data.layout import Layout
from headrace.data.positions import Positions, consistent_ends
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import split_records
from headrace.journal.snapshot import SnapshotWriter
from headrace.mqtt import codec
from shard_wires import WiredShards
from unit.core.shards.test_group_members import complete, member, publish, share_in
from unit.data.journals import START_US, copy, followed, made, message, owned, taken


def positions(tmp_path: Path, *shards: list[Record]) -> tuple[list[Positions], list[int]]:
    layout = made(tmp_path / "d", shards)
    readers = [JournalReader(directory) for directory in layout.directories()]
    ends = [reader.high_watermark() for reader in readers]
    return [Positions.read(reader, end) for reader, end in zip(readers, ends, strict=True)], ends


def test_what_a_journal_says_of_streams_is_read(tmp_path: Path) -> None:
    found, ends = positions(
        tmp_path,
        [message("a"), copy(1, 4), message("b"), taken(1, 9), followed(1, 2)],
        [message("c")],
    )
    assert ends == [5, 1]
    steps = found[0].taken[1]
    assert (steps.records, steps.positions) == ([1, 3], [5, 9])
    assert [steps.below(end) for end in (0, 1, 2, 3, 4)] == [0, 0, 5, 5, 9]
    assert (found[0].followed[1].positions, found[1].taken) == ([2], {})


@pytest.mark.parametrize("more", [[], [[[1, 7]]]], ids=["as it is", "of a later version"])
def test_a_snapshot_says_what_lies_before_it(tmp_path: Path, more: list[list[list[int]]]) -> None:
    layout = made(tmp_path, [[copy(1, 4), message("a"), copy(1, 5)], [message("b")] * 7])
    snapshot = SnapshotWriter(layout.directory(0) / DIRECTORY, 2)
    snapshot.add(msgspec.msgpack.encode(["session", 1]))
    snapshot.add(msgspec.msgpack.encode(["streams", [[1, 5]], [[1, 2]], *more]))
    snapshot.commit()
    found = Positions.read(JournalReader(layout.directory(0)), 3)
    assert (found.taken[1].records, found.taken[1].positions) == ([-1, 2], [5, 6])
    assert found.followed[1].positions == [2]


def test_a_start_that_others_have_heard_of_is_not_cut_away(tmp_path: Path) -> None:
    shards: list[list[Record]] = [[message("a")], [owned(0, 0), message("b"), owned(0, 1), message("c")]]
    found, ends = positions(tmp_path, *shards)
    assert consistent_ends(found, ends) == [1, 2]
    found, ends = positions(tmp_path / "more", [*shards[0], message("start")], shards[1])
    assert consistent_ends(found, ends) == ends


def test_a_snapshot_says_of_whom_was_heard(tmp_path: Path) -> None:
    layout = made(tmp_path, [[message("a")], [message("b")] * 3])
    snapshot = SnapshotWriter(layout.directory(1) / DIRECTORY, 2)
    snapshot.add(msgspec.msgpack.encode(["owners", [[0, 7]], 0]))
    snapshot.commit()
    found = Positions.read(JournalReader(layout.directory(1)), 3)
    assert (found.owned[0].records, found.owned[0].positions) == ([-1], [7])


@pytest.mark.parametrize("in_snapshot", [False, True])
def test_a_start_that_a_position_stands_on_is_not_cut_away(tmp_path: Path, in_snapshot: bool) -> None:
    """It would be taken for a journal that was put back alone: its next start at that offset is another one."""
    told = stream_record_of(STARTED, START_US, [0, 1, START_US, 0])
    shards: list[list[Record]] = [[message("a")], [message("b"), message("c")] if in_snapshot else [told]]
    layout = made(tmp_path / "d", shards)
    if in_snapshot:
        snapshot = SnapshotWriter(layout.directory(1) / DIRECTORY, 1)
        snapshot.add(msgspec.msgpack.encode(["starts", [[0, START_US]], [[0, 1, START_US]]]))
        snapshot.commit()
    found = [
        Positions.read(reader, reader.high_watermark()) for reader in map(JournalReader, layout.directories())
    ]
    assert found[1].owned[0].positions == [1]
    if not in_snapshot:
        assert consistent_ends(found, [1, 1]) == [1, 0]
        assert consistent_ends(found, [2, 1]) == [2, 1]


def test_nothing_is_cut_where_every_note_is_true(tmp_path: Path) -> None:
    found, ends = positions(
        tmp_path, [message("a"), copy(1, 0), followed(1, 1)], [message("b"), copy(0, 0), taken(0, 3)]
    )
    assert consistent_ends(found, ends) == ends


def test_who_is_ahead_of_its_source_is_cut(tmp_path: Path) -> None:
    found, ends = positions(tmp_path, [message("a")], [copy(0, 0), message("b"), copy(0, 1), message("c")])
    assert consistent_ends(found, ends) == [1, 2]


def test_who_is_said_to_have_taken_more_than_it_has_cuts_what_says_so(tmp_path: Path) -> None:
    found, ends = positions(tmp_path, [message("a"), followed(1, 1), message("b")], [message("c")])
    assert consistent_ends(found, ends) == [1, 1]


def test_a_cut_cuts_others(tmp_path: Path) -> None:
    """Shard 0 lacks what 1 has a copy of; without its tail 1 lacks what 2 has a copy of."""
    found, ends = positions(
        tmp_path,
        [message("a")],
        [copy(0, 1), message("b")],
        [message("c"), copy(1, 1), message("d")],
    )
    assert consistent_ends(found, ends) == [1, 0, 1]


GROUP = 3 << 16  # made by the record at offset 3


def drawn(serial: int, qos: int = 2) -> Record:
    return Progress(SHARED_DRAWN, START_US, array("Q", [GROUP, serial, 7, 50_000 | qos << 16]).tobytes())


def lent(serial: int) -> Record:
    return stream_record_of(LENT, START_US, [0, GROUP, serial, 50_000 | 2 << 16, 9, 0])


def group_entry(next_serial: int, waiting: int, returned: list[int]) -> bytes:
    refs = [array("Q", [16] * waiting).tobytes(), array("I", [1] * waiting).tobytes(), True]
    rows = [[serial, 16] for serial in returned]
    return msgspec.msgpack.encode(["group", "t", "$share/g/a", GROUP, 1, next_serial, refs, rows, []])


def test_what_is_lent_and_was_not_drawn_at_its_home_by_then_is_cut(tmp_path: Path) -> None:
    """The home would give its number to another message, which the member would be taken to have."""
    before: list[Record] = [message("a")] * 4
    member = [lent(1), message("b"), lent(2), message("c")]
    found, ends = positions(tmp_path / "1", [*before, drawn(1), drawn(2)], member)
    assert consistent_ends(found, ends) == ends == [6, 4]
    assert consistent_ends(found, [5, 4]) == [5, 2]
    found, ends = positions(tmp_path / "2", [*before, drawn(1), drawn(2, qos=1)], member)
    assert consistent_ends(found, ends) == [6, 2]


def test_what_a_snapshot_of_the_home_knows_to_be_drawn_is_not_cut(tmp_path: Path) -> None:
    serials = range(1, 7)
    layout = made(tmp_path / "d", [[message("a")] * 5, [lent(serial) for serial in serials]])
    snapshot = SnapshotWriter(layout.directory(0) / DIRECTORY, 4)
    snapshot.add(group_entry(next_serial=6, waiting=2, returned=[2]))  # 4 and 5 wait, and 2 again
    snapshot.commit()
    draws = Positions.read(JournalReader(layout.directory(0)), 5).draws
    assert [draws.of(GROUP, serial) == -1 for serial in serials] == [True, False, True, False, False, False]
    assert draws.of(GROUP - 1, 1) == -1  # made before the snapshot, and gone in it
    assert draws.of(GROUP + (1 << 16), 1) > 1 << 60  # made later, and nothing of it was drawn


@pytest.mark.parametrize("received", [False, True])
def test_a_message_behind_the_end_of_a_backup_is_not_taken_for_a_later_one(
    tmp_path: Path, received: bool
) -> None:
    shards = WiredShards(2)
    client = member(shards, 1, share_in(shards, 0), 2)
    end = len(shards[0].journal.bodies)
    publish(shards, 0, [b"1"], 2)
    [(packet_id, *_)] = client.publishes()
    if received:
        client.feed(codec.encode_pubrec(4, packet_id))
        shards.carry()
    shards.crash(1)
    bodies = [list(shard.journal.bodies) for shard in shards.shards]
    bodies[0] = bodies[0][:end]
    layout = Layout.make(tmp_path / "d", 2)
    for directory, written in zip(layout.directories(), bodies, strict=True):
        append_bodies(directory, written)
    readers = [JournalReader(directory) for directory in layout.directories()]
    ends = [reader.high_watermark() for reader in readers]
    found = consistent_ends(
        [Positions.read(reader, at) for reader, at in zip(readers, ends, strict=True)], ends
    )
    assert found[0] == ends[0]
    for shard, at in zip(shards.shards, found, strict=True):
        shard._open(below(bodies[shard.number], at))
        shard.neighbours.begin(shard.epoch)
    shards.connect_all()
    client = shards[1].client("m")
    shards.carry()
    publish(shards, 0, [b"2"], 2)
    [(packet_id, *_)] = came = client.publishes()
    assert [(payload, dup) for _, payload, dup, _ in came] == [(b"2", False)]
    complete(client, packet_id, shards)
    assert not shards[1].neighbours.members.away.loans


def append_bodies(directory: Path, bodies: list[bytes]) -> None:
    with closing(SegmentedLog.open(directory, LogSettings(segment_bytes_max=4096), print)) as log:
        for body in bodies:
            log.append(body, len(decode_batch(body, 0)), START_US, START_US)


def below(bodies: list[bytes], end: int) -> list[bytes]:
    """What lies below an offset, a record each."""
    records = [bytes(record) for body in bodies for record in split_records(body)]
    return records[:end]


class World:
    """Shards that publish, take from each other and say what they have made durable, in one true order."""

    def __init__(self, seed: int, shards: int) -> None:
        self.draw = random.Random(seed)
        self.lengths = [0] * shards
        self.taken = [[0] * shards for _ in range(shards)]
        self.notes = [Positions() for _ in range(shards)]

    def step(self) -> None:
        shard, other = self.draw.sample(range(len(self.lengths)), 2)
        kind = self.draw.choice(["publish", "take", "follow"])
        if kind == "take" and self.taken[shard][other] < self.lengths[other]:
            self.taken[shard][other] = self.draw.randint(self.taken[shard][other] + 1, self.lengths[other])
            self.notes[shard].note(TAKEN, other, self.lengths[shard], self.taken[shard][other])
        elif kind == "follow":
            self.notes[shard].note(FOLLOWED, other, self.lengths[shard], self.taken[other][shard])
        self.lengths[shard] += 1


@pytest.mark.parametrize("seed", range(40))
def test_ends_that_are_read_one_after_the_other_lose_nothing_of_before(seed: int) -> None:
    world = World(seed, 4)
    for _ in range(200):
        world.step()
    before, ends = list(world.lengths), []
    for shard in range(4):
        ends.append(world.lengths[shard])
        for _ in range(10):
            world.step()
    found = consistent_ends(world.notes, ends)
    assert all(first <= end <= last for first, end, last in zip(before, found, ends, strict=True))
    for shard, notes in enumerate(world.notes):
        assert all(steps.below(found[shard]) <= found[other] for other, steps in notes.taken.items())
        for other, steps in notes.followed.items():
            of_us = world.notes[other].taken.get(shard)
            assert steps.below(found[shard]) <= (of_us.below(found[other]) if of_us else 0)


def test_positions_with_a_shard_that_was_put_back_are_those_of_its_acceptance(tmp_path: Path) -> None:
    """A backup after it is cut nowhere: what was said before is of a journal that is gone."""
    shards: list[list[Record]] = [
        [message("a"), message("b")],
        [
            taken(0, 9),
            followed(0, 3),
            owned(0, 7),
            stream_record_of(LENT, START_US, [0, 6 << 16, 1, 2 << 16, 0, 0]),
            stream_record_of(ANEW, START_US, [0, 2, 0, 5]),
            stream_record_of(LENT, START_US, [0, 5 << 16, 1, 2 << 16, 0, 0]),
            message("c"),
        ],
    ]
    found, ends = positions(tmp_path, *shards)
    assert (found[1].taken[0].positions, found[1].followed[0].positions) == ([2], [0])
    assert consistent_ends(found, ends) == ends == [2, 7]
    shards[1].append(taken(0, 3))
    found, ends = positions(tmp_path / "ahead", *shards)
    assert consistent_ends(found, ends) == [2, 7]
