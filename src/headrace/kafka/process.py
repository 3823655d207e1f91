"""The process in which the sinks and sources of a worker run, beside it: what it takes of a processor costs the worker's
clients nothing, and what a library does wrong ends no broker.

    first line of stdin   {"sinks": [SinkSettings], "shards": [[NUMBER, DATA_DIR], ...], "sources": [SourceSettings]}
    end of stdin          send what the journals have now, within DRAIN_S, and end
    stdout                a line every TELL_S: {"sinks": [SinkFigures], "sources": [SourceFigures]}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from headrace.kafka.settings import SinkSettings
from headrace.kafka.sink import Connect, SinkOfShard
from headrace.kafka.source_settings import SourceSettings

if TYPE_CHECKING:
    from headrace.kafka.source import Source

TELL_S: Final = 1.0
DRAIN_S: Final = 8.0
NICER: Final = 5  # clients of the broker come first


@dataclass(frozen=True, slots=True)
class Makers:
    """What makes the parts that need Kafka's clients."""

    connect: Connect
    source: Callable[[SourceSettings], Source]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process runs, each on a thread."""

    sinks: list[SinkOfShard]
    sources: list[Source]

    def __iter__(self) -> Iterator[SinkOfShard | Source]:
        return iter([*self.sinks, *self.sources])

    def told(self) -> bytes:
        """Return the line that says what is done."""
        found = {
            "sinks": [asdict(one.figures) for one in self.sinks],
            "sources": [asdict(one.figures) for one in self.sources],
        }
        return json.dumps(found).encode() + b"\n"


def packed(
    sinks: Sequence[SinkSettings],
    shards: Sequence[tuple[int, Path]],
    sources: Sequence[SourceSettings] = (),
) -> bytes:
    """Return the line that tells the process what to do."""
    found = {
        "sinks": [one.pack() for one in sinks],
        "shards": [[n, str(path)] for n, path in shards],
        "sources": [one.pack() for one in sources],
    }
    return json.dumps(found).encode() + b"\n"


def unpacked(line: bytes, makers: Makers) -> Parts:
    """Return what a line of `packed` asks for."""
    found: dict[str, Any] = json.loads(line)
    sinks = [SinkSettings.unpack(one) for one in found["sinks"]]
    return Parts(
        [SinkOfShard(sink, n, Path(path), makers.connect) for sink in sinks for n, path in found["shards"]],
        [makers.source(SourceSettings.unpack(one)) for one in found["sources"]],
    )


def run(stdin: IO[bytes], stdout: IO[bytes], makers: Makers) -> int:
    """Send and publish until the end of `stdin`; returns the exit status."""
    parts = unpacked(stdin.readline(), makers)
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


def _tell(stdout: IO[bytes], parts: Parts) -> bool:
    """Say what is done; False if nobody listens any more."""
    try:
        stdout.write(parts.told())
        stdout.flush()
    except OSError:
        return False
    return True


def main() -> None:
    """Be that process: signals of a terminal, or of a service manager, are for the broker."""
    from headrace.kafka.source import Source
    from headrace.kafka.transactions import Transactions

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICER)
    status = run(sys.stdin.buffer, sys.stdout.buffer, Makers(Transactions, Source))
    os._exit(status)  # whatever a thread of the library still waits for
