"""Finished segments for readers with an index of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.reader import JournalReader
from unit.journal.log_at import Started, filled


def test_batches_and_bytes_of_a_finished_segment(tmp_path: Path) -> None:
    bodies = [b"%03d" % i * 9 for i in range(20)]
    filled(tmp_path, bodies)
    with JournalReader(tmp_path).finished(0) as segment:
        assert [batch.body for batch in segment.batches()] == bodies
        assert segment.footer is not None
        assert segment.footer.end_offset == 20
        assert segment.read(64 + 56, 27) == bodies[0]
        assert segment.size == segment.footer.position + 64


def test_the_segment_being_written_has_no_footer(tmp_path: Path) -> None:
    started = Started(tmp_path)
    started.append(b"x")
    with JournalReader(tmp_path).finished(0) as segment:
        assert segment.footer is None
    started.log.close()
    with pytest.raises(FileNotFoundError):
        JournalReader(tmp_path).finished(5)


def test_a_key_names_the_file_not_the_name(tmp_path: Path) -> None:
    keys = []
    for i in range(2):
        filled(tmp_path / str(i), [b"x"])
        with JournalReader(tmp_path / str(i)).finished(0) as segment:
            keys.append(segment.key)
    assert keys[0] != keys[1]
