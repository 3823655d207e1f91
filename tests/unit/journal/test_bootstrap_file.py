"""The file of a bootstrap snapshot: read back as written, refused when it is another one or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal import bootstrap_file as module
from headrace.journal.bootstrap_file import BootstrapFile, write_bootstrap
from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.snapshot import SnapshotWriter

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
RECORDS = [(3, b"one"), (7, b"two"), (1 << 40, b"")]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write_bootstrap(tmp_path / "new", UUID, 4, 99, RECORDS)
    assert path.name == f"{99:020}.snapshot"
    found = BootstrapFile(path)
    assert (found.uuid, found.epoch, found.checkpoint) == (UUID, 4, 99)
    assert list(found.records()) == RECORDS


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for checkpoint in range(4):
        write_bootstrap(tmp_path, UUID, 1, checkpoint, RECORDS)
    assert [int(path.stem) for path in sorted(tmp_path.iterdir())] == [2, 3]


def test_nothing_is_left_of_one_that_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_bootstrap(tmp_path, UUID, 1, 5, ((n, bytes(1 // (2 - n))) for n in range(3)))
    assert list(tmp_path.iterdir()) == []


def test_a_brokers_own_snapshot_is_refused(tmp_path: Path) -> None:
    for number, entry in enumerate((b"\x93session", None)):
        writer = SnapshotWriter(tmp_path, number)
        if entry is not None:
            writer.add(entry)
        path = writer.commit()
        with pytest.raises(CorruptFile, match="a broker's own snapshot"):
            BootstrapFile(path)


@pytest.mark.parametrize("at", [10, 70, 90, 120, -5])
def test_a_flipped_bit_is_noticed(tmp_path: Path, at: int) -> None:
    path = write_bootstrap(tmp_path, UUID, 4, 99, RECORDS)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile):
        BootstrapFile(path)


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", 2)
    path = write_bootstrap(tmp_path, UUID, 4, 99, RECORDS)
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat, match="bootstrap version 2, this headrace reads up to 1"):
        BootstrapFile(path)
