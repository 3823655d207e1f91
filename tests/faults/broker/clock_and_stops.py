"""Somebody sets the clock of a running broker, or stops its process for a while: nobody may lose anything by it.

    python -m faults.broker.clock_and_stops                    every step and every stop: three minutes
    python -m faults.broker.clock_and_stops --only -1y,stop-4s

A step of the clock, by seconds, hours and years in both directions, comes while messages wait for a session that is away,
with and without an expiry, while wills wait, and once more between a kill and the next start. Sessions and messages that
do not expire must be there, wills must come, and come in time, nobody may be cut off, and no snapshot or retention may
take what is still needed. A stop (SIGSTOP, then SIGCONT) comes while clients ping and publish: their bytes lie in the
sockets, so none of them was silent, none may be cut off and no will may come. HEADRACE_BUILD chooses the build.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from broker_process import BrokerExitedError, BrokerProcess
from e2e.wire import MESSAGE_EXPIRY, WILL_DELAY
from faults.broker.fleet import PATIENCE_S, Device, Fleet, GaveUp, raised

DAY_S = 86_400
STEPS_S = {
    "-20y": -20 * 365 * DAY_S,
    "-1y": -365 * DAY_S,
    "-40d": -40 * DAY_S,
    "-3h": -3 * 3600,
    "-5s": -5,
    "+5s": 5,
    "+3h": 3 * 3600,
    "+40d": 40 * DAY_S,
    "+1y": 365 * DAY_S,
    "+20y": 20 * 365 * DAY_S,
}
STOPS_S = {"stop-1s": 1.0, "stop-4s": 4.0, "stop-7s": 7.0}
KEEP_ALIVE_S, PING_S = 2, 0.5
LONGEST = 0xFFFFFFFF
SETTINGS: dict[str, object] = {
    "journal.segment_bytes_max": 16 << 10,
    "journal.retention_bytes": 64 << 10,
    "journal.snapshot_interval_bytes": 16 << 10,
    "journal.reserve_bytes": 4096,
    "session.inflight_max": 8,
    "sys_interval_s": 1,
}


def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Raises FileNotFoundError where there is no C compiler."""
    source, target = Path(__file__).with_name("shifted_clock.c"), folder / "shifted_clock.so"
    if not target.exists():
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"], check=True)
    return target


