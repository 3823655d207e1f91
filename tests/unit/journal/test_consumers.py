"""Positions of registered consumers."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import CorruptFile, UnknownConsumer

UUID = str(uuid4())


def test_register_commit_read(tmp_path: Path) -> None:
    first = ConsumerPosition.register(tmp_path, "archive", UUID, 1, 10, now_us=5)
    assert ConsumerPosition.read(tmp_path, "archive") == first
    assert (first.offset, first.updated_us, first.registered_us) == (10, 5, 5)
    moved = ConsumerPosition.commit(tmp_path, "archive", UUID, 1, 30, now_us=7)
    assert ConsumerPosition.read(tmp_path, "archive") == moved
    assert (moved.offset, moved.updated_us, moved.registered_us) == (30, 7, 5)


def test_registering_again_keeps_the_position(tmp_path: Path) -> None:
    ConsumerPosition.register(tmp_path, "archive", UUID, 1, 10)
    assert ConsumerPosition.register(tmp_path, "archive", UUID, 1, 0).offset == 10


def test_a_position_never_moves_back_within_an_epoch(tmp_path: Path) -> None:
    ConsumerPosition.register(tmp_path, "a", UUID, 1, 10)
    assert ConsumerPosition.commit(tmp_path, "a", UUID, 1, 5).offset == 10
    assert ConsumerPosition.commit(tmp_path, "a", UUID, 2, 5).offset == 5


def test_list_and_remove(tmp_path: Path) -> None:
    assert ConsumerPosition.list(tmp_path) == []
    for name in ("b", "a"):
        ConsumerPosition.register(tmp_path, name, UUID, 1, 0)
    (tmp_path / "consumers" / "a.1-1.tmp").write_bytes(b"left by a crash")
    assert [position.name for position in ConsumerPosition.list(tmp_path)] == ["a", "b"]
    ConsumerPosition.remove(tmp_path, "a")
    assert [position.name for position in ConsumerPosition.list(tmp_path)] == ["b"]
    for call in (ConsumerPosition.remove, ConsumerPosition.read):
        with pytest.raises(UnknownConsumer):
            call(tmp_path, "a")
    with pytest.raises(UnknownConsumer):
        ConsumerPosition.commit(tmp_path, "a", UUID, 1, 0)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a.tmp", "ä", "x" * 201])
def test_names_are_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="only letters"):
        ConsumerPosition.register(tmp_path, name, UUID, 1, 0)


def test_damage_is_noticed(tmp_path: Path) -> None:
    ConsumerPosition.register(tmp_path, "a", UUID, 1, 10)
    path = tmp_path / "consumers" / "a"
    data = bytearray(path.read_bytes())
    data[35] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="damaged"):
        ConsumerPosition.read(tmp_path, "a")
    path.write_bytes(b"short")
    with pytest.raises(CorruptFile):
        ConsumerPosition.list(tmp_path)
