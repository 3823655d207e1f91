"""Backup and restore: complete, checked, to any offset, under a new epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from headrace import __version__
from headrace.journal.backup import LEASE_S, Hold, backup
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import CorruptBatch, CorruptFile, JournalError, OffsetOutOfRange
from headrace.journal.inspect import verify
from headrace.journal.manifest import NAME as MANIFEST
from headrace.journal.manifest import read_manifest
from headrace.journal.reader import JournalReader
from headrace.journal.restore import restore
from headrace.journal.snapshot import SnapshotWriter, positions
from headrace.journal.watermark import STORES_VERSION, STREAMS_VERSION, VERSION
from unit.journal.log_at import SMALL, Started, filled, opened
from unit.journal.test_restore import CountedDisk, killed


def record(number: int) -> bytes:
    return pack("<IBI", 305, 9, number) + bytes(300)


def running(data_dir: Path) -> Started:
    """Ten batches of three records, in several segments."""
    started = Started(data_dir)
    for i in range(10):
        started.append(b"".join(record(3 * i + j) for j in range(3)), 3)
    return started


def numbers(data_dir: Path) -> list[int]:
    log = opened(data_dir)
    try:
        found = b"".join(batch.body for batch in log.scan(log.start_offset))
        assert len(found) // 309 == log.next_offset - log.start_offset
        return [int.from_bytes(found[at + 5 : at + 9], "little") for at in range(0, len(found), 309)]
    finally:
        log.close()


@pytest.mark.parametrize("version", [VERSION, STREAMS_VERSION, STORES_VERSION])
def test_what_records_may_speak_of_is_said_of_copies_too(tmp_path: Path, version: int) -> None:
    """An older headrace refuses them, and `reshard` looks for what lies in stores alone."""
    streams, stores = version == STREAMS_VERSION, version == STORES_VERSION
    settings = replace(SMALL, streams=streams, stores=stores)
    filled(tmp_path / "data", [record(1)], settings)
    made = backup(tmp_path / "data", tmp_path / "copy")
    assert (made.version, made.made_by, made.format) == (3, __version__, version)
    assert read_manifest(tmp_path / "copy") == made
    restored = restore(tmp_path / "copy", tmp_path / "new")
    assert restored.format == version
    for name in ("copy", "new"):
        assert JournalReader(tmp_path / name).version == version
    log = opened(tmp_path / "new")
    assert log.version == version
    log.close()


def test_a_running_log_is_backed_up_and_restored(tmp_path: Path) -> None:
    started = running(tmp_path / "data")
    ConsumerPosition.register(tmp_path / "data", "archive", started.log.uuid, 1, 5)
    made = backup(tmp_path / "data", tmp_path / "copy")
    started.append(b"".join(map(record, range(30, 33))), 3)
    started.log.close()
    assert (made.uuid, made.epoch, made.start_offset, made.high_watermark) == (started.log.uuid, 1, 0, 30)
    assert read_manifest(tmp_path / "copy") == made
    assert verify(tmp_path / "copy").ok
    assert [c.name for c in ConsumerPosition.list(tmp_path / "data")] == ["archive"], (
        "none of its own is left"
    )
    restored = restore(tmp_path / "copy", tmp_path / "new")
    assert restored.high_watermark == 30
    assert JournalReader(tmp_path / "new").epoch == restored.epoch > 1
    assert numbers(tmp_path / "new") == list(range(30))
    assert JournalReader(tmp_path / "new").epoch == restored.epoch
    assert ConsumerPosition.read(tmp_path / "new", "archive").offset == 5


def test_a_copy_says_from_where_the_journal_is_complete(tmp_path: Path) -> None:
    """What lies below was compacted, or is of the journal that was divided: readers that need all begin behind it."""
    started = running(tmp_path / "data")
    started.log._watermark.publish_complete(15)
    backup(tmp_path / "data", tmp_path / "copy")
    started.log.close()
    for number, (to, complete) in enumerate([(None, 15), (20, 15), (15, 15), (9, 9)]):
        restore(tmp_path / "copy", tmp_path / f"new-{number}", to)
        reader = JournalReader(tmp_path / f"new-{number}")
        assert reader.complete_offset() == complete
        opened(tmp_path / f"new-{number}").close()
        assert reader.complete_offset() == complete
    backup(tmp_path / "new-0", tmp_path / "again")
    assert JournalReader(tmp_path / "again").complete_offset() == 15


@pytest.mark.parametrize("to", [0, 1, 3, 14, 15, 29, 30])
def test_to_an_offset(tmp_path: Path, to: int) -> None:
    running(tmp_path / "data").log.close()
    backup(tmp_path / "data", tmp_path / "copy")
    assert restore(tmp_path / "copy", tmp_path / "new", to).high_watermark == to
    assert verify(tmp_path / "new").ok
    assert numbers(tmp_path / "new") == list(range(to))


def test_an_offset_that_is_not_in_it(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    backup(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(OffsetOutOfRange):
        restore(tmp_path / "copy", tmp_path / "new", 31)
    assert not (tmp_path / "new").exists()


def test_snapshots_beyond_the_offset_are_left_out(tmp_path: Path) -> None:
    started = running(tmp_path / "data")
    for position, applied in ((9, 9), (12, 24)):
        writer = SnapshotWriter(started.log.directory, position)
        writer.add(b"state")
        writer.commit(applied)
    started.log.set_floor(9)
    backup(tmp_path / "data", tmp_path / "copy")
    started.log.close()
    restore(tmp_path / "copy", tmp_path / "early", 20)
    assert positions(tmp_path / "early" / "journal") == [9]
    restore(tmp_path / "copy", tmp_path / "late", 24)
    assert positions(tmp_path / "late" / "journal") == [9, 12]


def test_no_state_is_known_at_that_offset(tmp_path: Path) -> None:
    started = running(tmp_path / "data")
    first = sorted((tmp_path / "data" / "journal").glob("*.log"))[0]
    writer = SnapshotWriter(started.log.directory, 27)
    writer.commit()
    started.log.close()
    first.unlink()  # as retention does
    made = backup(tmp_path / "data", tmp_path / "copy")
    assert made.start_offset > 0
    with pytest.raises(JournalError, match="the state of sessions"):
        restore(tmp_path / "copy", tmp_path / "new", 26)
    restore(tmp_path / "copy", tmp_path / "new", 28)


def test_a_file_of_the_backup_that_changed_is_noticed(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    backup(tmp_path / "data", tmp_path / "copy")
    path = sorted((tmp_path / "copy" / "journal").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="not the file that was backed up"):
        restore(tmp_path / "copy", tmp_path / "new")
    path.unlink()
    with pytest.raises(CorruptFile, match="missing"):
        restore(tmp_path / "copy", tmp_path / "new")


def test_damage_is_not_backed_up(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    path = sorted((tmp_path / "data" / "journal").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatch):
        backup(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy" / MANIFEST).exists()
    with pytest.raises(CorruptFile, match="not a complete backup"):
        restore(tmp_path / "copy", tmp_path / "new")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    backup(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(FileExistsError):
        backup(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(FileExistsError):
        restore(tmp_path / "copy", tmp_path / "data")


class Interrupted(BaseException):
    """As a signal raises it."""


def test_however_a_backup_ends_nothing_of_it_is_left(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    for number in range(1, 40):

        def end(number: int = number) -> None:
            raise OSError(5, "EIO") if number % 2 else Interrupted

        with pytest.raises((OSError, Interrupted)):
            backup(tmp_path / "data", tmp_path / "copy", CountedDisk(number, end))
        assert not (tmp_path / "copy").exists()
        assert not list((tmp_path / "data" / "consumers").glob("*")), number
    backup(tmp_path / "data", tmp_path / "copy")


@pytest.mark.slow
def test_what_a_killed_backup_leaves_holds_nothing(tmp_path: Path) -> None:
    started = running(tmp_path / "data")
    number = 0
    while not (left := ConsumerPosition.names(tmp_path / "data")):
        number += 1
        target = tmp_path / f"copy-{number}"
        assert killed(lambda disk, to=target: backup(tmp_path / "data", to, disk), number)  # type: ignore[misc]
    assert ConsumerPosition.list(tmp_path / "data") == [], "at once: its lock is gone"
    (tmp_path / "data" / "consumers" / f".{left[0]}.alive").unlink()
    found = ConsumerPosition.list(tmp_path / "data")
    assert [position.name for position in found] == left, "where there is no lock, the lease says it"
    position = ConsumerPosition.read(tmp_path / "data", left[0])
    assert not position.has_expired(position.updated_us + LEASE_S * 1_000_000)
    assert position.has_expired(position.updated_us + (LEASE_S + 1) * 1_000_000)
    aged = replace(position, updated_us=position.updated_us - (LEASE_S + 1) * 1_000_000)
    (tmp_path / "data" / "consumers" / left[0]).write_bytes(aged.pack())
    assert ConsumerPosition.list(tmp_path / "data") == [], "retention does not wait for it"
    backup(tmp_path / "data", tmp_path / "copy")
    assert ConsumerPosition.names(tmp_path / "data") == [], "the next backup removes it"
    assert ConsumerPosition.list(tmp_path / "copy") == []
    started.log.close()


def test_a_backup_lets_go_of_what_it_has_copied(tmp_path: Path) -> None:
    started = running(tmp_path / "data")
    reader = JournalReader(tmp_path / "data")
    with Hold(tmp_path / "data", reader) as hold:
        assert ConsumerPosition.read(tmp_path / "data", hold.name).offset == 0
        hold.move(12)
        assert ConsumerPosition.read(tmp_path / "data", hold.name).offset == 12
    assert ConsumerPosition.names(tmp_path / "data") == []
    started.log.close()


def test_a_living_backup_holds_whatever_the_clock_says(tmp_path: Path) -> None:
    """The lease is judged by the clock of the wall, which may be set ahead; the lock is not."""
    started = running(tmp_path / "data")
    with Hold(tmp_path / "data", JournalReader(tmp_path / "data")) as hold:
        position = ConsumerPosition.read(tmp_path / "data", hold.name)
        aged = replace(position, updated_us=1)
        (tmp_path / "data" / "consumers" / hold.name).write_bytes(aged.pack())
        assert [one.name for one in ConsumerPosition.list(tmp_path / "data")] == [hold.name]
    assert not list((tmp_path / "data" / "consumers").iterdir())
    started.log.close()


@pytest.mark.slow
def test_every_end_by_sigkill_holds_nothing(tmp_path: Path) -> None:
    running(tmp_path / "data").log.close()
    number = 0
    while True:
        number += 1
        target = tmp_path / f"copy-{number}"
        if not killed(lambda disk, to=target: backup(tmp_path / "data", to, disk), number):  # type: ignore[misc]
            break
        assert ConsumerPosition.list(tmp_path / "data") == [], number
    assert number > 30
    assert not list((tmp_path / "data" / "consumers").iterdir())
