"""SIGKILL at random to the broker and to four running jobs; then the tables must equal what a foreign client had
acknowledged, row for row, and every command must be at the device once.

    python -m faults.pipeline.rounds --kills 20

Each kill hits, as the seed says, the broker, the Python process of a job, its JVM, or one of its Python workers.
Whatever is killed is started again at once, as a supervisor would. The tables are read by DuckDB, not by Spark.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from broker_process import BrokerProcess
from faults.pipeline.devices import DEVICE, Device, Publisher
from faults.pipeline.jobs import TARGETS, Job
from faults.pipeline.tables import Lake

SCHEMAS = '[[schema]]\nname = "reading"\ntopics = ["plant/+/t"]\nfields = { value = "long" }\n'
COMMANDS_EACH = 20
CATCH_UP_S = 600.0
POLL_S = 0.5  # a look at the tables costs what a job needs


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + CATCH_UP_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {CATCH_UP_S:.0f} s")
        time.sleep(POLL_S)


class Commander:
    """Appends commands to the table that the job `publish` sends."""

    def __init__(self, table: Path, every_s: float) -> None:
        self.count = 0
        self._table = table
        self._every_s = every_s
        self._stop = Event()
        self._append()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _append(self) -> None:
        numbers = range(self.count, self.count + COMMANDS_EACH)
        rows = {"topic": [f"commands/{n % 3}" for n in numbers], "payload": [str(n) for n in numbers]}
        qos = pa.array([2] * COMMANDS_EACH, pa.int32())
        write_deltalake(self._table, pa.table(rows | {"qos": qos}), mode="append")
        self.count += COMMANDS_EACH

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._append()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()


class Torture:
    """One broker, one lake, four jobs, and who publishes and receives."""

    def __init__(self, folder: Path, seed: int, per_second: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.broker = BrokerProcess(folder / "broker", {"session.backlog_messages_max": 65_535}).start()
        self.lake = Lake(folder / "lake")
        self.kills: Counter[str] = Counter()
        self._began = time.monotonic()
        schemas = folder / "schemas.toml"
        schemas.write_text(SCHEMAS)
        url = f"tcp://127.0.0.1:{self.broker.port}"
        keys = {
            "archive": {},
            "metrics": {},
            "clean": {"pipeline.clean.topic_schemas": str(schemas)},
            "publish": {"pipeline.publish.table": "commands", "pipeline.publish.url": url},
        }
        self.jobs = [
            Job(name, self.broker.data_dir, self.lake.root, own, folder) for name, own in keys.items()
        ]
        self.device = Device(self.broker)
        self.publisher = Publisher(self.broker, per_second)
        self.commander = Commander(self.lake.root / "commands", 3.0)

    def start(self) -> None:
        """Every job has done something."""
        for job in self.jobs:
            job.start()
            if job.name == "archive":
                until(lambda: self.lake.rows("messages") > 0, "the first messages")
        until(lambda: self.lake.rows("clean") > 0, "the first clean rows")
        until(lambda: self.lake.rows("traffic") > 0, "the first counts")
        until(lambda: bool(self.device.commands), "the first commands")

    def kill(self, longest_s: float) -> None:
        """At a random moment. The wait is that moment, not a synchronisation."""
        until = time.monotonic() + self.random.uniform(0.5, longest_s)
        while time.monotonic() < until:
            self._require_running()
            time.sleep(0.05)
        while (what := self._hit()) is None:
            time.sleep(0.05)  # there was no such process at that moment
        self.kills[what] += 1
        print(f"{time.monotonic() - self._began:.1f} s: {what}", flush=True)

    def _hit(self) -> str | None:
        what = self.random.choice(("broker", *TARGETS, *TARGETS))
        if what == "broker":
            self.broker.crash()
            return what
        job = self.random.choice(self.jobs)
        return f"{what} of {job.name}" if job.kill(what, self.random) else None

    def _require_running(self) -> None:
        for job in self.jobs:
            job.require_running()

    def settle(self) -> None:
        """Everything is acknowledged, archived, cleaned, counted and at the device; the jobs stop when asked."""
        self.commander.finish()
        self.publisher.finish()
        lake = self.lake

        def caught_up() -> bool:
            self._require_running()
            rows = lake.rows("messages")
            return (
                lake.numbers() == len(self.publisher.acknowledged)
                and sum(lake.rows(name) for name in ("clean", "quarantine", "repeats")) == rows
                and lake.counted() == rows
                and len(self.device.commands) == self.commander.count
                and lake.backlog() == 0
            )

        try:
            until(caught_up, "the tables to catch up")
        finally:
            print(lake.describe(), f"acknowledged {len(self.publisher.acknowledged)}", flush=True)
        for job in self.jobs:
            job.stop()

    def verify(self) -> dict[str, Any]:
        """The figures of the report. Raises AssertionError with what is wrong."""
        acknowledged = self.publisher.acknowledged
        rows = self.lake.verify_messages(acknowledged)
        self.lake.verify_clean(acknowledged)
        wrong = {text: n for text, n in self.device.commands.items() if n != 1}
        assert not wrong, f"commands that did not come once: {wrong}"
        assert self.device.commands.keys() == {str(n) for n in range(self.commander.count)}
        assert self.lake.delivered(DEVICE) == self.commander.count
        return {
            "kills": dict(sorted(self.kills.items())),
            "acknowledged": len(acknowledged),
            "rows": rows,
            "sent_again_after_a_kill": rows["messages"] - len(acknowledged) - self.commander.count,
            "commands_once_at_the_device": self.commander.count,
            "restarts_by_the_jobs_themselves": {job.name: job.own_restarts() for job in self.jobs},
            "seconds": round(time.monotonic() - self._began),
        }

    def end(self) -> None:
        """No process is left behind."""
        for part in (self.commander, self.publisher):
            with suppress(Exception):
                part.finish()
        self.device.leave()
        for job in self.jobs:
            job.end()
        self.broker.end()


def torture(
    folder: Path, kills: int, seed: int, longest_s: float = 16.0, per_second: int = 60
) -> dict[str, Any]:
    """Kill `kills` times; -> what was found to be as it should. Raises AssertionError, TimeoutError."""
    with ExitStack() as stack:
        run = Torture(folder, seed, per_second)
        stack.callback(run.end)
        run.start()
        for _ in range(kills):
            run.kill(longest_s)
        run.settle()
        return run.verify()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="kept afterwards; default: a temporary one")
    parser.add_argument("--record", type=Path, help="file for the report, JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-pipeline-") as folder:
        found = torture(options.folder or Path(folder), options.kills, options.seed)
    report = {"seed": options.seed, "date": datetime.now(UTC).date().isoformat()} | found
    print(json.dumps(report, indent=2))
    if options.record:
        options.record.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
