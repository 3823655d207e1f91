"""Opening: what is evidence, what is cut, which epoch follows. The faults folder has the storms; here are the rules."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, CorruptJournal
from headrace.journal.log import SegmentedLog
from headrace.journal.reader import JournalReader
from headrace.journal.snapshot import SnapshotWriter, positions
from headrace.journal.watermark import read_state
from unit.journal.log_at import SMALL, Started, filled, opened, silent


def killed_copy(tmp_path: Path, *bodies: bytes) -> Path:
    """The files of a log that is still open: what kill -9 leaves."""
    started = Started(tmp_path / "live")
    for body in bodies:
        started.append(body)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    started.log.close()
    return tmp_path / "killed"


def test_after_a_kill_everything_acknowledged_is_there(tmp_path: Path) -> None:
    data_dir = killed_copy(tmp_path, b"a", b"b")
    lines: list[str] = []
    log = opened(data_dir, report=lines.append)
    assert [batch.body for batch in log.scan(0)] == [b"a", b"b"]
    assert (log.epoch, lines) == (1, [])
    log.close()


def test_without_the_watermark_file_the_unsure_end_is_rewritten(tmp_path: Path) -> None:
    data_dir = killed_copy(tmp_path, b"a", b"b", b"c")
    (data_dir / "watermark").unlink()
    lines: list[str] = []
    log = opened(data_dir, report=lines.append)
    assert [batch.body for batch in log.scan(0)] == [b"a", b"b", b"c"]
    assert (log.uuid, log.epoch, log.next_offset) != ("", 0, 0)
    assert "1 records from offset 2 on" in lines[0]
    assert [path.stem[-1] for path in sorted((data_dir / "journal").glob("*.log"))] == ["0", "2"]
    log.close()


def test_the_watermark_of_another_journal_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        filled(tmp_path / name, [b"x"])
    shutil.copy(tmp_path / "one" / "watermark", tmp_path / "two" / "watermark")
    with pytest.raises(CorruptFile, match="belongs to journal"):
        opened(tmp_path / "two")


def test_a_refusal_frees_the_lock(tmp_path: Path) -> None:
    filled(tmp_path, [b"x" * 1000])
    log = next((tmp_path / "journal").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole[:200] + b"!" + whole[201:])
    with pytest.raises(CorruptJournal):
        opened(tmp_path)
    log.write_bytes(whole)
    opened(tmp_path).close()


def test_leftovers_of_an_interrupted_creation_go(tmp_path: Path) -> None:
    filled(tmp_path, [b"x"])
    (tmp_path / "journal" / f"{1:020d}.tmp").write_bytes(b"half")
    opened(tmp_path).close()
    assert not list((tmp_path / "journal").glob("*.tmp"))


def test_a_cut_removes_the_snapshots_beyond_it(tmp_path: Path) -> None:
    data_dir = killed_copy(tmp_path, b"a", b"b", b"c")
    for position in (1, 2):
        SnapshotWriter(data_dir / "journal", position).commit(applied_offset=position + 1)
    log_path = data_dir / "journal" / f"{0:020d}.log"
    data = bytearray(log_path.read_bytes())
    data[64 + 2 * 57 + 56] ^= 1
    log_path.write_bytes(data)
    lines: list[str] = []
    log = opened(data_dir, report=lines.append)
    assert log.next_offset == 2
    assert (epoch := log.epoch) > 1
    assert positions(log.directory) == [1]
    log.close()
    log = opened(data_dir)
    assert log.epoch == epoch
    log.close()


class Cut(Disk):
    """Ends with the first file that is put into the place of another one, as a power cut behind it."""

    def replace(self, path: Path, data: bytes) -> None:
        super().replace(path, data)
        raise OSError(errno.EIO, "cut")


def test_a_crash_behind_the_rise_of_the_epoch_takes_no_mark_away(tmp_path: Path) -> None:
    """From where the journal is complete, and where it begins, stands in the file that is replaced then."""
    data_dir = killed_copy(tmp_path, b"a", b"b", b"c")
    log = opened(data_dir)
    log._watermark.publish_start(0)
    log._watermark.publish_complete(1)
    log.close()
    state = read_state(DISK, data_dir)
    state.high_watermark += 1  # published, and never on the disk
    (data_dir / "watermark").write_bytes(state.pack_page())
    with pytest.raises(OSError, match="cut"):
        SegmentedLog.open(data_dir, SMALL, silent, Cut())
    state = read_state(DISK, data_dir)
    assert state.epoch > 1
    assert (state.start_offset, state.complete_offset) == (0, 1)
    opened(data_dir).close()
    assert JournalReader(data_dir).complete_offset() == 1


def test_a_first_segment_that_retention_did_not_take_is_missed(tmp_path: Path) -> None:
    filled(tmp_path, [b"x" * 1000] * 20)
    first, second = sorted((tmp_path / "journal").glob("*.log"))[:2]
    first.rename(tmp_path / "kept")
    with pytest.raises(CorruptJournal, match=f"there is no such file; offsets 0 up to {int(second.stem)}"):
        opened(tmp_path)
    (tmp_path / "kept").rename(first)
    opened(tmp_path).close()


def test_a_directory_of_before_says_nothing_about_its_first_segment(tmp_path: Path) -> None:
    filled(tmp_path, [b"x" * 1000] * 20)
    path = tmp_path / "watermark"
    path.write_bytes(path.read_bytes()[:1024] + bytes(3072))
    first, second = sorted((tmp_path / "journal").glob("*.log"))[:2]
    first.unlink()
    opened(tmp_path).close()
    second.unlink()
    with pytest.raises(CorruptJournal):
        opened(tmp_path)
