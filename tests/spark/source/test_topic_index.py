"""Topic indexes: they find what a scan finds, fit one file only, and are never believed."""

from __future__ import annotations

import errno
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from headrace.journal.log import LogSettings
from headrace.journal.snapshot import SnapshotWriter
from headrace_spark.source import topic_index
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.reading import indexed, scanned, wanted_chunks
from headrace_spark.source.selection import Selection
from headrace_spark.source.topic_index import TopicIndex
from spark.conftest import Writer
from spark.journals import Made, message, mixed

RARE = Selection().with_topics(["rare"])


def records(topics: int = 20, count: int = 3000) -> Made:
    """Events and progress too; one topic that few messages have."""
    made = mixed(count // 3, 4)
    for n in range(count):
        made.add(message(n, topic="rare" if n % 97 == 0 else f"often/{n % topics}", payload=b"%d" % n))
    return made


def found(journal: LocalJournal, selection: Selection, cache: Path | None) -> list[int]:
    offsets = [
        int(offset)
        for chunk in wanted_chunks(journal, 0, journal.high_watermark(), selection, cache)
        for offset in chunk.offsets
    ]
    assert offsets == sorted(offsets)
    return offsets


def rare_offsets(journal: Writer) -> list[int]:
    return [row["journal_offset"] for row in journal.rows() if row["topic"] == "rare"]


@pytest.fixture
def reader(journal: Writer) -> LocalJournal:
    journal.write(records())
    return LocalJournal(journal.data_dir)


def test_the_first_read_makes_it_and_later_ones_use_it(
    reader: LocalJournal, journal: Writer, tmp_path: Path
) -> None:
    for _ in range(2):
        assert found(reader, RARE, tmp_path) == rare_offsets(journal)
        made = sorted((tmp_path / journal.uuid).iterdir())
        assert len(made) == len(reader.segments())
    whole = found(reader, RARE, None)
    assert len(whole) > 10 * len(rare_offsets(journal))
    many = Selection(topic_prefix="often/")
    assert set(found(reader, many, tmp_path)) >= {
        row["journal_offset"] for row in journal.rows() if row["topic"].startswith("often/")
    }


def test_records_by_the_index_are_the_records(reader: LocalJournal, tmp_path: Path) -> None:
    base = reader.segments()[-3].base_offset
    chunks = indexed(reader, base, RARE, tmp_path)
    assert chunks
    scan = next(scanned(reader, base, reader.segments()[-3].end_offset, Selection()))
    bodies = dict(zip(scan.offsets.tolist(), zip(scan.at, scan.lengths, strict=True), strict=True))
    for chunk in chunks:
        for i, offset in enumerate(chunk.offsets.tolist()):
            at, length = bodies[offset]
            assert chunk.body[chunk.at[i] : chunk.at[i] + length] == scan.body[at : at + length]
        assert set(chunk.epochs.tolist()) == {1}


def test_chunks_stay_small(
    reader: LocalJournal, journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(reader, RARE, tmp_path)
    monkeypatch.setattr(topic_index, "CHUNK_BYTES_MAX", 200)
    base = reader.segments()[-3].base_offset
    chunks = indexed(reader, base, RARE, tmp_path / journal.uuid)
    assert chunks
    assert max(len(chunk.body) for chunk in chunks) <= 400
    assert found(reader, RARE, tmp_path) == rare_offsets(journal)


def test_indexes_of_segments_that_are_gone_go_too(
    reader: LocalJournal, journal: Writer, tmp_path: Path
) -> None:
    gone = tmp_path / journal.uuid / f"{7:020d}-5f.topics"
    gone.parent.mkdir()
    gone.write_bytes(b"")
    found(reader, RARE, tmp_path)
    assert not gone.exists()


def test_a_damaged_index_is_made_again(reader: LocalJournal, journal: Writer, tmp_path: Path) -> None:
    found(reader, RARE, tmp_path)
    paths = sorted((tmp_path / journal.uuid).iterdir())
    for at in (5, 25, -3):
        data = bytearray(paths[0].read_bytes())
        data[at] ^= 0xFF
        paths[0].write_bytes(data)
        paths[1].write_bytes(b"HRTI")
        assert set(found(reader, RARE, tmp_path)) >= set(rare_offsets(journal))
        found(reader, RARE, tmp_path)
    assert found(reader, RARE, tmp_path) == rare_offsets(journal)


@pytest.mark.parametrize("zeros", [False, True], ids=["short", "zeros"])
def test_an_index_of_which_a_power_cut_has_left_a_part_loses_no_row(
    reader: LocalJournal, journal: Writer, tmp_path: Path, zeros: bool
) -> None:
    """It has its name, and its last bytes never came to the disk: the file is short, or zeros are in their place."""
    rare = rare_offsets(journal)
    base = reader.segments()[-3].base_offset
    wanted = [offset for offset in rare if base <= offset < reader.segments()[-3].end_offset]
    assert found(reader, RARE, tmp_path) == rare
    (path,) = (tmp_path / journal.uuid).glob(f"{base:020d}-*.topics")
    whole = path.read_bytes()
    index = TopicIndex.load(path)
    assert index is not None
    for kept in {*range(0, len(whole), 300), *range(index.entries_at, len(whole), 256), len(whole) - 1}:
        path.write_bytes(whole[:kept] + (bytes(len(whole) - kept) if zeros else b""))
        again = found(reader, RARE, tmp_path)
        assert set(again) >= set(rare), f"{kept} of {len(whole)} bytes are left"
        assert [offset for offset in found(reader, RARE, tmp_path) if offset in set(wanted)] == wanted
        assert path.read_bytes() == whole, "it is made again"


def test_an_entry_that_was_damaged_says_no_wrong_offset(
    reader: LocalJournal, journal: Writer, tmp_path: Path
) -> None:
    base = reader.segments()[-3].base_offset
    assert indexed(reader, base, RARE, tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    index = TopicIndex.load(path)
    assert index is not None
    whole = path.read_bytes()
    for field in range(0, 16, 4):
        data = bytearray(whole)
        for at in range(index.entries_at + field, len(data), 16):
            data[at] ^= 1
        path.write_bytes(data)
        assert indexed(reader, base, RARE, tmp_path / "cache") is None
        assert not path.exists()


def test_a_full_disk_costs_the_index_and_no_row(
    reader: LocalJournal, journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", full)
    assert set(found(reader, RARE, tmp_path)) >= set(rare_offsets(journal))
    assert list((tmp_path / journal.uuid).iterdir()) == []


def test_a_record_that_is_not_what_it_was_leads_to_a_scan(
    reader: LocalJournal, journal: Writer, tmp_path: Path
) -> None:
    base = reader.segments()[-3].base_offset
    assert indexed(reader, base, RARE, tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    index = TopicIndex.load(path)
    assert index is not None
    entries = bytearray(path.read_bytes())
    for at in range(index.entries_at + 12, len(entries), 16):  # the checksum of every entry
        entries[at] ^= 0xFF
    path.write_bytes(entries)
    assert indexed(reader, base, RARE, tmp_path / "cache") is None
    assert not path.exists()


def test_a_segment_that_compaction_rewrote_is_scanned(tmp_path: Path, journal: Writer) -> None:
    journal.write(records())
    with closing(journal.open(LogSettings(segment_bytes_max=16 << 10, retention_bytes=1))) as log:
        SnapshotWriter(log.directory, log.high_watermark).commit()
        log.set_floor(0)
        for segment in log.compactable():
            live = {o for o in rare_offsets(journal) if segment.base_offset <= o < segment.end_offset}
            log.adopt(log.rewrite_sparse(segment, live))
    reader = LocalJournal(journal.data_dir)
    assert indexed(reader, 0, RARE, tmp_path) is None
    assert set(found(reader, RARE, tmp_path)) >= set(rare_offsets(journal))


def test_an_index_fits_one_content_only(tmp_path: Path) -> None:
    """A journal that is put back from a file copy goes on otherwise, in segments of the same names, with the same uuid,
    creation times, sizes and end offsets. A reader has an index of one of them."""
    first = Writer(tmp_path / "first")
    first.write(records(count=100))
    second = Writer(tmp_path / "second")
    shutil.copytree(first.data_dir, second.data_dir)
    second.made.records += first.made.records
    cache = tmp_path / "cache"
    for rest, journal in enumerate((first, second)):
        went_on = Made()
        for n in range(2000):
            went_on.add(message(n, topic="rare" if n % 97 == rest else "often", payload=b"%5d" % n))
        journal.write(went_on)
    names = [{path.name for path in journal.data_dir.rglob("*.log")} for journal in (first, second)]
    assert names[0] == names[1]
    for journal in (first, second, first):
        assert found(LocalJournal(journal.data_dir), RARE, cache) == rare_offsets(journal)


def test_an_index_of_an_older_headrace_is_neither_used_nor_kept(
    reader: LocalJournal, journal: Writer, tmp_path: Path
) -> None:
    found(reader, RARE, tmp_path)
    (path, *_) = sorted((tmp_path / journal.uuid).iterdir())
    old = path.with_name(f"{path.name.rpartition('-')[0]}.topics")
    path.rename(old)
    assert found(reader, RARE, tmp_path) == rare_offsets(journal)
    assert path.exists()
    assert not old.exists()


def test_an_index_that_another_reader_removes_meanwhile_leads_to_a_scan(
    reader: LocalJournal, journal: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(reader, RARE, tmp_path)
    load = TopicIndex.load

    def removed(path: Path) -> TopicIndex | None:
        index = load(path)
        path.unlink()
        return index

    monkeypatch.setattr(TopicIndex, "load", removed)
    assert set(found(reader, RARE, tmp_path)) >= set(rare_offsets(journal))
