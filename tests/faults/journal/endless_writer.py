"""A process that appends until it is killed, and prints each high watermark once it is reached.

python endless_writer.py <data-dir> <durability, or "syncer": fsync by way of one>
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Semaphore

from headrace.journal.log import LogSettings, SegmentedLog
from headrace.syscalls import Syncer


def body_of(offset: int) -> bytes:
    return b"%d;" % offset * (1 + offset * 7 % 50)


def append_by(syncer: Syncer, log: SegmentedLog) -> None:
    """The same on one thread, as the broker does it: append, and go on when the syncer says so."""
    os.set_blocking(syncer.fd, True)
    while True:
        for _ in range(1 + log.next_offset % 3):
            log.append(body_of(log.next_offset), 1, 1, 1)
        while log.high_watermark < log.next_offset:
            os.eventfd_read(syncer.fd)
            log.finish_write()
            os.write(1, b"%d\n" % log.high_watermark)


def main(data_dir: Path, durability: str) -> None:
    syncer = Syncer() if durability == "syncer" else None
    settings = LogSettings(
        durability="fsync" if syncer else durability, segment_bytes_max=1 << 18, index_interval_bytes=4096
    )
    log = SegmentedLog.open(data_dir, settings, lambda _: None)
    room = Semaphore(64)  # batches handed over and not yet durable

    def said(high_watermark: int) -> None:
        os.write(1, b"%d\n" % high_watermark)
        room.release(64)
        if syncer:
            os.eventfd_write(syncer.fd, 1)

    log.start(said, lambda _: os._exit(3), None, syncer)
    if syncer:
        append_by(syncer, log)
    while True:
        room.acquire()
        log.append(body_of(log.next_offset), 1, 1, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
