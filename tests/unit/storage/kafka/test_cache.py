"""The cache of a journal in Kafka: what it holds after a crash, what it throws away, and what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka import cache as module
from headrace.storage.kafka.cache import ENTRY_HEADER_SIZE, FILE_HEADER_SIZE, Cache, CacheDamaged, boot_id
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.log_fold import Standing

UUID = bytes(range(16))
BOOT = b"b" * 16
EPOCH = Epoch(0, b"e" * 16)


def batch(base: int, count: int = 2, body: bytes = b"x" * 100) -> bytes:
    return pack_batch_header(seed_of(UUID), body, base, count, 0, 0, 0, 0) + body


def standing(next_offset: int, tail: int = 9) -> Standing:
    return Standing(tail, EPOCH, next_offset, b"how the record begins")


def opened(path: Path, uuid: bytes = UUID, boot: bytes = BOOT) -> Cache:
    return Cache(path, uuid, boot=boot)


def filled(path: Path, batches: int, body: bytes = b"x" * 100) -> Cache:
    cache = opened(path)
    for number in range(batches):
        cache.append(batch(2 * number, body=body), standing(2 * number + 2, number + 1))
    return cache


def test_it_finds_what_it_had_and_where_a_fold_stood(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    cache = opened(tmp_path)
    assert cache.standing == standing(10, 5)
    assert (cache.start_offset, cache.next_offset) == (0, 10)
    assert [found.base_offset for found in cache.scan(0)] == [0, 2, 4, 6, 8]
    assert [found.base_offset for found in cache.scan(3, 6)] == [2, 4]
    assert cache.read_batch(7).body == b"x" * 100
    cache.append(batch(10), standing(12, 6))
    assert cache.read_batch(11).base_offset == 10


def test_a_new_one_has_nothing_and_may_begin_anywhere(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    assert cache.standing is None
    assert list(cache.scan(0)) == []
    cache.append(batch(40), standing(42))
    assert (cache.start_offset, cache.next_offset) == (40, 42)
    with pytest.raises(OffsetOutOfRange):
        cache.read_batch(39)
    with pytest.raises(OffsetOutOfRange):
        cache.read_batch(42)


def test_a_gap_is_refused(tmp_path: Path) -> None:
    cache = filled(tmp_path, 1)
    with pytest.raises(ValueError, match="2 comes next"):
        cache.append(batch(4), standing(6))


@pytest.mark.parametrize("cut", [1, 50, 100, 150, ENTRY_HEADER_SIZE + 150])
def test_an_entry_that_was_written_in_part_is_not_there(tmp_path: Path, cut: int) -> None:
    filled(tmp_path, 3).close()
    (path,) = tmp_path.glob("*.cache")
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    cache = opened(tmp_path)
    assert cache.standing == standing(4, 2)
    cache.append(batch(4), standing(6, 3))
    cache.close()
    assert [found.base_offset for found in opened(tmp_path).scan(0)] == [0, 2, 4]


def test_zeros_behind_the_end_are_no_entry(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    (path,) = tmp_path.glob("*.cache")
    path.write_bytes(path.read_bytes() + bytes(500))
    assert opened(tmp_path).next_offset == 4


def test_another_journal_or_another_boot_begins_with_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    assert opened(tmp_path, uuid=bytes(16)).standing is None
    filled(tmp_path, 2).close()
    assert opened(tmp_path, boot=b"c" * 16).standing is None
    assert not list(tmp_path.glob("*.cache"))


def test_the_boot_of_this_machine_has_a_name() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16


def test_many_files_are_one_journal_and_the_oldest_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 4096)
    cache = filled(tmp_path, 100)
    files = len(list(tmp_path.glob("*.cache")))
    assert files > 5
    cache.close()
    cache = opened(tmp_path)
    assert [found.base_offset for found in cache.scan(0)] == list(range(0, 200, 2))
    assert [found.base_offset for found in cache.scan(77, 90)] == list(range(76, 90, 2))
    everything = cache.bytes_from(0)
    cache.drop_below(100)
    assert 0 < cache.start_offset <= 100
    assert cache.bytes_from(0) < everything
    assert cache.read_batch(100).base_offset == 100
    cache.drop_below(10_000)
    assert len(list(tmp_path.glob("*.cache"))) == 1
    cache.close()
    assert opened(tmp_path).next_offset == 200


def test_a_file_that_is_missing_in_the_middle_makes_it_useless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 1024)
    filled(tmp_path, 40).close()
    sorted(tmp_path.glob("*.cache"))[2].unlink()
    assert opened(tmp_path).standing is None


def test_large_batches_are_found_through_the_index(tmp_path: Path) -> None:
    cache = filled(tmp_path, 12, body=b"y" * 30_000)
    for offset in (0, 5, 11, 16, 23):
        assert cache.read_batch(offset).base_offset == offset - offset % 2


def test_damage_is_no_fact_about_the_record(tmp_path: Path) -> None:
    """Kafka has it: whoever asks waits, and whoever opens the cache next has it read from there."""
    filled(tmp_path, 3).close()
    (path,) = tmp_path.glob("*.cache")
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_SIZE + ENTRY_HEADER_SIZE + 60] ^= 1
    path.write_bytes(data)
    cache = opened(tmp_path)
    with pytest.raises(CacheDamaged) as error:
        cache.read_batch(0)
    assert error.value.retry_helps
    assert cache.read_batch(2).base_offset == 2
    cache.close()
    assert opened(tmp_path).standing is None


def of_many_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of six batches with two in each file."""
    monkeypatch.setattr(module, "FILE_BYTES", 400)
    return filled(path, 6)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_somebody_removes_is_no_fact_about_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cache = of_many_files(tmp_path, monkeypatch)
    sorted(tmp_path.glob("*.cache"))[number].unlink()
    with pytest.raises(CacheDamaged):
        cache.read_batch(4 * number)
    cache.close()
    assert opened(tmp_path).standing is None


def test_the_oldest_file_is_missed_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_many_files(tmp_path, monkeypatch).close()
    min(tmp_path.glob("*.cache")).unlink()
    assert opened(tmp_path).standing is None


def test_a_file_that_nobody_needs_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = of_many_files(tmp_path, monkeypatch)
    cache.drop_below(5)
    cache.close()
    again = opened(tmp_path)
    assert (again.start_offset, again.next_offset) == (4, 12)
    assert again.read_batch(4).base_offset == 4


def test_what_was_thrown_away_is_gone_from_the_disk(tmp_path: Path) -> None:
    cache = filled(tmp_path, 3)
    cache.clear()
    assert (cache.standing, cache.start_offset, cache.next_offset) == (None, 0, 0)
    cache.append(batch(6), standing(8))
    assert [found.base_offset for found in cache.scan(6)] == [6]
    cache.close()
    assert opened(tmp_path).start_offset == 6
