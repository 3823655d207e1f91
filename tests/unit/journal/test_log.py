"""The log from outside: append, read, scan, retention, locking, closing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.diagnosis import diagnose
from headrace.journal.disk import Disk
from headrace.journal.errors import JournalLocked, OffsetOutOfRange
from headrace.journal.log import LogSettings
from headrace.journal.snapshot import SnapshotWriter
from unit.journal.log_at import SMALL, Started, filled, opened

KILOBYTE = b"k" * 1000


def test_offsets_count_records(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert [log.append(b"x", count, 1, 1) for count in (1, 3, 2)] == [0, 1, 4]
    assert log.next_offset == 6
    assert log.high_watermark == 0
    log.close()
    assert log.high_watermark == 6


def test_it_is_the_same_journal_after_reopening(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(b"a", 2, 1, 1)
    log.close()
    again = opened(tmp_path)
    assert (again.uuid, again.epoch) == (log.uuid, 1)
    assert (again.start_offset, again.high_watermark, again.next_offset) == (0, 2, 2)
    assert again.append(b"b", 1, 1, 1) == 2
    again.close()


def test_durable_offsets_are_said_in_order(tmp_path: Path) -> None:
    started = Started(tmp_path)
    for i in range(20):
        started.append(b"%d" % i)
    started.log.close()
    offsets = [said for said in started.said if isinstance(said, int)]
    assert offsets == sorted(offsets)
    assert started.said[-1] == 20


@pytest.mark.parametrize("durability", ["fsync", "os", "none"])
def test_what_is_acknowledged_can_be_read(tmp_path: Path, durability: str) -> None:
    started = Started(tmp_path, replace(SMALL, durability=durability))
    for i in range(200):
        offset = started.append(b"%d" % i * 20, 2)
        batch = started.log.read_batch(offset + 1)
        assert (batch.base_offset, batch.count, batch.body) == (offset, 2, b"%d" % i * 20)
    started.log.close()


def test_scan_gives_the_batches_that_hold_the_offsets(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for i in range(10):
        log.append(b"%d" % i, 3, 1, 1)
    log.close()
    log = opened(tmp_path)
    assert [batch.body for batch in log.scan(4, 8)] == [b"1", b"2"]
    assert [batch.base_offset for batch in log.scan(0)] == list(range(0, 30, 3))
    assert list(log.scan(30)) == []
    assert list(log.scan(5, 5)) == []
    for offset in (-1, 31):
        with pytest.raises(OffsetOutOfRange):
            log.scan(offset)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read_batch(30)
    assert (caught.value.start_offset, caught.value.end_offset) == (0, 30)
    log.close()


def test_every_offset_across_segments_can_be_read(tmp_path: Path) -> None:
    bodies = [b"%d" % i * (1 + i * 37 % 200) for i in range(150)]
    filled(tmp_path, bodies)
    log = opened(tmp_path)
    assert len(list((tmp_path / "journal").glob("*.log"))) > 5
    for offset, body in enumerate(bodies):
        assert log.read_batch(offset).body == body
        assert next(log.scan(offset)).body == body
    log.close()


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    bodies = [b"small", b"L" * 20_000, b"small again"]
    filled(tmp_path, bodies)
    log = opened(tmp_path)
    assert [batch.body for batch in log.scan(0)] == bodies
    log.close()


def test_an_old_segment_is_finished_although_it_is_not_full(tmp_path: Path) -> None:
    filled(tmp_path, [b"a"], replace(SMALL, segment_s_max=10))
    started = Started(tmp_path, replace(SMALL, segment_s_max=10))
    started.append(b"b", time_us=60_000_000)
    started.log.close()
    assert len(list((tmp_path / "journal").glob("*.log"))) == 2


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(JournalLocked, match="another process"):
        opened(tmp_path)
    log.close()
    log.close()
    opened(tmp_path).close()


def test_a_clean_stop_leaves_files_without_a_preallocated_rest(tmp_path: Path) -> None:
    filled(tmp_path, [b"a"])
    assert (tmp_path / "journal" / f"{0:020d}.log").stat().st_size == 64 + 57 + 64


def test_the_journal_of_a_shard_stays_one_that_older_brokers_refuse(tmp_path: Path) -> None:
    versions = []
    for streams in (False, True, False):
        log = opened(tmp_path, replace(SMALL, streams=streams))
        log.close()
        versions.append((tmp_path / "watermark").read_bytes()[52])
    assert versions == [1, 2, 2]


def test_retention_waits_for_the_floor(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 20)
    log = opened(tmp_path, replace(SMALL, retention_bytes=8_000))
    assert log.apply_retention() == []
    log.set_floor(7)
    dropped = log.apply_retention()
    assert len(dropped) == 2
    assert "offsets 0 up to 3" in dropped[0]
    assert log.start_offset == 6
    with pytest.raises(OffsetOutOfRange):
        log.read_batch(5)
    log.set_floor(20)
    log.apply_retention()
    assert log.size_bytes <= 8_000
    left = log.start_offset
    log.close()
    again = opened(tmp_path)
    assert again.start_offset == left
    assert len(list(again.scan(left))) == 20 - left
    again.close()


def test_retention_waits_for_a_consumer_and_warns(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 20)
    lines: list[str] = []
    limits = replace(SMALL, retention_bytes=5_000, consumer_retention_bytes=20_000)
    log = opened(tmp_path, limits, lines.append)
    log.set_floor(20)
    ConsumerPosition.register(tmp_path, "spark", log.uuid, log.epoch, 4)
    assert len(log.apply_retention()) == 1
    assert log.start_offset == 3
    log.apply_retention()
    assert len([line for line in lines if "'spark'" in line]) == 1
    ConsumerPosition.commit(tmp_path, "spark", log.uuid, log.epoch, 20)
    log.apply_retention()
    assert log.size_bytes <= 5_000
    log.close()


def test_retention_keeps_what_the_older_snapshot_needs(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 20)
    log = opened(tmp_path, replace(SMALL, retention_bytes=0))
    for position in (7, 19):
        SnapshotWriter(log.directory, position).commit()
    log.set_floor(19)
    log.apply_retention()
    assert log.start_offset == 6
    log.close()


def test_nothing_is_dropped_while_a_consumer_file_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 20)
    lines: list[str] = []
    log = opened(tmp_path, replace(SMALL, retention_bytes=5_000), lines.append)
    log.set_floor(20)
    (tmp_path / "consumers").mkdir()
    (tmp_path / "consumers" / "broken").write_bytes(b"?")
    assert log.apply_retention() == []
    assert "broken" in lines[-1]
    log.close()


@pytest.mark.parametrize(
    "bad", [{"durability": "maybe"}, {"segment_bytes_max": 100}, {"segment_bytes_max": 1 << 32}]
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LogSettings(**bad)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    lives=st.lists(
        st.lists(st.tuples(st.binary(max_size=600), st.integers(1, 5)), max_size=20), min_size=1, max_size=4
    )
)
def test_whatever_was_appended_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[tuple[bytes, int]]]
) -> None:
    data_dir = tmp_path_factory.mktemp("log")
    expected: list[tuple[int, int, bytes]] = []
    for appends in lives:
        log = opened(data_dir)
        for body, count in appends:
            expected.append((log.append(body, count, 1, 1), count, body))
        log.close()
        log = opened(data_dir)
        assert [(batch.base_offset, batch.count, batch.body) for batch in log.scan(0)] == expected
        for base, count, body in expected:
            assert log.read_batch(base + count - 1).body == body
        log.close()


def test_how_much_lies_behind_an_offset(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 10)
    log = opened(tmp_path)
    records, size = log.behind(4)
    assert records == 6
    assert 6000 < size < 7000
    assert log.behind(10) == (0, 0)
    assert log.behind(11) == (0, 0)
    assert log.behind(-1)[0] == 10
    log.close()


def test_each_write_with_its_sync_is_timed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    took: list[float] = []
    log.append(KILOBYTE, 1, 1, 1)
    log.start(lambda _: None, lambda _: None, on_synced=took.append)
    log.close()
    assert len(took) == 1
    assert 0 < took[0] < 30


class _Beside(Disk):
    """Before a look at the names of the segments, `act` is called once."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act: Callable[[], object] | None = act

    def names(self, directory: Path) -> list[str]:
        act, self.act = self.act, None
        if act and directory.name == "journal":
            act()
        elif act:
            self.act = act
        return super().names(directory)


def test_retention_beside_a_verification_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path, [KILOBYTE] * 20)
    log = opened(tmp_path, replace(SMALL, retention_bytes=8_000))
    for position in (7, 19):
        SnapshotWriter(log.directory, position).commit()
    log.set_floor(19)
    report = diagnose(tmp_path, _Beside(log.apply_retention))
    assert log.start_offset > 0
    assert report.ok, report.lines()
    log.close()
