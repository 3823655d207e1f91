"""One writer at a time, and the second one learns who the first is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.journal.disk import DISK
from headrace.journal.errors import JournalLocked
from headrace.journal.lock import lock_data_dir


def test_the_second_one_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    fd = lock_data_dir(DISK, tmp_path)
    with pytest.raises(JournalLocked, match=f"pid {os.getpid()}"):
        lock_data_dir(DISK, tmp_path)
    DISK.close(fd)
    DISK.close(lock_data_dir(DISK, tmp_path))
