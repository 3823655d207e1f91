"""What a persistent session costs: memory, snapshot entry, time to load it again; and a message waiting in it.

    PYTHONPATH=src python -m benchmarks.sessions [--sessions 1000000] [--backlog 20]

The state is built as recovery builds it, by folding records, in this process and with the build on the path. Writes
results/sessions-<sessions>x<backlog>.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from pathlib import Path

from headrace.core.records.event import SESSION_CLOSED, SESSION_OPENED, SUBSCRIBED, event_of
from headrace.core.records.message import Message
from headrace.core.state import state as fold_module
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import entry_of_session, restore
from headrace.core.state.state import Fold
from headrace.storage.memory import MemoryJournal

RESULTS = Path(__file__).parent / "results"
NOW_US = 1_790_000_000_000_000


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Fleet:
    """Sessions made by records, as a journal has them."""

    def __init__(self) -> None:
        self.fold = Fold(MemoryJournal())
        self.replay = Replay(self.fold)
        self.offset = 0

    def event(self, subkind: int, **fields: object) -> None:
        event = event_of(subkind, NOW_US, dict(fields))
        event.offset = self.offset
        self.offset += 1
        self.replay.record(event)

    def session(self, number: int) -> None:
        incarnation = self.offset
        self.event(
            SESSION_OPENED, t="default", c=f"device-{number:07}", ty=0, ex=0xFFFFFFFF, v=4, w=None, lim=40
        )
        row = [f"fleet/{number:07}/commands", 1, False, False, 0, 0]
        self.event(SUBSCRIBED, inc=incarnation, subs=[row], ret=[])
        self.event(SESSION_CLOSED, inc=incarnation, ex=0xFFFFFFFF, lim=0, will=0)

    def message(self, number: int) -> None:
        topic = b"fleet/%07d/commands" % number
        message = Message(NOW_US, 1, 1, 0, "default", b"defaultp", 7, topic, b"", -1, bytes(256))
        message.offset = self.offset
        self.offset += 1
        self.replay.record(message)


def measure(sessions: int, backlog: int) -> dict[str, object]:
    gc.disable()
    before = resident_mb()
    fleet = Fleet()
    for number in range(sessions):
        fleet.session(number)
    empty = resident_mb()
    for _ in range(backlog):
        for number in range(sessions):
            fleet.message(number)
    full = resident_mb()
    began = time.monotonic()
    entries = [entry_of_session(s, fleet.offset) for s in fleet.fold.by_incarnation.values()]
    written_s = time.monotonic() - began
    entry_bytes = sum(map(len, entries)) / sessions
    fleet.fold = Fold(MemoryJournal())
    began = time.monotonic()
    restore(fleet.fold, [entries])
    return {
        "sessions": sessions,
        "backlog_messages_each": backlog,
        "compiled": not str(fold_module.__file__).endswith(".py"),
        "python": platform.python_version(),
        "bytes_per_session": round((empty - before) * 1e6 / sessions),
        "bytes_per_session_with_backlog": round((full - before) * 1e6 / sessions),
        "resident_mb": round(full),
        "snapshot_entry_bytes": round(entry_bytes),
        "snapshot_encode_s": round(written_s, 2),
        "restore_s": round(time.monotonic() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--backlog", type=int, default=0)
    options = parser.parse_args()
    result = measure(options.sessions, options.backlog)
    print(json.dumps(result, indent=2))
    RESULTS.mkdir(exist_ok=True)
    name = f"sessions-{options.sessions}x{options.backlog}.json"
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
