"""What can one client do to two others? Each flood of `floods.py`, as fast as it can, beside a pair that exchanges
200 messages a second at QoS 1.

    python -m benchmarks.neighbours --record            every flood, without and with a disk that hangs: 25 minutes
    python -m benchmarks.neighbours --quick --only pubrel,fan-out-501
    python -m benchmarks.neighbours --list

For each flood a broker starts anew. The pair's milliseconds from due to delivery and to PUBACK count, and how far the
broker's resident memory grew above what it was when the flood began. Then the same with a disk on which one fdatasync,
in the middle of it, takes STALL_S seconds. Floods give way to the broker (nice 10), as clients on machines of their own
do, and who measures gives way to nobody (nice -10, if allowed).

Wanted: p99 below 20 ms, with the disk that hangs below the stall + 20 ms; memory below 150 MB above the start; nothing
missing. `--record` writes results/neighbours.json and neighbours.png; exit 1 where something is beyond.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contestant import HERE, READY_S, SCRATCH, STOP_S
from benchmarks.floods import FLOODS
from benchmarks.machine import machine
from benchmarks.pair import Exchange, Latency
from demo.services import PYTHON, REPOSITORY, Service
from headrace.testing.ports import free_port

RESULTS = Path(__file__).parent / "results"
SECONDS, QUICK_S, PATIENCE_S = 10.0, 3.0, 30.0
STALL_S, STALL_AT = 3.0, 0.3  # so long, after this part of the time
UNDER_WAY_S = 60
P99_MS, GROWTH_MB = 20.0, 150.0
MB = 1_000_000


@dataclass(frozen=True)
class Row:
    """One flood beside the pair. Latencies of the pair in milliseconds, `flood_mb` is what the flood got rid of."""

    flood: str
    stalled: bool
    exchange: Exchange | None  # None: the pair was cut off
    growth_mb: float
    flood_mb: float
    flood_cuts: int
    error: str = ""

    def beyond(self, stall_s: float) -> list[str]:
        """What is not as wanted."""
        limit = P99_MS + (stall_s * 1000 if self.stalled else 0)
        found = [self.error] if self.error else []
        if self.exchange is None:
            return [*found, "the pair was cut off"]
        for what, taken in (("delivery", self.exchange.delivery), ("PUBACK", self.exchange.puback)):
            if taken.p99 >= limit:
                found.append(f"{what} p99 {taken.p99:.0f} ms")
        if self.exchange.missing or self.exchange.unacknowledged:
            found.append(f"{self.exchange.missing} missing, {self.exchange.unacknowledged} not acknowledged")
        if self.growth_mb >= GROWTH_MB:
            found.append(f"{self.growth_mb:.0f} MB more")
        return found


@dataclass(frozen=True)
class Broker:
    """A running one, and the file that makes its disk hang."""

    port: int
    websocket_port: int
    pid: int
    stall: Path


def stall_library() -> Path:
    target, source = SCRATCH / "stall.so", HERE / "stall.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"], check=True)
    return target


@contextlib.contextmanager
def broker() -> Iterator[Broker]:
    """A broker on a fresh folder with a TCP and a WebSocket listener, stopped at the end."""
    folder = SCRATCH / "neighbours"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stall, port, websocket = folder / "stall", free_port(), free_port()
    preload = ["env", f"LD_PRELOAD={stall_library()}", f"STALL={stall}"]
    listeners = ["--listen", f"tcp://127.0.0.1:{port}", "--listen", f"ws://127.0.0.1:{websocket}"]
    command = [*preload, *PYTHON, "headrace", "serve", "--data-dir", str(folder / "data"), *listeners]
    service = Service("headrace", folder / "log", *command)
    try:
        service.start_ready(READY_S)
        assert service.process is not None
        yield Broker(port, websocket, service.process.pid, stall)
    finally:
        if service.stop(STOP_S):
            print(service.tail(), file=sys.stderr)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / MB


class MemoryWatch(threading.Thread):
    """The highest resident memory of a process, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._over = pid, threading.Event()
        self.highest = self.first = resident_mb(pid)

    def run(self) -> None:
        while not self._over.wait(0.1):
            with contextlib.suppress(OSError, IndexError):
                self.highest = max(self.highest, resident_mb(self._pid))

    def growth(self) -> float:
        self._over.set()
        self.join()
        return round(self.highest - self.first, 1)


