"""Verify and repair agree about every class of damage: one says what the other does, and nothing else is lost.

A journal in its third epoch, with two snapshots, changes and a consumer, is damaged in every way that the fault
tests know; then what is served is compared with what was acknowledged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.errors import JournalError
from headrace.journal.inspect import verify
from headrace.journal.log import SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.repair import Repair
from headrace.journal.segment import SegmentHeader, split_records, void_records
from headrace.journal.snapshot import SnapshotWriter, positions
from headrace.journal.watermark import WatermarkState, read_slots
from unit.journal.log_at import Started, filled, opened

COUNT = 14
SIZE = 56 + 900
EPOCH = 3
Damaging = Callable[[Path], None]


def body_of(offset: int) -> bytes:
    """A record, as the journal frames it."""
    return (896).to_bytes(4, "little") + b"\x09" + b"%02d" % offset * 447 + b"!"


def log_file(data: Path, base: int) -> Path:
    return data / "journal" / f"{base:020d}.log"


def raise_epoch(data: Path, epoch: int) -> None:
    state = read_slots(DISK, data)[0]
    state.epoch = epoch
    (data / "watermark").write_bytes(state.pack_page())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments at 0, 4, 8 and 12, the last of which is open; closed as a kill -9 leaves it."""
    base = tmp_path_factory.mktemp("whole")
    data = base / "running"
    filled(data, [body_of(offset) for offset in range(6)])
    raise_epoch(data, EPOCH)
    started = Started(data)
    for offset in range(6, COUNT):
        started.append(body_of(offset))
    log = started.log
    for position, parent in ((2, None), (5, None), (7, 5), (9, 7)):
        writer = SnapshotWriter(log.directory, position, parent=parent)
        writer.add(b"state" * 20)
        writer.commit()
    ConsumerPosition.register(data, "archive", log.uuid, log.epoch, 6)
    shutil.copytree(data, base / "killed")
    log.close()
    return base / "killed"


def served(log: SegmentedLog) -> dict[int, bytes]:
    """Offset -> record; void ones left out."""
    found = {}
    for batch in log.scan(log.start_offset):
        void = split_records(void_records(1, 0))[0][:8]
        for i, record in enumerate(split_records(batch.body)):
            if record[:8] != void:
                found[batch.base_offset + i] = record
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


# What is done to it: name -> how, and the offsets that are lost by it


def flip(name: str, at: int) -> Damaging:
    def damage(data: Path) -> None:
        path = data / name
        content = bytearray(path.read_bytes())
        content[at] ^= 0x10
        path.write_bytes(content)

    return damage


def cut(name: str, at: int) -> Damaging:
    def damage(data: Path) -> None:
        path = data / name
        path.write_bytes(path.read_bytes()[:at])

    return damage


def gone(*names: str) -> Damaging:
    def damage(data: Path) -> None:
        for name in names:
            (data / name).unlink()

    return damage


def renamed(name: str, other: str) -> Damaging:
    def damage(data: Path) -> None:
        (data / name).rename(data / other)

    return damage


def both(*steps: Damaging) -> Damaging:
    def damage(data: Path) -> None:
        for step in steps:
            step(data)

    return damage


def foreign(base: int) -> Damaging:
    """A segment of another journal has that place."""

    def damage(data: Path) -> None:
        header = SegmentHeader(uuid4().bytes, 9, base, 1)
        log_file(data, base).write_bytes(header.pack())

    return damage


def foreign_watermark(data: Path) -> None:
    (data / "watermark").write_bytes(WatermarkState(uuid4().bytes, 7, 500, 500).pack_page())


def late_consumer(data: Path) -> None:
    ConsumerPosition.register(data, "late", JournalReader(data).uuid, 8, 2)


def older_watermark(data: Path) -> None:
    state = read_slots(DISK, data)[0]
    state.high_watermark = state.durable_offset = 3
    (data / "watermark").write_bytes(state.pack_page())


