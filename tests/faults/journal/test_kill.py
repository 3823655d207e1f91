"""kill -9 at any moment, again and again: every acknowledged record is there, and readers never saw another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from faults.journal.endless_writer import body_of
from headrace.journal.inspect import verify
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import JournalReader

LIVES = 6


def killed_after(data_dir: Path, durability: str, acknowledgements: int) -> int:
    """The last high watermark the process said."""
    script = Path(__file__).with_name("endless_writer.py")
    command = [sys.executable, str(script), str(data_dir), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledgements)]
        process.kill()
        rest = process.stdout.read()
    said = (b"".join(lines) + rest).rsplit(b"\n", 1)[0].split(b"\n")
    return int(said[-1])


@pytest.mark.parametrize("durability", ["fsync", "os", "syncer"])
@pytest.mark.slow
def test_nothing_acknowledged_is_missing(tmp_path: Path, durability: str) -> None:
    rng = Random(7)
    for _ in range(LIVES):
        acknowledged = killed_after(tmp_path, durability, rng.randint(1, 120))
        reader = JournalReader(tmp_path)
        assert reader.high_watermark() >= acknowledged
        seen = [batch.body for batch in reader.scan(0)]
        assert verify(tmp_path).ok
        log = SegmentedLog.open(tmp_path, LogSettings(segment_bytes_max=1 << 18), lambda _: None)
        try:
            bodies = [batch.body for batch in log.scan(0)]
            assert log.epoch == 1
        finally:
            log.close()
        assert len(bodies) >= acknowledged
        assert bodies == [body_of(offset) for offset in range(len(bodies))]
        assert seen == bodies[: len(seen)]