@contextlib.contextmanager
def flooding(name: str, at: Broker, said: dict[str, Any]) -> Iterator[None]:
    """The flood is under way; what it says at its end goes into `said`. Raises RuntimeError if it ends by itself."""
    if name == "alone":
        yield
        return
    command = ["nice", "-n", "10", sys.executable, "-m", "benchmarks.floods", name]
    command += [f"127.0.0.1:{at.port}", str(at.websocket_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as flood:
        assert flood.stdout is not None
        timer = threading.Timer(UNDER_WAY_S, flood.kill)
        timer.start()
        if "under way" not in flood.stdout.readline():
            raise RuntimeError(f"{name} could not get under way within {UNDER_WAY_S} s")
        timer.cancel()
        try:
            yield
        finally:
            ended = flood.poll()
            flood.terminate()
            try:
                out, _ = flood.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                flood.kill()
                out = ""
            said |= json.loads(out.splitlines()[-1]) if out.strip() else {"bytes": 0, "cuts": 0}
            if ended is not None:
                raise RuntimeError(f"the flood {name} ended with {ended}")


def exchange(at: Broker, seconds: float) -> tuple[Exchange | None, str]:
    """What the pair saw, and what went wrong."""
    first = ["nice", "-n", "-10"] if os.geteuid() == 0 else []  # who measures must not wait for a processor
    command = [*first, sys.executable, "-m", "benchmarks.pair", f"127.0.0.1:{at.port}"]
    command += ["--seconds", str(seconds), "--patience", str(PATIENCE_S)]
    limit = seconds + 3 * PATIENCE_S
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, cwd=REPOSITORY, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"the pair had no answer for {limit:.0f} s"
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1][:200]
    found = json.loads(done.stdout)
    delivery, puback = Latency(**found.pop("delivery")), Latency(**found.pop("puback"))
    return Exchange(delivery=delivery, puback=puback, **found), ""


def beside(name: str, stall_s: float, seconds: float) -> Row:
    """The pair beside this flood; with a stall, the disk hangs once for so long."""
    said: dict[str, Any] = {"bytes": 0, "cuts": 0}
    with broker() as at:
        watch = MemoryWatch(at.pid)
        watch.start()
        hang = threading.Timer(seconds * STALL_AT, at.stall.write_text, [f"{stall_s}"])
        try:
            with flooding(name, at, said):
                if stall_s:
                    hang.start()
                found, error = exchange(at, seconds)
        except RuntimeError as trouble:
            found, error = None, str(trouble)
        finally:
            hang.cancel()
        growth = watch.growth()
    return Row(name, bool(stall_s), found, growth, round(said["bytes"] / MB, 1), said["cuts"], error)


def shown(row: Row, stall_s: float) -> str:
    beyond = row.beyond(stall_s)
    name = f"{row.flood}{' + stall' if row.stalled else ''}"
    if row.exchange is None:
        return f"{name:30} {'; '.join(beyond)}"
    times = " ".join(
        f"{taken.p50:7.2f} {taken.p99:8.2f} {taken.max:8.1f}"
        for taken in (row.exchange.delivery, row.exchange.puback)
    )
    return (
        f"{name:30} {times}  {row.growth_mb:6.1f} {row.flood_mb:8.1f} {row.flood_cuts:5}  {'; '.join(beyond)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="floods, with commas between them")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s each")
    parser.add_argument("--stall", type=float, default=STALL_S, help="seconds; 0: only the disk as it is")
    parser.add_argument("--record", action="store_true", help="write the table and the picture down")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FLOODS))
        return 0
    seconds = QUICK_S if options.quick else options.seconds
    names = options.only.split(",") if options.only else ["alone", *FLOODS]
    unknown = set(names) - {"alone", *FLOODS}
    if unknown:
        parser.error(f"no such flood: {', '.join(sorted(unknown))}")
    print(f"{'':30} {'delivery p50, p99, max':>25} {'PUBACK':>25} {'+MB':>7} {'flood MB':>8} {'cuts':>5}")
    rows, began = [], time.monotonic()
    for name in names:
        for stall_s in (0.0, options.stall) if options.stall else (0.0,):
            rows.append(beside(name, stall_s, seconds))
            print(shown(rows[-1], options.stall), flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    if options.record:
        record(rows, seconds, options.stall)
    return 1 if any(row.beyond(options.stall) for row in rows) else 0


def record(rows: list[Row], seconds: float, stall_s: float) -> None:
    from benchmarks.neighbours_chart import draw

    result = {
        "question": __doc__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "seconds": seconds,
        "stall_s": stall_s,
        "wanted": {"p99_ms": P99_MS, "growth_mb": GROWTH_MB},
        "rows": [asdict(row) | {"beyond": row.beyond(stall_s)} for row in rows],
    }
    (RESULTS / "neighbours.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(rows, stall_s, RESULTS / "neighbours.png")


if __name__ == "__main__":
    raise SystemExit(main())
