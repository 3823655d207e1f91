"""What backup tools, hands and power cuts leave behind: every file of checkpoint, lake and consumer registry deleted,
emptied, put back from earlier or taken from another lake, and every table RESTOREd; then the job runs again.

    python -m faults.pipeline.leftovers --share 1/4 --seed 3 --job metrics

Either what the job has made equals what it makes of the same journal in a new lake, row for row, or it has refused in a
sentence of ours that says what to do, and nothing is there twice. Tables are read without Spark, and what `publish` has
sent is what a device has received.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from headrace.journal.errors import JournalError
from headrace_spark.base.errors import PipelineError, QueryFailed
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.jobs import module_of
from headrace_spark.lake.table_log import dataset_of
from spark.conftest import QUICK, Writer, settings_of
from spark.device_clients import received, subscribe
from spark.histories import History
from spark.journals import Made, mixed

RECORDS = 120
TABLES = {
    "archive": ("messages",),
    "clean": ("clean", "quarantine", "repeats"),
    "metrics": ("traffic", "deliveries", "usage", "devices", "connections", "backlog", "metrics_state"),
    "compact-events": ("event_snapshot",),
    "publish": ("outbox", "commands"),
}
KEPT = {
    "archive": ("_checkpoints/archive-archive",),
    "clean": ("_checkpoints/clean-messages", "_checkpoints/clean-messages-topic-schemas.toml"),
    "metrics": (),
    "compact-events": ("bootstrap",),
    "publish": ("_checkpoints/publish-publish", "outbox/_plans"),
}
"""What a job leaves in a lake beside its tables."""
ROWS: dict[str, tuple[str, ...]] = {
    "traffic": ("window_start", "tenant", "topic_prefix", "client_id"),
    "deliveries": ("window_start", "tenant", "client_id", "outcome", "latency_ms"),
    "usage": ("hour_start", "tenant"),
    "devices": ("tenant", "client_id", "topic", "journal_offset", "payload"),
    "connections": ("tenant", "client_id", "connected_offset", "end"),
    "backlog": ("tenant", "client_id", "messages"),
    "event_snapshot": ("kind", "journal_offset", "item"),
}
"""What tells the rows of a table apart; other tables have `journal_offset`."""
PARTS = {"traffic": "messages", "deliveries": "messages", "usage": "messages_in"}
"""Tables of parts, and what is added up."""
REMEDIES = (
    *(
        "Remove",
        "remove",
        "Restore",
        "Use another",
        "use another",
        "use the right",
        "hand-over",
        "move it away",
    ),
    "give another",
    "Archive it into another lake",
)


@dataclass(frozen=True)
class Case:
    """One thing done to one path, which is relative to the folder of a scene."""

    job: str
    path: str
    harm: str

    def __str__(self) -> str:
        return f"{self.job}: {self.path} {self.harm}"


class Harm(Exception):
    """Rows are missing or there twice, or nobody is told what to do."""


class Scene:
    """A folder with a broker's journal and a lake, at two times, and another one for what is swapped."""

    def __init__(self, spark: SparkSession, root: Path, job: str) -> None:
        self.spark = spark
        self.job = job
        self.now, self.earlier, self.other = root / "now", root / "earlier", root / "other"
        self._work, self._fresh = root / "work", root / "fresh"
        self._made: Counter[Any] | None = None
        self.journal = self._begin(self.now, 1)
        shutil.copytree(self.now, self.earlier)
        self._go_on(self.journal, self.now, 2)
        self._go_on(self._begin(self.other, 11), self.other, 12)

    def _begin(self, folder: Path, seed: int) -> Writer:
        folder.mkdir()
        (folder / "schemas.toml").write_text('[[schema]]\nname = "raw"\ntopics = ["t", "a//b"]\n')
        journal = Writer(folder / "data")
        self._go_on(journal, folder, seed)
        return journal

    def _go_on(self, journal: Writer, folder: Path, seed: int) -> None:
        self._add(journal, folder, seed)
        self.run(folder)

    def _add(self, journal: Writer, folder: Path, seed: int) -> None:
        """Something new for the job. The seed counts the parts: 1, 2, 3 of one history, 11 and 12 of another."""
        if self.job in ("metrics", "compact-events"):
            whole, part = History(seed // 10, 4 * RECORDS).made.records, seed % 10
            made = Made()
            made.records = whole[len(whole) * (part - 1) // 3 : len(whole) * part // 3]
            journal.write(made)
        else:
            journal.write(mixed(RECORDS, seed))
        if self.job == "publish":
            rows = {"topic": [f"c/{n % 3}" for n in range(10)], "payload": [f"{seed}-{n}" for n in range(10)]}
            write_deltalake(folder / "lake" / "commands", pa.table(rows), mode="append")

    def run(self, folder: Path) -> None:
        """The job, behind the one that makes what it reads. Raises PipelineError."""
        for job in ("archive", "clean") if self.job == "clean" else (self.job,):
            with self._settings(job, folder) as own:
                settings = settings_of(job, folder / "data", folder / "lake", **own)
                module_of(job).check(settings)
                module_of(job).run(self.spark, settings, Event(), lambda _: None)

    @contextmanager
    def _settings(self, job: str, folder: Path) -> Iterator[dict[str, Any]]:
        if job != "publish":
            yield {"topic_schemas": str(folder / "schemas.toml")} if job == "clean" else {}
            return
        with self._broker(folder) as broker:
            yield {"table": "commands", "url": f"tcp://127.0.0.1:{broker.port}"}

    @contextmanager
    def _broker(self, folder: Path) -> Iterator[BrokerProcess]:
        """The broker of a scene, whose device gets what is published."""
        is_new = not (folder / "broker").exists()
        (folder / "broker").mkdir(exist_ok=True)
        broker = BrokerProcess(folder / "broker").start()
        try:
            if is_new:
                subscribe(broker, "device", "c/#")
            yield broker
            broker.stop()
        finally:
            broker.end()

    def cases(self) -> Iterator[Case]:
        """Every file of the checkpoint and of the registry, the newest of the logs, and the folders as wholes."""
        kept = [self.now / "lake" / name for name in KEPT[self.job]]
        folders = [path for path in (*kept, self.now / "data" / "consumers") if path.is_dir()]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        files = [path for path in files if ".alive" not in path.name] + [
            path for path in kept if path.is_file()
        ]
        for table in TABLES[self.job]:
            files += sorted((self.now / "lake" / table / "_delta_log").glob("*.json"))[-1:]
        folders += [self.now / "lake" / table for table in TABLES[self.job]]
        for path in [*sorted(files), *folders]:
            relative = str(path.relative_to(self.now))
            for harm in HARMS:
                source = {"put back": self.earlier, "swapped": self.other}.get(harm)
                is_for = {"emptied": path.is_file(), "restored": (path / "_delta_log").is_dir()}.get(
                    harm, True
                )
                if is_for and (source is None or (source / relative).exists()):
                    yield Case(self.job, relative, harm)

    def outcome(self, case: Case) -> str:
        """What the job made of it: `whole`, or `refused: ...`. Raises Harm."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self.now, self._work)
        HARMS[case.harm](self, self._work / case.path, case.path)
        journal = Writer(self._work / "data")
        journal.made.records = list(self.journal.made.records)
        self._add(journal, self._work, 3)
        expected, before = self._expected(), Counter[Any]()
        if self.job != "publish":  # a device has its messages once
            before = self._found(self._work, only_added=True)
        try:
            self.run(self._work)
        except (PipelineError, JournalError, DeltaError) as error:
            return self._refused(error, expected | before)
        found = self._found(self._work)
        if found != expected:
            raise Harm(f"{(expected - found).total()} rows missing, {(found - expected).total()} too many")
        return "whole"

    def _expected(self) -> Counter[Any]:
        """What the job makes of everything in a lake that nobody has touched: asked once."""
        if self._made is None:
            shutil.rmtree(self._fresh, ignore_errors=True)
            shutil.copytree(self.now, self._fresh)
            journal = Writer(self._fresh / "data")
            journal.made.records = list(self.journal.made.records)
            self._add(journal, self._fresh, 3)
            if self.job != "publish":
                shutil.rmtree(self._fresh / "lake")
                shutil.rmtree(self._fresh / "data" / "consumers")
            self.run(self._fresh)
            self._made = self._found(self._fresh)
            assert self._made.total() > RECORDS / 6
        return self._made

    def _refused(self, error: Exception, allowed: Counter[Any]) -> str:
        """A refusal that helps: ours, with what to do, and not after rows were written twice. Raises Harm."""
        is_ours = isinstance(error, PipelineError | JournalError)
        if not is_ours or (isinstance(error, QueryFailed) and not error.is_ours):
            raise Harm(f"not a refusal of ours: {error}")
        if not any(word in str(error) for word in REMEDIES):
            raise Harm(f"says nothing to do: {error}")
        if doubled := (self._found(self._work, only_added=True) - allowed).total():
            raise Harm(f"refused, and {doubled} rows are there twice: {error}")
        return f"refused: {error}"

    def _found(self, folder: Path, only_added: bool = False) -> Counter[Any]:
        """Rows in the tables of the job, all together. One that cannot be read, or is gone, has none.

        `only_added`: without tables whose rows are replaced.
        """
        if self.job == "publish":
            with self._broker(folder) as broker:
                return Counter(packet.payload for packet in received(broker, "device"))
        found: Counter[Any] = Counter()
        for table in TABLES[self.job]:
            if table == "metrics_state" or (only_added and table in ROWS and table not in PARTS):
                continue
            try:
                rows = dataset_of(folder / "lake" / table).to_table().to_pylist()
            except (DeltaError, OSError):
                continue
            key = ROWS.get(table, ("journal_offset",))
            name = table if table in ROWS else self.job
            for row in rows:
                found[name, *(row[column] for column in key)] += row[PARTS[table]] if table in PARTS else 1
        return found

    def put(self, source: Path, path: Path, relative: str) -> None:
        remove(path)
        if (source / relative).is_dir():
            shutil.copytree(source / relative, path)
        else:
            shutil.copyfile(source / relative, path)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def restore(path: Path) -> None:
    """Take the newest commit of a table back by Delta's RESTORE."""
    table = DeltaTable(path)
    table.restore(table.version() - 1)


HARMS: dict[str, Callable[[Scene, Path, str], Any]] = {
    "deleted": lambda _scene, path, _relative: remove(path),
    "emptied": lambda _scene, path, _relative: path.write_bytes(b""),
    "put back": lambda scene, path, relative: scene.put(scene.earlier, path, relative),
    "swapped": lambda scene, path, relative: scene.put(scene.other, path, relative),
    "restored": lambda _scene, path, _relative: restore(path),
}


def chosen(cases: list[Case], share: float, seed: int) -> list[Case]:
    """A share of them; all of them come up with some seed."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    return shuffled[: max(1, round(share * len(cases)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", default="1", help="of the cases, like 1/4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases in whose name this is")
    parser.add_argument("--job", choices=list(TABLES), action="append")
    given = parser.parse_args()
    whole, _, parts = given.share.partition("/")
    spark = open_session(SparkSettings(master="local[2]", driver_memory="768m", extra=QUICK))
    failed = 0
    for job in given.job or TABLES:
        with tempfile.TemporaryDirectory() as root:
            scene = Scene(spark, Path(root), job)
            cases = [case for case in scene.cases() if given.only in str(case)]
            for case in chosen(cases, int(whole) / int(parts or 1), given.seed):
                try:
                    print(f"{case}: {scene.outcome(case)}", flush=True)
                except Harm as error:
                    failed += 1
                    print(f"FAILED {case}: {error}", flush=True)
    spark.stop()
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
