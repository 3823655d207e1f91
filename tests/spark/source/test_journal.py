"""The journal as the pipeline meets it: positions registered, moved and replaced."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.journal.backup import backup
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.restore import restore
from headrace.journal.snapshot import SnapshotWriter
from headrace.journal.voids import leave_out
from headrace_spark.base.errors import BadOption, DataLoss, ForeignOffset, JournalMissing
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.journal import (
    check_broker,
    commit,
    first_time_us,
    holds_last,
    open_journal,
    reaches,
    readable_from,
    register,
    registered_offset,
    require_history,
    require_same,
    time_before,
)
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.ranges import JournalOffset
from headrace_spark.source.reading import JournalPartition, all_chunks
from headrace_spark.source.source import BatchReader
from spark.conftest import Writer
from spark.journals import mixed


@pytest.fixture
def reader(journal: Writer) -> LogReader:
    journal.write(mixed(300))
    return open_journal(journal.data_dir)


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing, match="a broker that has been started once"):
        open_journal(tmp_path)


def test_history(reader: LogReader) -> None:
    require_history(reader, JournalOffset(reader.uuid, reader.epoch, 5))
    for foreign in (
        JournalOffset(reader.uuid, reader.epoch + 1, 5),
        JournalOffset("0" * 32, reader.epoch, 5),
    ):
        with pytest.raises(ForeignOffset, match="or a new checkpoint and consumer"):
            require_history(reader, foreign)


def test_a_position_that_the_journal_does_not_reach_is_none(reader: LogReader) -> None:
    require_history(reader, JournalOffset(reader.uuid, reader.epoch, 300))
    with pytest.raises(ForeignOffset, match=r"up to offset 301.*ends at 300.*a new checkpoint and consumer"):
        require_history(reader, JournalOffset(reader.uuid, reader.epoch, 301))
    ConsumerPosition.register(Path(reader.location), "ahead", reader.uuid, reader.epoch, 301)
    assert registered_offset(reader, "ahead") is None


def test_a_restored_journal_goes_on_where_all_that_was_read_is_there(journal: Writer, tmp_path: Path) -> None:
    """Its epoch has risen. What was cut is known by the epoch of the record that has come in its place."""
    journal.write(mixed(300))
    before = open_journal(journal.data_dir)
    backup(journal.data_dir, tmp_path / "backup")
    whole, cut = (
        restored(tmp_path / "backup", tmp_path / name, end) for name, end in (("a", None), ("b", 200))
    )
    for step in range(2):  # nothing is written yet; others are, at the offsets of what was cut
        end = JournalOffset(before.uuid, before.epoch, 300)
        newest = open_journal(whole.data_dir).epoch
        assert newest > before.epoch
        assert require_history(open_journal(whole.data_dir), end) == JournalOffset(before.uuid, newest, 300)
        for offset, is_there in ((1, True), (200, True), (201, False), (300, False)):
            found = open_journal(cut.data_dir)
            position = JournalOffset(before.uuid, before.epoch, offset)
            if is_there:
                register(found, "a", offset)
                commit(found, "a", position)
                assert registered_offset(found, "a") == offset
            else:
                with pytest.raises(ForeignOffset, match="or a new checkpoint and consumer"):
                    require_history(found, position)
                with pytest.raises(ForeignOffset):
                    commit(found, "a", position)
        newer = JournalOffset(before.uuid, newest + 1, 100)
        with pytest.raises(ForeignOffset):
            require_history(open_journal(whole.data_dir), newer)
        if not step:
            whole.write(mixed(50, 2))
            cut.write(mixed(150, 3))


def test_an_older_copy_that_was_put_back_and_has_grown_past_a_position_is_another_journal(
    journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its uuid and its epoch are the same; the records that were read are not."""
    journal.write(mixed(300))
    copy = tmp_path / "copy"
    shutil.copytree(journal.data_dir, copy)
    journal.write(mixed(50, 2))
    found = open_journal(journal.data_dir)
    times = {offset: time_before(found, offset) for offset in (0, 300, 320, 350)}
    assert times[0] is None
    put_back, others = Writer(copy), mixed(80, 3)
    put_back.made.records += journal.made.records[:300]
    for record in others.records:
        record.timestamp_us += 1_000_000
    put_back.write(others)
    older = open_journal(copy)
    assert (older.uuid, older.epoch) == (found.uuid, found.epoch)
    for offset, is_same in ((0, True), (300, True), (320, False), (350, False)):
        position = JournalOffset(found.uuid, found.epoch, offset, times[offset])
        require_same(found, position)
        require_same(older, replace(position, time_us=None))  # of an older headrace
        assert require_history(older, position) == position
        if is_same:
            require_same(older, position)
        else:
            with pytest.raises(ForeignOffset, match="put back as they were before"):
                require_same(older, position)
    monkeypatch.setattr(JournalReader, "complete_offset", lambda _self: 350)
    require_same(older, JournalOffset(found.uuid, found.epoch, 350, times[350]))  # it may have been compacted


def test_a_record_that_is_gone_has_no_time(reader: LogReader, journal: Writer) -> None:
    """What compaction or a repair has put in its place would look like that of another journal."""
    leave_out(DISK, journal.data_dir / "journal", reader.uuid, reader.epoch + 1, range(300, 310))
    SegmentedLog.open(journal.data_dir, LogSettings(), lambda _line: None).close()
    found = open_journal(journal.data_dir)
    assert found.high_watermark() == 310
    assert time_before(found, 300) is not None
    assert [time_before(found, offset) for offset in (301, 305, 310)] == [None] * 3


