"""How far behind the end of a journal an offset is."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from headrace_spark.base.progress import Progress
from headrace_spark.lake.job_status import Places, job_statuses
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.status import pipeline_status
from headrace_spark.source.journal import open_journal, register
from headrace_spark.source.lag import JournalLag, lag_of, records_left
from headrace_spark.source.local import LocalJournal
from spark.conftest import Shards, Writer, settings_of
from spark.journals import mixed
from spark.lake.test_lake import append
from spark.test_source_stream import drop_what_nobody_needs


def test_records_bytes_and_the_age_of_the_oldest(journal: Writer) -> None:
    made = mixed(200)
    journal.write(made, records_per_batch=1)
    reader = LocalJournal(journal.data_dir)
    since_s = made.records[150].timestamp_us / 1e6
    lag = lag_of(reader, 150, since_s + 60)
    assert (lag.messages, round(lag.seconds)) == (50, 60)
    assert 0 < lag.bytes < lag_of(reader, 0, since_s).bytes
    assert lag_of(reader, 200, since_s) == lag_of(reader, 900, since_s)
    assert lag_of(reader, 200, since_s).seconds == 0
    assert lag_of(reader, 150, since_s - 5).seconds == 0  # a clock that was set back


def test_a_job_is_measured_by_its_settings(journal: Writer) -> None:
    journal.write(mixed(30))
    measure = JournalLag(settings_of("archive", journal.data_dir, journal.data_dir / "lake"))
    at = Progress(0, 10, 0, 0.0, ends={journal.uuid: 10})
    assert measure(at).messages == 20
    journal.write(mixed(5))
    assert measure(at).messages == 25


def test_of_several_shards_it_is_the_sum_and_the_oldest(shards: Shards) -> None:
    ends = {writer.uuid: len(writer.made.records) - number for number, writer in enumerate(shards.writers)}
    measure = JournalLag(settings_of("archive", shards.data_dir, shards.data_dir / "lake"))
    found = measure(Progress(0, sum(ends.values()), 0, 0.0, ends=ends))
    assert found.messages == 0 + 1 + 2
    assert found.seconds > 0
    assert measure(Progress(0, 0, 0, 0.0)).messages == sum(len(w.made.records) for w in shards.writers)


def lags(journal: Writer, lake: Lake) -> set[int | None]:
    """The lag of everything that tells one, the journal's consumer and table and the job `archive` among them."""
    reader = open_journal(journal.data_dir)
    status = pipeline_status([reader], lake)
    jobs = job_statuses(Places(lake, [reader], (), 0.0))
    table = [] if status.table is None else [status.table.lag]
    return {*table, *(one.lag for one in status.consumers), *(job.lag for job in jobs)}


def test_what_retention_has_taken_and_what_a_shard_keeps_counts_for_nothing(
    journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a journal that the lake has nothing of, has less of than is left, and has all of: never below zero."""
    made, lake = mixed(900), Lake(tmp_path / "lake")
    append(lake, mixed(10), 0, 1)  # of another journal
    journal.write(made)
    assert lags(journal, lake) == {900}
    begins = drop_what_nobody_needs(journal)
    assert 0 < begins < 900
    measure = JournalLag(settings_of("archive", journal.data_dir, lake.root))
    for first in (begins, 700):  # what is left behind retention, and what `reshard` says of a shard
        monkeypatch.setattr(JournalReader, "complete_offset", lambda _self, first=first: first)
        assert lags(journal, lake) == {900 - first}
        assert records_left(open_journal(journal.data_dir), 0) == 900 - first
        assert measure(Progress(0, 0, 0, 0.0)).messages == 900 - first
    for done, left in ((100, 200), (750, 150), (900, 0), (905, 0)):
        append(lake, mixed(10), 0, journal.epoch, uuid=journal.uuid, archived=done)
        register(open_journal(journal.data_dir), f"at-{done}", done)
        assert lags(journal, lake) == {left}, done
        ConsumerPosition.remove(journal.data_dir, f"at-{done}")
