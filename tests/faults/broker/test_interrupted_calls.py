"""A signal in the middle of what the journal asks of the disk: the call is made again, in either build."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from broker_process import PYTHON, build_environment
from faults.broker.scripted_calls import Fault, Plan, build

GROWTH = 1 << 20
TIMES = 3
# What the syncer does with a batch for which blocks are to be allocated first.
PROGRAM = f"""
import os, sys, threading
from headrace.syscalls import Syncer
syncer = Syncer()
thread = threading.Thread(target=syncer.serve)
thread.start()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
syncer.begin(fd, (b"x" * 100, b"y" * 50), 0, 0, {GROWTH}, -1, b"", 0)
syncer.wait()
print(syncer.result())
syncer.stop()
thread.join()
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("call", ["fallocate", "pwritev", "fdatasync"])
def test_the_syncer_goes_on_after_a_signal(tmp_path: Path, call: str) -> None:
    data = tmp_path / "root"
    data.mkdir()
    plan = Plan(build(tmp_path), tmp_path / "plan", data)
    try:
        plan.count("data")
        plan.arm(Fault(call, "data", 1, errno.EINTR, TIMES))
        done = subprocess.run(
            [PYTHON, "-c", PROGRAM, str(data / "file")],
            env=build_environment() | plan.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert plan.failed == TIMES
    finally:
        plan.close()
    assert done.stdout.split() == ["150"], done.stderr
    file = data / "file"
    assert file.stat().st_size == GROWTH
    assert file.read_bytes()[:151] == b"x" * 100 + b"y" * 50 + b"\0"