def test_of_an_older_epoch_nobody_can_tell_what_the_journal_has_let_go_of(
    journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write(mixed(300))
    backup(journal.data_dir, tmp_path / "backup")
    found = open_journal(restored(tmp_path / "backup", tmp_path / "a").data_dir)
    monkeypatch.setattr(JournalReader, "complete_offset", lambda _self: 200)
    assert require_history(found, JournalOffset(found.uuid, found.epoch - 1, 201)).epoch == found.epoch
    with pytest.raises(ForeignOffset):
        require_history(found, JournalOffset(found.uuid, found.epoch - 1, 200))


def restored(source: Path, data_dir: Path, end: int | None = None) -> Writer:
    """What a backup gives, to be written further."""
    manifest = restore(source, data_dir, end)
    writer = Writer(data_dir)
    writer.made.records = list(mixed(manifest.high_watermark).records)
    return writer


def test_retention(reader: LogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalReader, "complete_offset", lambda _self: 100)
    assert readable_from(reader, 100, True) == 100
    assert readable_from(reader, 20, False) == 100
    with pytest.raises(DataLoss, match="offsets 20 to 100 are gone"):
        readable_from(reader, 20, True)
    with pytest.raises(DataLoss, match=r"To go on behind them: pipeline\.job\.key=false$"):
        readable_from(reader, 20, True, "pipeline.job.key=false")


def test_what_compaction_has_passed_is_not_read_as_if_it_were_all(journal: Writer) -> None:
    """Its segments begin at offset 0 as ever, with some of their records left out."""
    small = LogSettings(segment_bytes_max=16 << 10, retention_bytes=1)
    journal.write(mixed(1200))
    with closing(journal.open(small)) as log:
        SnapshotWriter(log.directory, log.high_watermark).commit()
        log.set_floor(0)
        segment = log.compactable()[1]
        log.adopt(log.rewrite_sparse(segment, []))
    reader = open_journal(journal.data_dir)
    assert (reader.start_offset(), reader.complete_offset()) == (0, segment.end_offset)
    with pytest.raises(DataLoss, match=f"offsets 0 to {segment.end_offset} are gone, or not complete"):
        readable_from(reader, 0, True)
    location = {"path": str(journal.data_dir)}
    whole = BatchReader(SourceOptions.parse(location), MESSAGES)
    starts = [part.start for part in whole.partitions() if isinstance(part, JournalPartition)]
    assert min(starts) == segment.end_offset
    explicit = BatchReader(SourceOptions.parse(location | {"startingOffsets": "0"}), MESSAGES)
    with pytest.raises(DataLoss, match="not complete"):
        explicit.partitions()
    part = JournalPartition(reader.location, reader.uuid, reader.epoch, 0, 1200)
    with pytest.raises(DataLoss, match="not complete"):
        list(all_chunks(part, ""))


def test_whether_the_journal_still_has_what_a_table_has(
    reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert holds_last(reader, 300, reader.epoch)
    assert holds_last(reader, 1, reader.epoch)
    assert not holds_last(reader, 301, reader.epoch)
    assert not holds_last(reader, 9999, reader.epoch)
    assert not holds_last(reader, 300, reader.epoch + 1)
    monkeypatch.setattr(JournalReader, "complete_offset", lambda _self: 100)
    assert holds_last(reader, 100, 77)
    assert not holds_last(reader, 101, 77)


def test_the_time_of_the_first_record_from_an_offset_on(
    journal: Writer, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mixed(20, 5)
    journal.write(made, records_per_batch=1)
    assert first_time_us(reader, 305) == made.records[5].timestamp_us
    scan = JournalReader.scan
    monkeypatch.setattr(  # the first ones are gone by compaction
        JournalReader,
        "scan",
        lambda self, start, end: scan(self, max(310, start), end) if end > 310 else iter(()),
    )
    assert first_time_us(reader, 305) == made.records[10].timestamp_us
    assert first_time_us(reader, 320) is None
    assert first_time_us(reader, 999) is None


def test_whether_what_was_read_is_still_the_journal_s(
    reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch says when it was read; the record before it may have been written in an older one."""
    assert reaches(reader, 300, reader.epoch)
    assert reaches(reader, 300, reader.epoch + 1)
    assert not reaches(reader, 301, reader.epoch)
    assert not reaches(reader, 300, reader.epoch - 1)
    monkeypatch.setattr(JournalReader, "complete_offset", lambda _self: 100)
    assert reaches(reader, 100, 0)
    assert not reaches(reader, 101, -1)


def test_registering_never_leaves_the_position_ahead(reader: LogReader) -> None:
    assert registered_offset(reader, "c") is None
    register(reader, "c", 50)
    register(reader, "c", 70)
    assert registered_offset(reader, "c") == 50
    register(reader, "c", 10)
    assert registered_offset(reader, "c") == 10


def test_a_position_of_another_journal_is_replaced(reader: LogReader) -> None:
    ConsumerPosition.register(Path(reader.location), "c", "0" * 32, 9, 5)
    assert registered_offset(reader, "c") is None
    register(reader, "c", 40)
    assert registered_offset(reader, "c") == 40


def test_commits_move_forward_and_register_again_what_was_dropped(reader: LogReader) -> None:
    register(reader, "c", 0)
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 30))
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 20))
    assert registered_offset(reader, "c") == 30
    ConsumerPosition.remove(Path(reader.location), "c")
    commit(reader, "c", JournalOffset(reader.uuid, reader.epoch, 40))
    assert registered_offset(reader, "c") == 40


@pytest.mark.parametrize("wrong", ["tcp://h:1", "headrace://h?requests=0", "headrace://h/path", "/data"])
def test_a_broker_that_is_none_is_named_by_its_key(wrong: str) -> None:
    with pytest.raises(BadOption, match=r"option pipeline\.journal='") as refused:
        check_broker(wrong)
    assert refused.value.exit_code == 2
    check_broker("headraces://h:1?ca=file&requests=3")