L0, L4, L8, L12 = (f"journal/{base:020d}.log" for base in (0, 4, 8, 12))
S2, S5, C7, C9 = (
    f"journal/{2:020d}.snapshot",
    f"journal/{5:020d}.snapshot",
    f"journal/{7:020d}.changes",
    f"journal/{9:020d}.changes",
)
SLOTS = both(flip("watermark", 20), flip("watermark", 532))
DAMAGES: dict[str, tuple[Damaging, set[int]]] = {
    "a batch of the first segment": (flip(L0, 64 + SIZE + 500), {1}),
    "the header of a batch": (flip(L4, 64 + SIZE + 20), {5}),
    "the length of a batch": (flip(L4, 64 + SIZE + 9), {5}),
    "two batches of one segment": (both(flip(L4, 64 + 100), flip(L4, 64 + 2 * SIZE + 100)), {4, 6}),
    "two that follow each other": (both(flip(L8, 64 + SIZE + 100), flip(L8, 64 + 2 * SIZE + 100)), {9, 10}),
    "batches of three segments": (
        both(flip(L0, 64 + 100), flip(L4, 64 + 100), flip(L8, 64 + 3 * SIZE + 100)),
        {0, 4, 11},
    ),
    "the last batch, of which the high watermark speaks": (flip(L12, 64 + SIZE + 100), {13}),
    "the first batch of the last segment": (flip(L12, 64 + 100), {12}),
    "the last batch torn": (cut(L12, 64 + SIZE + 300), {13}),
    "the last segment without batches": (cut(L12, 64), {12, 13}),
    "half a header of the last segment": (cut(L12, 30), {12, 13}),
    "an empty segment": (cut(L8, 0), {8, 9, 10, 11}),
    "a finished segment cut": (cut(L4, 64 + 2 * SIZE + 5), {6, 7}),
    "a segment header": (flip(L8, 20), set()),
    "all segment headers": (both(*(flip(name, 20) for name in (L0, L4, L8, L12))), set()),
    "a footer": (flip(L4, 64 + 4 * SIZE + 20), set()),
    "a footer cut off": (cut(L4, 64 + 4 * SIZE), set()),
    "the first segment gone": (gone(L0), {0, 1, 2, 3}),
    "the first segments gone": (gone(L0, L4), set(range(8))),
    "the first segment gone and one slot": (both(gone(L0), flip("watermark", 20)), {0, 1, 2, 3}),
    "the first segment gone, and where the journal begins": (both(gone(L0), flip("watermark", 1034)), set()),
    "where the journal begins": (flip("watermark", 1050), set()),
    "a segment gone": (gone(L4), {4, 5, 6, 7}),
    "two segments gone": (gone(L4, L8), set(range(4, 12))),
    "the newest segment gone": (gone(L12), {12, 13}),
    "the newest segment gone and the high watermark": (both(gone(L12), SLOTS), set()),
    "all segments gone": (gone(L0, L4, L8, L12), set(range(14))),
    "the first segments and the snapshots gone": (gone(L0, L4, S2, S5), set(range(8))),
    "all but the newest gone": (gone(L0, L4, L8), set(range(12))),
    "a foreign segment in the middle": (foreign(4), {4, 5, 6, 7}),
    "a foreign newest segment": (foreign(COUNT), set()),
    "a foreign newest segment in the place of ours": (foreign(12), {12, 13}),
    "a foreign newest segment and high watermark": (both(foreign(12), foreign_watermark), set()),
    "a foreign high watermark": (foreign_watermark, set()),
    "a segment under another name": (renamed(L4, f"journal/{5:020d}.log"), {4, 5, 6, 7}),
    "one slot of the high watermark": (flip("watermark", 20), set()),
    "the other slot": (flip("watermark", 532), set()),
    "both slots": (SLOTS, set()),
    "both slots and the newest header": (both(SLOTS, flip(L12, 20)), set()),
    "both slots and a batch": (both(SLOTS, flip(L4, 64 + 100)), {4}),
    "the high watermark gone": (gone("watermark"), set()),
    "the high watermark cut": (cut("watermark", 30), set()),
    "a high watermark of before": (older_watermark, set()),
    "a high watermark of before, and a batch behind it": (both(older_watermark, flip(L12, 64 + 100)), {12}),
    "an epoch that went down": (lambda data: raise_epoch(data, 1), set()),
    "a consumer of a later epoch": (late_consumer, set()),
    "the newest snapshot": (flip(S5, 70), set()),
    "the trailer of a snapshot": (cut(S5, 100), set()),
    "both snapshots": (both(flip(S2, 70), flip(S5, 70)), set()),
    "an empty snapshot": (cut(S2, 0), set()),
    "changes": (flip(C7, 70), set()),
    "the newest changes cut": (cut(C9, 80), set()),
    "a snapshot under another name": (renamed(S2, f"journal/{3:020d}.snapshot"), set()),
    "a consumer": (flip("consumers/archive", 30), set()),
    "an empty consumer": (cut("consumers/archive", 0), set()),
    "an index": (flip(f"journal/{4:020d}.index", 5), set()),
    "an index gone": (gone(f"journal/{4:020d}.index"), set()),
}


