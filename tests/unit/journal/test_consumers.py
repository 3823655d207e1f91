"""Positions of registered consumers."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import ConsumerTaken, CorruptFile, UnknownConsumer

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
    with pytest.raises(CorruptFile, match=r"not a consumer position\. Remove it: who reads under this name"):
        ConsumerPosition.list(tmp_path)


MINE, YOURS = "archive:1 in /lake/messages", "archive:2 in /other/messages"


def test_a_consumer_belongs_to_the_first_who_comes_until_it_is_handed_over(tmp_path: Path) -> None:
    ConsumerPosition.register(tmp_path, "archive", UUID, 1, 10)  # by a headrace that knew no owners
    ConsumerPosition.commit_or_register(tmp_path, "archive", UUID, 1, 20, owner=MINE)
    for owner in (YOURS, ""):
        with pytest.raises(
            ConsumerTaken, match=r"'archive' belongs to archive:1 in /lake.*hand-over archive"
        ):
            ConsumerPosition.commit_or_register(tmp_path, "archive", UUID, 1, 30, owner=owner)
        with pytest.raises(ConsumerTaken, match="belongs to archive:1"):
            ConsumerPosition.register_at(tmp_path, "archive", UUID, 1, 5, owner=owner)
    assert ConsumerPosition.read(tmp_path, "archive").offset == 20
    moved = "archive:1 in /moved/messages"
    assert ConsumerPosition.register_at(tmp_path, "archive", UUID, 1, 5, owner=moved).owner == moved
    assert ConsumerPosition.hand_over(tmp_path, "archive").owner == moved
    assert ConsumerPosition.register_at(tmp_path, "archive", UUID, 1, 7, owner=YOURS).offset == 5
    assert ConsumerPosition.read(tmp_path, "archive").owner == YOURS
    with pytest.raises(UnknownConsumer):
        ConsumerPosition.hand_over(tmp_path, "nobody")


def test_an_owner_outlives_commits_and_renewals_and_readers_of_before_see_the_position(
    tmp_path: Path,
) -> None:
    ConsumerPosition.register_at(tmp_path, "a", UUID, 1, 10, owner=MINE)
    ConsumerPosition.commit(tmp_path, "a", UUID, 1, 20)
    ConsumerPosition.renew(tmp_path, "a")
    found = ConsumerPosition.read(tmp_path, "a")
    assert (found.offset, found.owner) == (20, MINE)
    path = tmp_path / "consumers" / "a"
    packed = path.read_bytes()
    path.write_bytes(packed[:64])
    assert ConsumerPosition.read(tmp_path, "a").owner == ""
    for at in range(64, len(packed)):
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :])
        with pytest.raises(CorruptFile, match="owner of the consumer is damaged"):
            ConsumerPosition.read(tmp_path, "a")
