"""The journal's size and what limits it, and how far behind its consumers are."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.log import SegmentedLog
from headrace.services.journal_metrics import JournalCollector, JournalFigures, Limits
from unit.journal.log_at import Started

LIMITS = Limits(4000, 16000, 50)
OTHER = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def log(tmp_path: Path) -> SegmentedLog:
    started = Started(tmp_path)
    for _ in range(10):
        started.append(b"x" * 1000)
    return started.log


def samples(figures: JournalFigures) -> dict[str, float]:
    """Name, and the consumer's in braces -> value."""
    found = {}
    for family in JournalCollector([figures], LIMITS).collect():
        for sample in family.samples:
            consumer = sample.labels.get("consumer")
            found[sample.name + (f"{{{consumer}}}" if consumer else "")] = sample.value
    return found


def test_sizes_and_limits(log: SegmentedLog) -> None:
    figures = JournalFigures(log)
    figures.refresh()
    found = samples(figures)
    assert found["headrace_journal_size_bytes"] == log.size_bytes > 10_000
    assert found["headrace_journal_segments"] > 1
    assert found["headrace_journal_start_offset"] == 0
    assert found["headrace_journal_retention_limit_bytes"] == 4000
    assert found["headrace_journal_consumer_retention_limit_bytes"] == 16000
    assert found["headrace_journal_reserve_bytes"] == 50
    assert 0 < found["headrace_disk_free_bytes"] <= found["headrace_disk_size_bytes"]
    log.close()


def test_the_lag_of_a_consumer(log: SegmentedLog) -> None:
    ConsumerPosition.register(log.data_dir, "archive", log.uuid, log.epoch, 7)
    figures = JournalFigures(log)
    figures.refresh()
    found = samples(figures)
    assert found["headrace_consumer_offset{archive}"] == 7
    assert found["headrace_consumer_lag_records{archive}"] == 3
    assert 3000 < found["headrace_consumer_lag_bytes{archive}"] < 4000
    assert 0 <= found["headrace_consumer_silent_seconds{archive}"] < 60
    ConsumerPosition.commit(log.data_dir, "archive", log.uuid, log.epoch, 10)
    figures.refresh()
    found = samples(figures)
    assert found["headrace_consumer_lag_records{archive}"] == 0
    assert found["headrace_consumer_lag_bytes{archive}"] == 0
    log.close()


def test_who_does_not_count_or_cannot_be_read_is_left_out(log: SegmentedLog) -> None:
    ConsumerPosition.register(log.data_dir, "foreign", OTHER, 1, 7)
    ConsumerPosition.register(log.data_dir, "gone", log.uuid, 1, 7, now_us=1, lease_s=1)
    (log.data_dir / "consumers" / "damaged").write_bytes(b"x" * 64)
    ConsumerPosition.register(log.data_dir, "ours", log.uuid, 1, 7)
    figures = JournalFigures(log)
    figures.refresh()
    assert [lag.name for lag in figures.consumers] == ["ours"]
    log.close()


def test_before_anybody_has_asked_the_disk_nothing_is_said_of_it(log: SegmentedLog) -> None:
    names = set(samples(JournalFigures(log)))
    assert not names & {"headrace_journal_size_bytes", "headrace_disk_free_bytes"}
    log.close()
