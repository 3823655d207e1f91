"""Recovery of a journal without any snapshot: records a second, and the memory of one long backlog.

    PYTHONPATH=src python -m benchmarks.recovery [--messages 2000000]

Writes a journal of QoS 1 messages of 256 bytes with the segmented log itself (no fsync), most of them acknowledged as
under full load; then opens it and folds it, as the broker does after kill -9. Writes results/recovery-<messages>.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from struct import pack

from librt.strings import BytesWriter

from benchmarks.sessions import resident_mb
from headrace.core.records.event import SESSION_OPENED, SUBSCRIBED, Event
from headrace.core.records.message import Message
from headrace.core.records.record import ACKED, Progress
from headrace.core.state import state as fold_module
from headrace.core.state.state import Fold
from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load

RESULTS = Path(__file__).parent / "results"
NOW_US = 1_790_000_000_000_000
BATCH = 500
APPLICATION = 1


class Writer:
    """Fills a log with batches as group commit makes them."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log
        self.offset = 0

    def batch(self, *records: Event | Message | Progress) -> None:
        body = BytesWriter()
        for record in records:
            record.encode_into(body)
        self._log.append(body.getvalue(), len(records), NOW_US, NOW_US)
        self.offset += len(records)

    def session(self, client_id: str, topic_filter: str) -> int:
        incarnation = self.offset
        opened: dict[str, object] = {
            "t": "default", "c": client_id, "ty": APPLICATION, "ex": 0xFFFFFFFF, "v": 5, "w": None, "lim": 1024,
        }  # fmt: skip
        rows: list[object] = [[topic_filter, 1, False, False, 0, 0]]
        subscribed: dict[str, object] = {"inc": incarnation, "subs": rows, "ret": []}
        self.batch(Event(SESSION_OPENED, NOW_US, opened), Event(SUBSCRIBED, NOW_US, subscribed))
        return incarnation


def write(log: SegmentedLog, messages: int, acknowledged: bool) -> None:
    writer = Writer(log)
    incarnation = writer.session("archive", "plant/#")
    message = Message(NOW_US, 1, 1, 0, "default", b"defaultp", 7, b"plant/4/press", b"", -1, bytes(256))
    records: list[Event | Message | Progress] = [message] * BATCH
    for serial in range(1, messages + 1, BATCH):
        acks = b"".join(pack("<QQ", incarnation, serial + n) for n in range(BATCH))
        writer.batch(*records, *([Progress(ACKED, NOW_US, acks)] if acknowledged else []))


def _ignore(_: object) -> None:
    """Nobody waits for these records."""


def measure(messages: int, acknowledged: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        settings = LogSettings(durability="none")
        log = SegmentedLog.open(Path(folder), settings, print)
        log.start(_ignore, _ignore)
        write(log, messages, acknowledged)
        log.close()
        log = SegmentedLog.open(Path(folder), settings, print)
        before = resident_mb()
        began = time.monotonic()
        fold = Fold(LocalJournal(log, OffsetOutOfRange))
        load(fold, [], log.scan, log.start_offset, print)
        took_s = time.monotonic() - began
        queue = next(iter(fold.by_incarnation.values())).outbound()
        result = {
            "messages": messages,
            "acknowledged": acknowledged,
            "compiled": not str(fold_module.__file__).endswith(".py"),
            "python": platform.python_version(),
            "seconds": round(took_s, 2),
            "messages_per_s": round(messages / took_s),
            "waiting": int(queue.unfinished()),
            "resident_grown_mb": round(resident_mb() - before),
        }
        log.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    options = parser.parse_args()
    results = [measure(options.messages, acknowledged) for acknowledged in (True, False)]
    print(json.dumps(results, indent=2))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"recovery-{options.messages}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
