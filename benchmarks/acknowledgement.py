"""How long does a publisher wait for PUBACK at a steady 5 000 messages a second, beside what the disk needs for one sync?

    python -m benchmarks.acknowledgement [--rate 5000] [--turns 5] [--seconds 5]

Turns of two measurements on one file system: fdatasync after appending 4 KiB, again and again, by this process alone;
then the broker (durability = fsync) under `headrace bench`, QoS 1, 100 persistent pairs, open loop. Best of the turns
against best, because on a shared machine the others measure the neighbours. Writes results/acknowledgement-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.contestant import SCRATCH, running
from benchmarks.machine import machine
from benchmarks.record import write
from demo.services import PYTHON

PAGE = bytes(4096)


@dataclass(frozen=True)
class Turn:
    """Milliseconds."""

    disk_p50_ms: float
    disk_p99_ms: float
    puback_p50_ms: float
    puback_p99_ms: float
    delivery_p50_ms: float
    delivery_p99_ms: float
    lost: int


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def disk(folder: Path, seconds: float) -> list[float]:
    """Milliseconds of each append and fdatasync into a preallocated file, as the journal does it."""
    samples = []
    fd = os.open(folder / "disk", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, 64 << 20)
        until, at = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            began = time.perf_counter()
            os.pwrite(fd, PAGE, at % (64 << 20))
            os.fdatasync(fd)
            samples.append((time.perf_counter() - began) * 1000)
            at += len(PAGE)
    finally:
        os.close(fd)
    return samples


def broker(folder: Path, rate: int, seconds: int) -> dict[str, float]:
    """What `headrace bench` found."""
    report = folder / "report.json"
    with running("headrace") as target:
        load = ["--url", f"tcp://127.0.0.1:{target.port}", "--rate", str(rate), "-n", "100", "-q", "1", "-c"]
        subprocess.run(
            [*PYTHON, "headrace", "bench", *load, "-t", str(seconds), "--json", str(report)],
            stdout=subprocess.DEVNULL,
            timeout=seconds + 60,
            check=True,
        )
    result: dict[str, float] = json.loads(report.read_text(encoding="utf-8"))["result"]
    return result


def measure(rate: int, seconds: int) -> Turn:
    folder = SCRATCH / "acknowledgement"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    alone = disk(folder, min(seconds, 3))
    loaded = broker(folder, rate, seconds)
    return Turn(
        round(percentile(alone, 0.5), 3),
        round(percentile(alone, 0.99), 3),
        round(loaded["acknowledgement_p50_ms"], 3),
        round(loaded["acknowledgement_p99_ms"], 3),
        round(loaded["delivery_p50_ms"], 3),
        round(loaded["delivery_p99_ms"], 3),
        int(loaded["lost"]),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    options = parser.parse_args()
    turns = []
    for number in range(options.turns):
        turns.append(measure(options.rate, options.seconds))
        print(f"{number + 1}/{options.turns}  {asdict(turns[-1])}", flush=True)
    ratio = min(t.puback_p99_ms for t in turns) / min(t.disk_p99_ms for t in turns)
    print(f"PUBACK p99 is {ratio:.1f} times the p99 of one fdatasync, best against best")
    result = {
        "question": __doc__,
        "machine": machine(),
        "rate": options.rate,
        "puback_p99_over_disk_p99": round(ratio, 2),
        "turns": [asdict(turn) for turn in turns],
    }
    write(result, "acknowledgement")
    return 1 if any(turn.lost for turn in turns) else 0


if __name__ == "__main__":
    sys.exit(main())