class WrongClock:
    """The clock of one broker over all its lives."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        fd = os.open(file, os.O_RDWR)
        try:
            self._memory = mmap.mmap(fd, 8)
        finally:
            os.close(fd)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(file)}

    def set(self, seconds: int) -> None:
        """From now on it is wrong by so much."""
        self._memory[0:8] = struct.pack("=q", seconds * 1_000_000_000)

    def close(self) -> None:
        self._memory.close()


class Town:
    """A broker and the clients of both attacks."""

    def __init__(self, broker: BrokerProcess, fleet: Fleet) -> None:
        self.broker, self.fleet = broker, fleet
        self.live = fleet.device("live", "d/#", "will/#")
        self.away = fleet.device("away", "d/#")
        self.publisher = fleet.device("publisher")
        self.pinging = self._mortal("pinging", 0)
        self.mourned = self._mortal("mourned", 2)
        self._pinged_at = 0.0
        self.settle("everybody is there")

    def _mortal(self, name: str, delay_s: int) -> Device:
        """Somebody with a keep alive and a will."""
        device = Device(self.fleet, name, will=(f"will/{name}", b"%d " % self.fleet.next_number()))
        device.keep_alive_s = KEEP_ALIVE_S
        device.will_properties = {WILL_DELAY: delay_s}
        self.fleet.devices.append(device)
        device.connect()
        return device

    def ping(self) -> None:
        """Whoever has a keep alive keeps it."""
        if time.monotonic() - self._pinged_at > PING_S:
            self._pinged_at = time.monotonic()
            for device in self.fleet.devices:
                if device.connected and device.keep_alive_s:
                    device.ping()

    def wait(self, until: Callable[[], bool], what: str, deadline_s: float = PATIENCE_S) -> None:
        def now() -> bool:
            self.ping()
            return until()

        self.fleet.expect(now, what, deadline_s)

    def settle(self, what: str) -> None:
        self.wait(
            lambda: all(d.connected and not d.waits_for_acks for d in self.fleet.devices if d.wanted), what
        )

    def live_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until, "time passes", seconds + 5)

    def wills(self) -> list[str]:
        return [got.topic for got in self.live.books.got if got.topic.startswith("will/")]

    def publish(self, count: int) -> None:
        for number in range(count):
            self.publisher.publish(f"d/{number % 2}", 1 + number % 2, size=300)
            self.publisher.publish("d/long", 1, properties={MESSAGE_EXPIRY: LONGEST})
            self.publisher.publish("filler", 1, size=2000)
        self.publisher.publish("r/kept", 1, retain=True)
        self.settle("acknowledgements")

    def everything_arrived(self, when: str) -> None:
        devices = (self.live, self.away)
        with contextlib.suppress(GaveUp):
            self.wait(lambda: all(self.fleet.has_all(d, "d/") for d in devices), f"all is delivered {when}")
        for device in devices:
            self.fleet.check_delivered("d/", device)
        if self.fleet.faults:
            raise GaveUp


def step_clock(town: Town, clock: WrongClock, step_s: int) -> None:
    """The clock jumps while things wait, and back while nobody runs."""
    town.away.leave()
    town.publish(10)
    clock.set(step_s)
    town.live_for(0.3)  # timers have seen it
    town.mourned.abort()
    began = time.monotonic()
    town.publish(10)
    town.wait(lambda: "will/mourned" in town.wills(), "P5: a will with a delay of 2 s", 10)
    if time.monotonic() - began < 1.8:
        town.fleet.fault("P5: a will with a delay of 2 s came early")
    snapshots = town.broker.data_dir / "journal"
    town.wait(lambda: any(snapshots.glob("*.snapshot")), "a snapshot is taken")
    town.publish(5)
    town.live_for(1.2)  # another housekeeping
    town.away.connect()
    town.everything_arrived("after the step")
    if "will/pinging" in town.wills():
        town.fleet.fault("P5: the will of a client that pings came")
    town.away.leave()
    town.publish(3)
    if town.fleet.cuts:
        town.fleet.fault("P9: clients were cut off")
    town.broker.kill()
    clock.set(0)
    town.broker.start()
    town.away.connect()
    town.publish(3)
    town.everything_arrived("after a start with the clock set back")
    reader = town.fleet.device("reader", "r/#", clean=True)
    town.wait(lambda: bool(reader.books.got), "P6: what is retained")
    town.fleet.check_retained(reader, "r/")


def stop_process(town: Town, stop_s: float) -> None:
    """SIGSTOP while clients ping and publish."""
    town.live_for(0.6)
    assert town.broker.process is not None
    town.broker.process.send_signal(signal.SIGSTOP)
    until = time.monotonic() + stop_s
    while time.monotonic() < until:  # the broker reads nothing, and everybody goes on
        town.ping()
        if len(town.fleet.sent) < 200:
            town.publisher.publish("d/0", 1)
        town.fleet.pump(lambda: False, 0.05)
    town.broker.process.send_signal(signal.SIGCONT)
    town.live_for(2 * KEEP_ALIVE_S)
    town.settle("acknowledgements after the stop")
    town.everything_arrived("after the stop")
    if town.wills():
        town.fleet.fault(f"P5: wills of clients that were never silent: {town.wills()}")
    cut = {d.name: d.books.cuts for d in town.fleet.devices if d.books.cuts}
    if cut:
        town.fleet.fault(f"P9: clients were cut off: {cut}")


def attack(folder: Path, name: str) -> list[str]:
    """What was not as promised when the clock was set, or the process stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = WrongClock(build(folder), folder / "offset")
    broker = BrokerProcess(folder / name, SETTINGS, environment=clock.environment)
    fleet = Fleet(broker.address)
    try:
        broker.start()
        with contextlib.suppress(GaveUp):
            town = Town(broker, fleet)
            if name in STEPS_S:
                step_clock(town, clock, STEPS_S[name])
            else:
                stop_process(town, STOPS_S[name])
        broker.stop()
    except (BrokerExitedError, TimeoutError, AssertionError, subprocess.TimeoutExpired) as error:
        fleet.fault(f"P9: {str(error)[-300:]}")
    finally:
        fleet.close()
        broker.end()
        clock.close()
    if what := raised(broker.stderr):
        fleet.fault(f"P9: a traceback: {what}")
    return fleet.faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="with commas between them")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*STEPS_S, *STOPS_S]
    broken = 0
    with tempfile.TemporaryDirectory(prefix="headrace-clock-") as folder:
        for name in names:
            found = attack(Path(folder), name)
            broken += bool(found)
            print(f"{name}: {'; '.join(found) if found else 'every promise kept'}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
