"""The scenario: publish without a pause, lose the subscriber, kill the broker, archive meanwhile, compare.

Each event waits for a share of the readings to be published, so that a slow machine sees the same scenario as
a fast one. Exit code 0 only if everything that was acknowledged was delivered and archived, in order.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo import lake, plot, services
from demo.evidence import Evidence, LogFollower, judge
from demo.services import ServiceError
from headrace.testing.ports import free_port

OUT = Path(__file__).parent / "out"
BROKER_DOWN_S = 2.0
PROGRESS_S = 3.0
SPARK_START_S = 25.0  # the fleet starts after that, whether or not Spark is there
DRAIN_S = 45.0


@dataclass(frozen=True)
class Size:
    """How much is published, how fast, and how long the stages may take."""

    readings: int
    rate: float
    patience_s: float


SIZES = {"full": Size(20_400, 600, 150), "small": Size(2_040, 120, 120)}
# Shares of the readings published when something happens.
SUBSCRIBER_LEAVES, SUBSCRIBER_RETURNS, BROKER_DIES = 0.25, 0.5, 0.75


class Scenario:
    """Runs the processes, follows their logs and says what happens."""

    def __init__(self, size: Size, out: Path) -> None:
        self.size = size
        self.out = out
        self.began = time.monotonic()
        self.spoke = 0.0
        self.waiting_for = ""
        self.evidence = Evidence()
        self.logs = [LogFollower(out / "readings.tsv"), LogFollower(out / "deliveries.tsv")]
        self.outages: list[plot.Outage] = []
        port = free_port()
        self.broker = services.broker(out, port)
        self.archive = services.archive(out)
        self.subscriber = services.subscriber(out, port)
        self.fleet = services.fleet(out, port, size.readings, size.rate)

    def run(self) -> int:
        try:
            self.publish_and_lose()
            self.drain()
            return self.compare()
        finally:
            for service in (self.fleet, self.subscriber, self.archive, self.broker):
                service.kill()

    def publish_and_lose(self) -> None:
        """From the first reading to the last acknowledgement."""
        self.say(
            f"broker ready after {self.broker.start_ready(30, services.BROKER_READY):.1f} s, durability fsync"
        )
        self.archive.start()
        self.subscriber.start()
        self.wait("the subscriber to subscribe", lambda: bool(self.evidence.resumed))
        self.say("the subscriber has subscribed; Spark starts the archive job")
        self.wait("the archive job", lambda: lake.exists(self.out / "lake"), at_most_s=SPARK_START_S)
        self.fleet.start()
        self.wait("the first reading", lambda: bool(self.evidence.acknowledged))
        self.say(
            f"this machine is {(self.out / 'fleet.out').read_text(encoding='utf-8').strip()}; they publish"
        )
        self.until_published(SUBSCRIBER_LEAVES)
        self.subscriber.kill()
        left = time.time()
        self.say("the subscriber is gone; publishing goes on")
        self.until_published(SUBSCRIBER_RETURNS)
        backlog = len(self.evidence.acknowledged) - len(self.evidence.delivered)
        self.subscriber.start()
        self.wait("the subscriber to return", lambda: len(self.evidence.resumed) > 1)
        self.outages.append(plot.Outage("subscriber away", "#c9a227", left, time.time()))
        self.say(f"the subscriber is back, to a backlog of {backlog:,}")
        self.until_published(BROKER_DIES)
        self.broker.kill()
        died = time.time()
        self.say("the broker is killed (SIGKILL)")
        time.sleep(BROKER_DOWN_S)
        took = self.broker.start_ready(30, services.BROKER_READY)
        self.outages.append(plot.Outage("broker down", "#b3411e", died, time.time()))
        self.follow()
        cut = self.evidence.cut.total()
        self.say(f"the broker is back, ready after {took:.1f} s; {cut} readings were in flight")
        self.wait("the fleet to finish", lambda: not self.fleet.running)

    def drain(self) -> None:
        """Wait until everything has arrived at both ends, then stop in good order."""
        published = self.evidence.acknowledged.keys()
        self.wait("the last deliveries", lambda: published <= self.evidence.delivered, at_most_s=DRAIN_S)
        in_lake = lambda: published <= set(lake.readings(self.out / "lake"))  # noqa: E731
        self.wait("the archive", in_lake, at_most_s=DRAIN_S)
        for service, codes in ((self.archive, (0, 143, -15)), (self.broker, (0,))):
            code = service.stop(30)
            if code not in codes:
                raise ServiceError(f"{service.name} ended with {code} when asked to stop\n{service.tail()}")
        self.subscriber.kill()
        self.follow()
        self.say("broker and archive job are stopped; Spark reads the table")

    def compare(self) -> int:
        """Read the table with Spark, draw, judge, print; the exit code."""
        archived = lake.ask_spark(self.out / "lake", self.out / "spark.log")
        verdict = judge(self.evidence, archived.readings)
        print("\nbusiest devices, by bytes archived")
        for device, messages, size in archived.busiest:
            print(f"  {device:<48} {messages:>7,} messages {size:>10,} bytes")
        picture = self.out / "demo.png"
        plot.draw(self.evidence, self.outages, f"{verdict.published:,} readings through headrace", picture)
        print(f"\nplot: {picture}\n")
        for complaint in verdict.complaints:
            print(f"demo: {complaint}")
        print(verdict, flush=True)
        counts = (verdict.delivered, verdict.archived, verdict.lost, verdict.reordered)
        good = counts == (verdict.published, verdict.published, 0, 0) and not verdict.complaints
        return 0 if good and verdict.published >= self.size.readings else 1

    def until_published(self, share: float) -> None:
        wanted = int(self.size.readings * share)
        self.wait(f"{wanted:,} readings", lambda: len(self.evidence.acknowledged) >= wanted)

    def wait(self, what: str, done: Callable[[], bool], at_most_s: float = 0.0) -> None:
        """Follow the logs until `done`, or go on after `at_most_s` where that is given.

        A process that should run and does not is an error, and so is waiting beyond all patience.
        """
        until = time.monotonic() + (at_most_s or self.size.patience_s)
        self.waiting_for = f"... waiting for {what}" if at_most_s else ""
        self.follow()
        while not done():
            for service in (self.broker, self.archive):
                if service.process is not None and not service.running:
                    raise ServiceError(f"{service.name} ended while waiting for {what}\n{service.tail()}")
            if time.monotonic() > until:
                if at_most_s:
                    return self.say(f"went on without {what}")
                raise ServiceError(f"waited in vain for {what}")
            time.sleep(0.05)
            self.follow()
        return None

    def follow(self) -> None:
        for log in self.logs:
            for line in log.lines():
                self.evidence.take(line)
        if time.monotonic() - self.spoke > PROGRESS_S:
            self.say(self.waiting_for)

    def say(self, event: str) -> None:
        self.spoke = time.monotonic()
        counts = (
            f"published {len(self.evidence.acknowledged):>6,}  delivered {len(self.evidence.delivered):>6,}"
        )
        archived = f"archived {lake.row_count(self.out / 'lake'):>6,}"
        print(f"{self.spoke - self.began:5.1f} s  {counts}  {archived}  {event}".rstrip(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    name = parser.parse_args().size
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        return Scenario(SIZES[name], out).run()
    except (ServiceError, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
