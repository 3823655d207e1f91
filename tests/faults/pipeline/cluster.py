"""Every job of the pipeline on a standalone Spark cluster of two workers, of which one is killed in the middle.

    python -m faults.pipeline.cluster [run|submit ...]

`run` has workers with the packages of this environment, which read the journal in the data directory; `submit` has
workers with nothing but Python, which get the packages of `pipeline pack` and read the journal of the running broker over
HTTP. A foreign client publishes, foreign devices receive. Where a job has a middle, a worker and its executors are killed
there and the worker is started again. Then tables and devices must have what was published, each message once; one line
for each job, exit status 1 if anything differs. Last come a job without room, and workers that do not see the folders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import paho.mqtt.client as mqtt
import pyarrow as pa
from deltalake import write_deltalake

from broker_process import BrokerProcess, wait_until
from faults.pipeline.devices import BROKEN_EVERY, DEVICE, PUBLISHER, Device, Publisher
from faults.pipeline.tables import Lake
from headrace.journal.bootstrap_file import BootstrapFile
from headrace.services.state import lines
from headrace.storage.embedded.bootstrap import folded
from headrace.storage.embedded.recovery import folded as state_of
from headrace_spark.base.packing import pack
from spark.standalone import SETTINGS, WAIT_S, WORKERS, Cluster, standalone_cluster

WAYS: Final = ("run", "submit")
READINGS: Final = 600
PER_SECOND: Final = 500
COMMANDS: Final = 200
COMMANDS_A_FILE: Final = 20
REPLAYED: Final = "plant/1/t"
REPLAYED_DEVICE: Final = "replayed-device"
LAST_PLANT: Final = "plant/6/t"
"""Without a topic schema at first: its readings are for `mend`."""
SCHEMA: Final = '[[schema]]\nname = "reading"\ntopics = [{topics}]\nfields = {{ value = "long" }}\n'
AT_FIRST: Final = SCHEMA.format(topics=", ".join(f'"plant/{n}/t"' for n in range(6)))
MENDED: Final = SCHEMA.format(topics='"plant/+/t"')
BARE: Final = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
READ_JOURNAL: Final = ("archive", "compact-events")
SHARED: Final = ("--available-now", "--set", 'pipeline.driver_memory="700m"')


class Replayed(Device):
    """Counts replayed messages by what they are of."""

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        pairs = dict(getattr(message.properties, "UserProperty", []))
        self.commands[pairs.get("replay-of", "")] += 1


class Step(NamedTuple):
    """One job: its keys of the configuration, what shows that it is in its middle, and what must be so behind it."""

    job: str
    keys: Mapping[str, object]
    middle: Callable[[], bool] | None
    check: Callable[[], str]
    """Says what was found as it should. Raises AssertionError, TimeoutError."""


@dataclass
class Run:
    """A job that runs."""

    job: str
    process: subprocess.Popen[bytes]
    out: Path
    log: Path

    def require_running(self) -> None:
        assert self.process.poll() is None, f"it ended too early:\n{self.said()}"

    def has_said(self, words: str) -> bool:
        self.require_running()
        return words in self.log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        self.finish()

    def end(self) -> None:
        """No process is left behind."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        code = self.process.wait(WAIT_S)
        assert code == 0, f"exit {code}:\n{self.said()}"

    def said(self) -> str:
        """Of both: spark-submit has the driver's stderr in its stdout."""
        return f"{self.out.read_text()}{self.log.read_text()}"[-4000:]


