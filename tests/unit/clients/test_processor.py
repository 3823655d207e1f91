"""CPU time from /proc."""

from __future__ import annotations

import os
import time

import pytest

from headrace.clients.processor import Processor


def test_it_counts_what_the_processes_burn() -> None:
    processor = Processor([os.getpid()])
    before, until = processor.seconds(), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert processor.seconds() - before > 0.05
    assert Processor([os.getpid(), os.getpid()]).seconds() >= 2 * before


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="999999999"):
        Processor([999_999_999])
