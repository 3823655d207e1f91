"""The process in which the sinks of a worker run, beside it: what it takes of a processor costs the worker's clients
nothing, and what a library does wrong ends no broker.

    first line of stdin   {"sinks": [SinkSettings], "shards": [[NUMBER, DATA_DIR], ...]}
    end of stdin          send what the journals have now, within DRAIN_S, and end
    stdout                a line every TELL_S: a list of SinkFigures
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from headrace.kafka.settings import SinkSettings
from headrace.kafka.sink import Connect, SinkOfShard

TELL_S: Final = 1.0
DRAIN_S: Final = 8.0
NICER: Final = 5  # clients of the broker come first


def packed(sinks: Sequence[SinkSettings], shards: Sequence[tuple[int, Path]]) -> bytes:
    """Return the line that tells the process what to do."""
    found = {"sinks": [one.pack() for one in sinks], "shards": [[n, str(path)] for n, path in shards]}
    return json.dumps(found).encode() + b"\n"


def unpacked(line: bytes, connect: Connect) -> list[SinkOfShard]:
    """Return what a line of `packed` asks for."""
    found: dict[str, Any] = json.loads(line)
    sinks = [SinkSettings.unpack(one) for one in found["sinks"]]
    return [SinkOfShard(sink, n, Path(path), connect) for sink in sinks for n, path in found["shards"]]


def run(stdin: IO[bytes], stdout: IO[bytes], connect: Connect) -> int:
    """Send until the end of `stdin`; returns the exit status."""
    parts = unpacked(stdin.readline(), connect)
    threads = [threading.Thread(target=part.run, daemon=True) for part in parts]
    is_over = threading.Event()
    for thread in threads:
        thread.start()
    threading.Thread(target=_wait_for_end, args=(stdin, is_over), daemon=True).start()
    while not is_over.wait(TELL_S):
        if not _tell(stdout, parts) or not all(thread.is_alive() for thread in threads):
            return 1  # whoever has started it begins again
    for part in parts:
        part.stop()
    deadline = time.monotonic() + DRAIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    _tell(stdout, parts)
    return 0


def _wait_for_end(stdin: IO[bytes], is_over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        stdin.read()
    is_over.set()


def _tell(stdout: IO[bytes], parts: Sequence[SinkOfShard]) -> bool:
    """Say what is done; False if nobody listens any more."""
    try:
        stdout.write(json.dumps([asdict(part.figures) for part in parts]).encode() + b"\n")
        stdout.flush()
    except OSError:
        return False
    return True


def main() -> None:
    """Be that process: signals of a terminal, or of a service manager, are for the broker."""
    from headrace.kafka.transactions import Transactions

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICER)
    status = run(sys.stdin.buffer, sys.stdout.buffer, Transactions)
    os._exit(status)  # whatever a thread of the library still waits for
