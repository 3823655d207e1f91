"""How far behind the end of a journal an offset is."""

from __future__ import annotations

from headrace_spark.base.progress import Progress
from headrace_spark.source.lag import JournalLag, lag_of
from headrace_spark.source.local import LocalJournal
from spark.conftest import Shards, Writer, settings_of
from spark.journals import mixed


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
