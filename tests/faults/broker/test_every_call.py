"""A share of what `python -m faults.broker.every_call` does in an hour: one system call fails, and promises hold."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from broker_process import BUILD
from faults.broker.every_call import attack, chosen, record
from faults.broker.scripted_calls import ERRORS, Fault, parse_fault

JOBS = min(2, os.cpu_count() or 1)
SEED, FAULTS = 13, 10  # more of them: make torture-faults
FILES = {(call, "data") for call in ("open", "pread", "pwritev", "fdatasync")}
# Each of these once broke a promise. Places move with the code: what matters is what fails and how.
FOUND = (
    "open/data#13=EMFILE",  # a new segment could not be opened for want of a descriptor, and the broker ended
    "open/data#18=ENOMEM",
    "open/data#30x6=EMFILE",  # what could not be read for a moment was dropped for good
    "open/data#40x6=EMFILE",
    "epoll_ctl/loop#15=ENOMEM",  # a connection that could not be watched stayed open and was never served
    "setsockopt/sockets#9=ENOBUFS",  # accepting ended in a traceback
    "recv/sockets#75=ENOMEM",  # and so did reading
    "read/sockets#75=ENOMEM",  # which is this call in the interpreted build
    "malloc/memory#29x6=ENOMEM",  # what the loop said of a signal that it could not read was a traceback
)

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def test_a_fault_is_written_as_it_is_read() -> None:
    for (call, kind), errors in ERRORS.items():
        for error in errors:
            for times in (1, 6):
                fault = Fault(call, kind, 7, error, times)
                assert parse_fault(str(fault)) == fault


@needs_compiler
@pytest.mark.slow
def test_what_once_broke_a_promise(tmp_path: Path) -> None:
    outcome = attack(tmp_path, [parse_fault(text) for text in FOUND], JOBS, say=False)
    assert not outcome, report(outcome)


@needs_compiler
@pytest.mark.slow
def test_a_share_of_all_faults(tmp_path: Path) -> None:
    counts = record(tmp_path)
    assert counts.keys() <= ERRORS.keys(), "a call of the story that is never failed"
    wire = {("recv", "sockets"), ("send", "sockets")}
    if BUILD == "interpreted":
        wire = {("read", "sockets"), ("write", "sockets")}
    assert {*FILES, *wire, ("accept", "sockets"), ("epoll_ctl", "loop")} <= counts.keys()
    faults = chosen(counts, 1, SEED)[:FAULTS]
    outcome = attack(tmp_path, faults, JOBS, say=False)
    assert not outcome, report(outcome)


def report(outcome: dict[Fault, list[str]]) -> str:
    return "\n".join(f"{fault}: {'; '.join(found)}" for fault, found in outcome.items())