def check(data: Path, lost: set[int] | None) -> None:
    """`lost`: the offsets that may be; None for whatever the report says."""
    before = tree(data)
    report = verify(data)
    with Repair(data) as repair:
        assert repair.plan() == report.problems, "verify lists what repair would do"
        assert repair.report == report
        assert tree(data) == before, "planning changes nothing"
        assert bool(repair.run()) == (not report.ok), "and repair does it"
    if report.ok:
        assert tree(data) == before
    ranges = [range(one.first_offset, one.end_offset) for one in report.findings]
    said = {offset for span in ranges for offset in span}
    assert report.lost_records == sum(map(len, ranges)) == len(said), "each offset is named once"
    again = verify(data)
    assert again.ok, again.lines()
    assert again.epoch >= EPOCH or report.epoch < EPOCH
    if any(one.path.name == "watermark" or ".log" in one.path.name for one in report.findings):
        assert again.epoch > report.seen_epoch
    log = opened(data)
    try:
        found = served(log)
        assert log.next_offset >= again.high_watermark
        assert log.epoch == again.epoch
        if said or report.ok:
            end = log.next_offset
            assert {offset for offset in range(log.start_offset, end) if offset not in found} <= said
    finally:
        log.close()
    assert all(found[offset] == body_of(offset) for offset in found)
    if lost is not None:
        still = {offset for offset in range(log.start_offset, COUNT) if offset not in found}
        assert still == lost


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_says_what_repair_does(tmp_path: Path, whole: Path, name: str) -> None:
    damage, lost = DAMAGES[name]
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    damage(data)
    check(data, None if "newest segment gone and" in name or "and high watermark" in name else lost)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_flipped(tmp_path: Path, whole: Path, seed: int) -> None:
    rng = Random(seed)
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    for _ in range(rng.choice((1, 1, 3))):
        path = rng.choice(sorted(path for path in data.rglob("*") if path.is_file() and path.stat().st_size))
        at = rng.randrange(min(path.stat().st_size, 5000))
        flip(str(path.relative_to(data)), at)(data)
    check(data, None)


def test_a_journal_that_nothing_names_is_left_alone(tmp_path: Path, whole: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    DAMAGES["all segment headers"][0](data)
    SLOTS(data)
    gone("consumers/archive")(data)
    before = tree(data)
    report = verify(data)
    assert "tells which journal this is" in report.problems[-1]
    with Repair(data) as repair:
        assert repair.plan() == report.problems
        with pytest.raises(JournalError, match="nothing was changed"):
            repair.run()
    assert tree(data) == before


def test_a_consumer_tells_whose_journal_it_is_if_nothing_else_does(tmp_path: Path, whole: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    both(DAMAGES["all segment headers"][0], SLOTS)(data)
    check(data, set())


def test_damaged_snapshots_are_out_of_the_way_afterwards(tmp_path: Path, whole: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    both(flip(S5, 70), flip(C9, 70))(data)
    with Repair(data) as repair:
        assert len(repair.plan()) == 2
        repair.run()
    assert positions(data / "journal") == [2]
    assert verify(data).epoch == EPOCH, "no offset means anything else"
    assert not [line for line in verify(data).notes if "epoch" in line]
