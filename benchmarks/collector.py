"""How long does the garbage collector make the process stand still while a million sessions are made and are there?

    PYTHONPATH=src python -m benchmarks.collector [--sessions 1000000]

Persistent sessions, each with a subscription, are made by folding records, in this process and with the build on the
path, under the collector's settings of a node (`services.collecting`): every look of the collector is timed, by its
generation, in the processor's time of the thread: what others do on the machine does not count.
Then, with all of them there, `ENDS` things that refer to themselves are made and left, LOOKS times, and each look that
this causes is timed; one look at everything is what it would take without these settings.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from pathlib import Path

from benchmarks.sessions import Fleet, resident_mb
from headrace.core.state import state as fold_module
from headrace.services.collecting import ENDS, THRESHOLDS, Endings, take_charge

RESULTS = Path(__file__).parent / "results"
LOOKS = 20


class Pauses:
    """Times each look of the collector, in ms, by generation."""

    def __init__(self) -> None:
        self.ms: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self._began = 0.0  # of the thread's processor time

    def note(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.ms[about["generation"]].append((time.thread_time() - self._began) * 1000)

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            f"generation_{number}": {
                "looks": len(found),
                "p50_ms": round(statistics.median(found), 2),
                "max_ms": round(max(found), 2),
                "sum_s": round(sum(found) / 1000, 2),
            }
            for number, found in self.ms.items()
            if found
        }


class Ended:
    """What a library leaves of a connection: an object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self
        self.held = bytearray(4096)
        self.others = [[], {}, (self,)]


def measure(sessions: int) -> dict[str, object]:
    take_charge()
    making, ending, everything = Pauses(), Pauses(), Pauses()
    gc.callbacks.insert(0, making.note)
    fleet = Fleet()
    began = time.monotonic()
    for number in range(sessions):
        fleet.session(number)
    seconds = time.monotonic() - began
    gc.callbacks[0] = ending.note
    before = resident_mb()
    endings = Endings()
    for _ in range(LOOKS * ENDS):
        Ended()
        endings.note()
    grown = resident_mb() - before
    gc.callbacks[0] = everything.note
    gc.unfreeze()
    gc.collect()
    return {
        "question": __doc__,
        "system": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, busy with other work",
        "compiled": not str(fold_module.__file__).endswith(".py"),
        "python": platform.python_version(),
        "sessions": sessions,
        "thresholds": THRESHOLDS,
        "resident_mb": round(before),
        "made_in_s": round(seconds, 1),  # of the clock
        "while_sessions_are_made": making.summary(),
        "ends_for_a_look": ENDS,
        "looks_for_ends": ending.summary(),
        "grown_by_ends_mb": round(grown, 1),
        "a_look_at_everything_ms": round(everything.ms[2][0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.collector", description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    options = parser.parse_args()
    result = measure(options.sessions)
    print(json.dumps({key: value for key, value in result.items() if key != "question"}, indent=1))
    (RESULTS / f"collector-{options.sessions}.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
