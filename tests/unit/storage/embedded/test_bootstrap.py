"""A data directory from a bootstrap snapshot: all of it or nothing, and never over another state."""

from __future__ import annotations

from pathlib import Path

import pytest
from librt.strings import BytesWriter

from harness import START_US, Harness
from headrace.core.state.compacted import records
from headrace.journal.bootstrap_file import write_bootstrap
from headrace.journal.errors import CorruptFile
from headrace.services.state import lines
from headrace.storage.embedded import bootstrap as module
from headrace.storage.embedded.bootstrap import DataDirNotEmpty, bootstrap
from headrace.storage.embedded.recovery import folded

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    for number in range(3):
        client = made.client(f"c{number}", version=5)
        client.subscribe(f"t/{number}")
        client.publish("kept", b"%d" % number, retain=True)
    return made


def snapshot(harness: Harness, folder: Path) -> Path:
    found = []
    for offset, record in enumerate(records(harness.broker.fold, START_US)):
        body = BytesWriter()
        record.encode_into(body)
        found.append((offset, body.getvalue()))
    return write_bootstrap(folder, UUID, 1, 50, found)


def quietly(line: str) -> None:
    raise AssertionError(line)


def test_the_state_is_the_same(harness: Harness, tmp_path: Path) -> None:
    assert bootstrap(snapshot(harness, tmp_path), tmp_path / "data", quietly) == 7
    assert lines(folded(tmp_path / "data")) == lines(harness.broker.fold)
    assert not (tmp_path / "data" / "bootstrap.tmp").exists()


def test_a_data_directory_with_anything_in_it_is_refused_and_untouched(
    harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "watermark").write_bytes(b"x")
    with pytest.raises(
        DataDirNotEmpty, match="is not empty: --bootstrap is for a broker that has no state yet"
    ):
        bootstrap(snapshot(harness, tmp_path), tmp_path / "data", quietly)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["watermark"]


def test_a_start_that_was_interrupted_is_begun_again(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_move_up", pulled)
    with pytest.raises(KeyboardInterrupt):
        bootstrap(snapshot(harness, tmp_path), tmp_path / "data", quietly)
    monkeypatch.undo()
    bootstrap(snapshot(harness, tmp_path), tmp_path / "data", quietly)
    assert lines(folded(tmp_path / "data")) == lines(harness.broker.fold)


@pytest.mark.parametrize("record", [b"", b"garbage", b"\x0d\x00\x00\x00\x02\x02" + bytes(10) + b"\x01"])
def test_records_that_are_none_are_refused(tmp_path: Path, record: bytes) -> None:
    path = write_bootstrap(tmp_path, UUID, 1, 50, [(0, record)])
    with pytest.raises(CorruptFile, match="a record in it cannot be read"):
        bootstrap(path, tmp_path / "data", quietly)
    assert not (tmp_path / "data").exists()
