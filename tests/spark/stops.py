"""A job that is told to end as a service manager or a terminal does it: all of its processes at once."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_WAIT_S: Final = 120
_OF_EVERY_JAVA: Final = ("NOTE: Picked up JDK_JAVA_OPTIONS", "WARNING: Using incubator modules")


def stop_all(process: subprocess.Popen[str]) -> None:
    """SIGTERM to a job, its Java and their workers: it must end with 0, and say so in one line."""
    job = psutil.Process(process.pid)
    for each in [job, *job.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 0, said
    lines = [line for line in said.splitlines() if line and not line.startswith(_OF_EVERY_JAVA)]
    others = [line for line in lines if not line.startswith(("archive: ", "publish: "))]
    assert others == [], said
    assert " done: " in lines[-1]


def stop_while_planning(checkpoint: Path) -> None:
    """Leave what Spark leaves of a first batch that it is stopped in while it plans it: half a file."""
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "offsets").mkdir()
    (checkpoint / "metadata").write_text('{"id":"8a069751-60db-4f23-8ae3-edfb416beba1"}')
    for name in (".0.5f172168.tmp", "..0.5f172168.tmp.crc"):
        (checkpoint / "offsets" / name).write_text("v1")
