"""Work that is killed at any point: before the call of any function, of Python or of C, that its number says."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

Work = Callable[[], object]
_CALLS = ("call", "c_call")
_RAISED = 3  # the status of work that raised


def calls_of(work: Work) -> int:
    """How many calls it makes, in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _run(work, 0, writing)
    os.close(writing)
    with open(reading, "rb") as said:
        count = said.read()
    assert os.waitpid(pid, 0)[1] == 0
    return int(count)


def killed(work: Work, number: int) -> bool:
    """Does it in a process that is killed before its call of that number; False if it came to its end before."""
    pid = os.fork()
    if not pid:
        _run(work, number, -1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"status {status}"
    return os.WIFSIGNALED(status)


def _run(work: Work, number: int, writing: int) -> None:
    """Never returns."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        if event in _CALLS:
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    status = _RAISED
    try:
        sys.setprofile(count)
        work()
        sys.setprofile(None)
        if writing >= 0:
            os.write(writing, b"%d" % calls)
        status = 0
    finally:
        os._exit(status)
