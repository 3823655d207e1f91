"""CPU time from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from headrace.clients.processor import Processor


def test_it_counts_what_the_processes_burn() -> None:
    processor = Processor([os.getpid()])
    before, until = processor.seconds(), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert processor.seconds() - before > 0.05


BURNS = """
import time
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
print(flush=True)
input()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BURNS!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
print(flush=True)
input()
"""


def test_what_a_process_has_started_counts_once_and_also_when_it_has_ended() -> None:
    """As the workers of a supervisor."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    both, alone = Processor([parent.pid]).seconds(), Processor([child]).seconds()
    assert both >= alone >= 0.25
    assert Processor([child, parent.pid, child]).seconds() == pytest.approx(both, abs=0.05)
    print(file=parent.stdin, flush=True)
    parent.stdout.readline()  # it has waited for the child
    assert Processor([parent.pid]).seconds() >= both
    parent.communicate("\n")


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="999999999"):
        Processor([999_999_999])
