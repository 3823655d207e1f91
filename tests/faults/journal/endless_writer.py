"""A process that appends until it is killed, and prints each high watermark once it is reached.

python endless_writer.py <data-dir> <durability>
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Semaphore

from headrace.journal.log import LogSettings, SegmentedLog


def body_of(offset: int) -> bytes:
    return b"%d;" % offset * (1 + offset * 7 % 50)


def main(data_dir: Path, durability: str) -> None:
    settings = LogSettings(durability=durability, segment_bytes_max=1 << 18, index_interval_bytes=4096)
    log = SegmentedLog.open(data_dir, settings, lambda _: None)
    room = Semaphore(64)  # batches handed over and not yet durable

    def said(high_watermark: int) -> None:
        os.write(1, b"%d\n" % high_watermark)
        room.release(64)

    log.start(said, lambda _: os._exit(3))
    while True:
        room.acquire()
        log.append(body_of(log.next_offset), 1, 1, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