class Ground:
    """One broker with its devices, one lake, and all jobs over them in one way."""

    def __init__(self, cluster: Cluster, folder: Path, way: str) -> None:
        self.way = way
        self.folder = folder
        folder.mkdir()
        self._cluster = cluster
        self._killed = 0
        self._environment = cluster.environment
        self._packages = folder / "packages.tar.gz"
        if way == "submit":
            pack(self._packages)
            self._environment |= {"PYSPARK_PYTHON": str(BARE)}
        (folder / "token").write_text("secret\n")
        settings = {"journal.token_file": f'"{folder / "token"}"', "session.backlog_messages_max": 65_535}
        self.broker = BrokerProcess(folder / "broker", settings).start()
        self.lake = Lake(folder / "lake")
        self.schemas = folder / "schemas.toml"
        self.schemas.write_text(AT_FIRST)
        (folder / "headrace.toml").write_text(SETTINGS)
        self.device = Device(self.broker)
        self.replayed = Replayed(self.broker, REPLAYED_DEVICE, "replay/#")
        self.publisher = Publisher(self.broker, PER_SECOND)
        wait_until(lambda: len(self.publisher.acknowledged) >= READINGS, "readings", WAIT_S)
        self.publisher.finish()
        for first in range(0, COMMANDS, COMMANDS_A_FILE):
            self._command(range(first, first + COMMANDS_A_FILE))

    def _command(self, numbers: Sequence[int]) -> None:
        """Append to the table that `publish` sends: the last of each topic is retained."""
        rows = {"topic": [f"commands/{n % 3}" for n in numbers], "payload": [str(n) for n in numbers]}
        qos = pa.array([2] * len(numbers), pa.int32())
        write_deltalake(
            self.lake.root / "commands",
            pa.table(rows | {"qos": qos, "retain": [n % 2 == 0 for n in numbers]}),
            mode="append",
        )

    def steps(self) -> list[Step]:
        """In the order in which they need each other."""
        url = f"tcp://127.0.0.1:{self.broker.port}"
        lake, schemas = self.lake, {"clean.topic_schemas": str(self.schemas)}
        again = {"replay.topic": REPLAYED, "replay.url": url, "replay.offsets_per_slice": 50}
        sent = {"publish.table": "commands", "publish.url": url, "publish.files_per_trigger_max": 1}
        few = {"archive.records_per_trigger_max": 100}
        return [
            Step("archive", few, lambda: lake.rows("messages") > 0, self._archived),
            Step(
                "clean",
                schemas | {"clean.bytes_per_trigger_max": 1},
                lambda: lake.rows("clean") > 0,
                self._cleaned,
            ),
            Step("mend", schemas, None, self._mended),
            Step("publish", sent, lambda: bool(self.device.commands), self._published),
            Step("replay", again, lambda: bool(self.replayed.commands), self._replayed),
            Step(
                "metrics",
                {"metrics.records_per_trigger_max": 200},
                lambda: lake.rows("traffic") > 0,
                self._counted,
            ),
            Step("compact-events", {}, None, self._compacted),
        ]

    def do(self, step: Step) -> bool:
        """Whether tables and devices have what they should; says so in a line."""
        began = monotonic()
        if step.job == "mend":
            self.schemas.write_text(MENDED)
        try:
            self._run(step)
            found = step.check()
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            print(f"{self.way} {step.job}: FAILED: {error}", flush=True)
            return False
        killed = ", a worker killed" if step.middle else ""
        print(f"{self.way} {step.job}: {found}{killed}, {monotonic() - began:.0f} s", flush=True)
        return True

    def _run(self, step: Step) -> None:
        run = self._start(step)
        try:
            if step.middle is not None:
                wait_until(self._in_the_middle(run, step.middle), f"the middle of {step.job}", WAIT_S)
                self._kill_a_worker(run)
            run.finish()
        finally:
            run.end()
            self._cluster.forget()

    @staticmethod
    def _in_the_middle(run: Run, middle: Callable[[], bool]) -> Callable[[], bool]:
        def check() -> bool:
            run.require_running()
            return middle()

        return check

    def _kill_a_worker(self, run: Run) -> None:
        """One and then the other, with its executors."""
        number = WORKERS[self._killed % len(WORKERS)]
        self._killed += 1
        assert self._cluster.kill_worker(number) > 0, "the worker had no executor"
        run.require_running()
        self._cluster.start_worker(number)

    def _start(self, step: Step, *more: str) -> Run:
        out, log = (self.folder / f"{step.job}.{kind}" for kind in ("out", "log"))
        with out.open("wb") as said, log.open("wb") as told:
            process = subprocess.Popen(
                self._command_line(step, *more),
                env=self._environment,
                stdout=said,
                stderr=told,
                cwd=self.folder,
            )
        return Run(step.job, process, out, log)

    def _command_line(self, step: Step, *more: str) -> list[str]:
        command = [sys.executable, "-m", "headrace", "pipeline", self.way, step.job, *SHARED, *more]
        command += ["--config", "headrace.toml", "--lake", "lake", "--master", self._cluster.master]
        for key, value in step.keys.items():
            command += ["--set", f"pipeline.{key}={json.dumps(value)}"]
        if self.way == "run":
            return [*command, "--data-dir", os.path.relpath(self.broker.data_dir, self.folder)]
        address = f"headrace://127.0.0.1:{self.broker.admin_port}"
        command += ["--journal", address, "--set", 'pipeline.token_file="token"']
        command += ["--packages", str(self._packages)]
        return [*command, "--data-dir", str(self.folder / "nowhere")]

    def refuse(self) -> bool:
        """Whether a driver in the cluster is refused, which a standalone one does not have for Python."""
        return self._is_refused(self.steps()[0], "--deploy-mode", "--deploy-mode", "cluster")

    def hide(self) -> bool:
        """Whether workers that have neither data directory nor lake are refused, by the first that they need."""
        if os.geteuid():
            print(f"{self.way}: workers without the folders: left out, hiding them needs root", flush=True)
            return True
        cluster, option = self._cluster, "data_dir" if self.way == "run" else "pipeline.lake"
        for number in WORKERS:
            cluster.kill_worker(number)
        cluster.hidden = self.folder
        try:
            cluster.start_worker(WORKERS[0])
            return all(self._is_refused(step, option) for step in self.steps() if step.job in READ_JOURNAL)
        finally:
            cluster.hidden = None
            cluster.kill_worker(WORKERS[0])
            for number in WORKERS:
                cluster.start_worker(number)

    def _is_refused(self, step: Step, option: str, *more: str) -> bool:
        done = subprocess.run(
            self._command_line(step, *more),
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        words = done.stdout + done.stderr
        is_refused = done.returncode == 2 and f"option {option}=" in words
        said = f"refused, {option}" if is_refused else f"FAILED: exit {done.returncode}: {words}"
        what = " ".join(more) or "by workers without the folders"
        print(f"{self.way} {step.job} {what}: {said}", flush=True)
        return is_refused

    def crowd(self) -> bool:
        """Whether a job says so that finds no room because another one has all cores, and can be stopped."""
        archive, clean = self.steps()[:2]
        follows = self._start(archive, "--follow")
        try:
            wait_until(lambda: follows.has_said(" rows, "), "the job that has all cores", WAIT_S)
            waits = self._start(clean)
            try:
                wait_until(
                    lambda: waits.has_said("has no executor for them"), "words about no executor", WAIT_S
                )
                waits.stop()
            finally:
                waits.end()
            follows.stop()
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            print(f"{self.way} {clean.job} without room: FAILED: {error}", flush=True)
            return False
        finally:
            follows.end()
        print(f"{self.way} {clean.job} without room: it says so, and stops when asked", flush=True)
        return True

    # -- what must be so

    def _archived(self) -> str:
        rows = self.lake.verify_messages(self.publisher.acknowledged)["messages"]
        assert rows == len(self.publisher.acknowledged), f"{rows} rows"
        return f"{rows} messages, each once"

    def _cleaned(self) -> str:
        published = self.publisher.acknowledged.values()
        expected = Counter(_reason(one.number, one.topic) for one in published)
        good, none = self.lake.rows("clean"), self.lake.rows("repeats")
        aside = dict(self.lake.ask("quarantine", "select reason, count(*) from rows group by all"))
        assert aside | {"": good} == expected, f"{good} clean, {aside} in quarantine, {expected} expected"
        assert none == 0, f"{none} repeats"
        return f"{good} clean, {sum(aside.values())} put aside"

    def _mended(self) -> str:
        published = self.publisher.acknowledged.values()
        good = self.lake.ask("clean", "select reading.value from rows order by all")
        assert [value for (value,) in good] == sorted(n.number for n in published if n.number % BROKEN_EVERY)
        # What cannot be decoded yet stays under the reason of before.
        broken = (one for one in published if one.number % BROKEN_EVERY == 0)
        expected = Counter(_reason(one.number, one.topic) for one in broken)
        left = dict(self.lake.ask("quarantine", "select reason, count(*) from rows group by all"))
        assert left == expected, f"{left} in quarantine, {expected} expected"
        return f"{len(good)} clean, {sum(left.values())} left aside"

    def _published(self) -> str:
        _require_once(self.device, {str(number) for number in range(COMMANDS)})
        return f"{COMMANDS} commands at the device, each once"

    def _replayed(self) -> str:
        published = self.publisher.acknowledged.values()
        expected = {f"client:default/{PUBLISHER}/{one.number}" for one in published if one.topic == REPLAYED}
        _require_once(self.replayed, expected)
        return f"{len(expected)} messages at the device, each once"

    def _counted(self) -> str:
        replayed = sum(self.replayed.commands.values())
        expected = len(self.publisher.acknowledged) + COMMANDS + replayed
        counted, waiting = self.lake.counted(), self.lake.backlog()
        assert (counted, waiting) == (expected, 0), f"{counted} counted of {expected}, {waiting} waiting"
        delivered = {name: self.lake.delivered(name) for name in (DEVICE, REPLAYED_DEVICE)}
        assert delivered == {DEVICE: COMMANDS, REPLAYED_DEVICE: replayed}, delivered
        return f"{counted} messages and {sum(delivered.values())} deliveries counted"

    def _compacted(self) -> str:
        said = (self.folder / "compact-events.out").read_text().splitlines()
        file = next((Path(line) for line in said if line.endswith(".snapshot")), None)
        assert file is not None, f"no file is named: {said}"
        found, expected = lines(folded(BootstrapFile(file), file)), lines(state_of(self.broker.data_dir))
        assert found == expected, f"{file} leads to {found}, the journal to {expected}"
        return f"a file for {len(found)} sessions and retained messages"

    def end(self) -> None:
        """No process is left behind."""
        for device in (self.device, self.replayed):
            device.leave()
        self.broker.end()


def _reason(number: int, topic: str) -> str:
    """Why a reading is put aside by the first topic schemas; nothing if it is clean."""
    if topic == LAST_PLANT:
        return "no_schema"
    return "" if number % BROKEN_EVERY else "not_json"


def _require_once(device: Device, expected: set[str]) -> None:
    wait_until(lambda: device.commands.keys() >= expected, "messages at the device", WAIT_S)
    assert device.commands == Counter(expected), device.commands - Counter(expected)


def main(ways: Sequence[str]) -> int:
    done = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cluster-")))
        cluster = stack.enter_context(standalone_cluster(folder))
        for way in ways or WAYS:
            ground = Ground(cluster, folder / way, way)
            try:
                done += [ground.do(step) for step in ground.steps()]
                done.append(ground.refuse() if way == "submit" else ground.crowd())
                done.append(ground.hide())
            finally:
                ground.end()
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
